"""`firn report` of what `firn run --trace` really writes: a training loop under pressure on the
software GPU, its page in headless Chromium."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

import script_runs

sys.path.insert(0, str(script_runs.ROOT / "tests/command"))
from browser import Page, find_chromium  # noqa: E402

MIB = 1 << 20
needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium (bench/setup.sh --tests installs it)")
JOB = """
import os, signal, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(64, 1024, device="cuda")
address = data.data_ptr()
kept = torch.ones(1 << 20, device="cuda")
address = kept.data_ptr()
for step in range(6):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def traced(paths, tmp_path, job, spill_dir, *arguments):
    """The finished process, whose trace is job.csv."""
    command = script_runs.firn_command(paths, tmp_path, "", budget=120 * MIB, dirs=[spill_dir],
                                       options=["--trace", tmp_path / "job.csv"])
    command = [str(word) for word in command[:command.index("--") + 1]]
    return subprocess.run([*command, paths.python, str(job), *arguments], capture_output=True,
                          text=True, env=script_runs.clean_environment(),
                          timeout=script_runs.TIMEOUT_S)


def report(paths, tmp_path):
    out = tmp_path / "job.html"
    done = subprocess.run([paths.firn, "report", str(tmp_path / "job.csv"), "-o", str(out)],
                          capture_output=True, text=True, timeout=script_runs.TIMEOUT_S,
                          env=script_runs.clean_environment())
    assert done.returncode == 0, done.stderr
    return out, done.stderr


@pytest.mark.quick
@needs_chromium
def test_a_job_under_pressure(paths, job, tmp_path, spill_dir):
    done = traced(paths, tmp_path, job, spill_dir)
    assert done.returncode == 0, done.stderr
    stats = json.loads((tmp_path / "stats.json").read_text())
    (device,) = stats["devices"]
    assert device["spilled_bytes"] > 0 and device["stalls"] > 0
    out, said = report(paths, tmp_path)
    assert said == ""
    with Page(out.as_uri()) as page:
        page.drawn()
        assert page.evaluate("document.getElementById('notice').hidden")
        assert str(job) in page.evaluate("document.getElementById('command').textContent")
        # The statistics of the same run.
        stall = "device.stall"
        assert page.evaluate(f"{stall}.count") == device["stalls"]
        assert page.evaluate(f"{stall}.ns.reduce((a, b) => a + b, 0) / 1e9") == pytest.approx(
            device["stall_s"], rel=1e-6)
        operators = {row["name"]: row["waits"] for row in stats["stalls"]["operators"]}
        shown = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#operators tbody tr')].map("
            "row => [row.cells[0].innerText, +row.cells[1].innerText]))")
        assert len(shown) == min(15, len(operators))
        assert shown == {name: operators[name] for name in shown}
        sites = page.evaluate("document.getElementById('sites').innerText")
        assert f"{job.name}:" in sites and "in <module>" in sites
        for name in page.evaluate("about.words.filter(word => word.startsWith('backward of'))"):
            assert name.startswith("backward of aten::") and f" at {job}:" in name
        assert page.evaluate("document.getElementById('folder').textContent") \
            == f"in {job.parent}/"
        # Who allocated a block.
        makers = page.evaluate("[...new Set(device.life.maker)].map(each => words(each, ''))")
        assert {"aten::addmm", "aten::empty"} & set(makers), makers
        pinned = page.evaluate("document.getElementById('pinned').innerText")
        assert "its address was asked for (data_ptr())" in pinned and "4.00 MiB" in pinned
        samples = page.evaluate("[...device.sample.resident]")
        assert max(samples) <= 120 * MIB and max(samples) > 100 * MIB
        assert page.evaluate("device.sample.nvme.reduce((a, b) => Math.max(a, b), 0)") > 0
        # Every place that a block may be in, where nothing is made again, was seen in a block's life.
        places_seen = set(page.evaluate("[...new Set(device.stretch.where)].map(at => WHERE[at])"))
        assert {"on the device", "on its way out", "in host memory", "on NVMe",
                "on its way back, waited for"} <= places_seen
        points = page.evaluate("about.budgets.points")
        assert points and len(points) == 8, page.evaluate("about.budgets.why")
        assert points[0]["budget_bytes"] < points[-1]["budget_bytes"]
        assert page.evaluate("document.querySelectorAll('#budgets circle').length") >= 2
        picture = page.picture()
        assert len(picture) > 20_000
        assert page.complaints() == []


@needs_chromium
def test_a_killed_job(paths, job, tmp_path, spill_dir):
    done = traced(paths, tmp_path, job, spill_dir, "killed")
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    text = pathlib.Path(tmp_path / "job.csv").read_bytes()
    assert len(text) > 1 << 16
    out, said = report(paths, tmp_path)
    assert "is incomplete" in said
    with Page(out.as_uri()) as page:
        page.drawn()
        assert "was killed" in page.evaluate("document.getElementById('notice').innerText")
        assert page.evaluate("device.life.count") > 50
        assert "is missing" in page.evaluate("document.getElementById('budgets').innerText")
