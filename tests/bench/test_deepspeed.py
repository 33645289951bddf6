"""bench/deepspeed/bytes_moved.py: figures are of steady steps and of runs alike, on made runs; the
page has them. (DeepSpeed itself is installed by the bench alone.)"""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench/deepspeed"), str(ROOT / "bench/jobs")]
import bytes_moved  # noqa: E402
import published_page  # noqa: E402

MIB = 1 << 20


def made(peak, to_device, to_host, steps=8, first=10, digest="a", stats=None):
    """A run whose first step copies `first` times as much."""
    lines, total = [f"peak {peak}", f"sha256 {digest}"], 0
    for step in range(steps):
        total += first if step == 0 else 1
        lines += [f"loss {step}", "step " + json.dumps({
            "copied_to_device_bytes": total * to_device, "copied_to_host_bytes": total * to_host})]
    return bytes_moved.script_runs.Run(0, "\n".join(lines), 1.0, {"used_bytes_peak": peak}, stats)


DEVICE = {key: 1 for key in ("spilled_bytes", "faulted_bytes", "prefetched_bytes",
                             "host_use_bytes")}


def compared(digest="a"):
    asked = []

    def native(stage, offload):
        asked.append((stage, offload))
        return made(301 * MIB, 5, 7) if offload != "none" else made((600 + stage) * MIB, 0, 0)

    def with_firn(stage, budget):
        asked.append((stage, budget))
        return made(budget, 20, 30, digest=digest, stats={"devices": [DEVICE]})
    return bytes_moved.compare(bytes_moved.CASES[0], native, with_firn), asked


def test_figures_are_of_steady_steps():
    assert bytes_moved.each_step(made(1, 5, 7)) == {"to_device": 5, "to_host": 7}
    assert bytes_moved.each_step(made(1, 5, 7, steps=5)) == {"to_device": 5, "to_host": 7}


def test_firn_has_the_memory_that_deepspeed_reached():
    found, asked = compared()
    assert found["budget_bytes"] == 300 * MIB          # whole granules
    assert (2, 300 * MIB) in asked and (0, 300 * MIB) in asked and (2, "optimizer") in asked
    same, plain = found["firn"]
    assert (same["to_device"], same["to_host"]) == (20, 30) and same["equal"] and plain["equal"]
    assert plain["unlimited"]["peak_bytes"] == 600 * MIB   # of that program, not of DeepSpeed's
    assert "bits equal" in bytes_moved.line(found)


def test_other_bits_are_said():
    found, _ = compared(digest="b")
    assert not any(each["equal"] for each in found["firn"])
    assert "bits DIFFER" in bytes_moved.line(found)


def test_a_run_that_fails_is_left_out_with_its_last_word():
    failed = bytes_moved.script_runs.Run(1, "a\nno libaio\n", 1.0, None, None)
    with pytest.raises(bytes_moved.LeftOut, match="ended with 1: no libaio"):
        bytes_moved.ended(failed, "it")


def test_the_page_has_bytes_beside_bytes_and_no_speed(tmp_path):
    found, _ = compared()
    document = {"cases": [found], "left_out": ["ZeRO-Infinity: no libaio"], "date": "2026-01-01",
                "command": "bench/deepspeed/bytes_moved.py", "deepspeed": "deepspeed==0",
                "machine": {"processor": "p", "cores": 2}}
    (tmp_path / "deepspeed-bytes-2026-01-01.json").write_text(json.dumps(document))
    rows = list(published_page.deepspeed(tmp_path))
    assert [each.what.split(",")[0] for each in rows[:2]] == ["ZeRO-Offload"] * 2
    assert rows[0].ours.startswith("0.0 MiB out, 0.0 in") and "p, 2 cores" in rows[0].machine
    assert "no libaio" in rows[2].why and not rows[2].ours
    assert "1.47" in rows[-1].theirs and not rows[-1].ours
    assert [each.ours for each in published_page.deepspeed(tmp_path / "none")] == [""]


def test_nothing_is_installed_to_say_how_it_is_used():
    said = subprocess.run([sys.executable, str(ROOT / "bench/deepspeed/bytes_moved.py"), "--help"],
                          capture_output=True, text=True)
    assert said.returncode == 0 and "--only" in said.stdout
