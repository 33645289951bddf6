"""What scripts rely on: every field of the statistics, the budget where none is given, whose
directory is whose, and what --help and the demo's summary hold."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from firn_command import ROOT, build_copies, clean_environment, find_binary

GIB, MIB = 1 << 30, 1 << 20
DEVICE = ["budget_bytes", "peak_device_bytes", "peak_allocated_bytes", "spilled_bytes",
          "faulted_bytes", "prefetched_bytes", "forwarded_bytes", "clean_dropped_bytes",
          "recipes", "dropped_bytes", "remakes", "remade_bytes", "remade_s", "remake", "stall_s",
          "touches", "lost_blocks", "pinned", "unseen"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_copies(tmp_path_factory.mktemp("program"))


@pytest.fixture
def ran(firn, program, tmp_path):
    """ran(*options, blocks=, memory=, ...): the statistics of the program under `firn run`."""

    def run(*options, blocks=24, memory="1GiB", **more):
        result = firn("run", "--device", "software", "--gpu-memory", memory, "--stats",
                      str(tmp_path / "stats-%p.json"), *map(str, options), "--", "sh", "-c",
                      'echo $$; exec "$@"', "sh", program, str(blocks), "4", **more)
        assert result.returncode == 0, result.stderr
        (path,) = tmp_path.glob("stats-*.json")
        document = json.loads(path.read_text())
        path.unlink()
        assert path.name == f"stats-{document['pid']}.json"
        assert document["pid"] == int(result.stdout.split()[0])
        return document

    return run


@pytest.mark.parametrize("words", [["--remake", "on"], ["--remake", "off"], []])
def test_the_preload_library_says_that_it_makes_nothing_again_if_asked_for_it(firn, program, words):
    result = firn("run", "--device", "software", "--gpu-memory", "1GiB", *words, "--",
                  program, "4", "1")
    assert result.returncode == 0, result.stderr
    said = "firn_remake: nothing is made again here" in result.stderr
    assert said == (words == ["--remake", "on"]), result.stderr


@pytest.mark.parametrize("relay", ["8", "0"])
def test_the_preload_library_says_that_no_model_runs_layer_by_layer(firn, program, relay):
    result = firn("run", "--device", "software", "--gpu-memory", "1GiB", "--relay", relay, "--",
                  program, "4", "1")
    assert result.returncode == 0, result.stderr
    assert ("firn_relay: no model runs layer by layer here" in result.stderr) == (relay == "8")


def test_the_statistics_hold_every_field(ran, spill_dir):
    document = ran("--budget", "48MiB", "--host", "16MiB", "--dir", spill_dir)
    (device,) = document["devices"]
    for name in DEVICE:
        assert name in device, name
    for name, value in device.items():
        if name.endswith("_bytes"):
            assert isinstance(value, int) and value >= 0, (name, value)
    assert device["budget_bytes"] == 48 * MIB
    assert device["peak_device_bytes"] <= 48 * MIB < device["peak_allocated_bytes"]
    assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
    assert isinstance(device["stall_s"], float) and device["stall_s"] > 0
    assert device["touches"] > 0 and device["lost_blocks"] == 0
    for pinned in device["pinned"]:
        assert set(pinned) == {"reason", "bytes"} and pinned["reason"] and pinned["bytes"] > 0
    assert all(isinstance(words, str) for words in device["unseen"])
    store = document["store"]
    assert store["kind"] in ("io_uring", "threads") and store["dirs"] == [str(spill_dir)]
    assert store["written_bytes"] > 0 and store["read_bytes"] > 0


@pytest.mark.parametrize("memory, margin", [
    ("1GiB", GIB // 16), ("20GiB", GIB), ("40GiB", 40 * GIB // 25), ("64GiB", 64 * GIB // 50)])
def test_without_a_budget_a_margin_is_left(ran, memory, margin):
    """A 50th of the device; below 48 GB a 25th or 1 GiB, at most a 16th. In whole granules."""
    (device,) = ran(memory=memory, blocks=2)["devices"]
    budget = int(memory.removesuffix("GiB")) * GIB - margin
    assert device["budget_bytes"] == budget // (2 * MIB) * (2 * MIB)


@pytest.mark.parametrize("spread, own", [("own", [False, True]), ("all", [True, True])])
def test_a_rank_has_directories_of_its_own_unless_told(ran, spill_dir, spread, own):
    dirs = [spill_dir / name for name in ("first", "second")]
    for each in dirs:
        each.mkdir()
    document = ran("--budget", "48MiB", "--host", "16MiB", "--dir", dirs[0], "--dir", dirs[1],
                   environment={"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "FIRN_SPREAD": spread})
    for each in dirs:
        each.rmdir()
    measured = document["store"]["measured"]
    assert [each["own"] for each in measured] == own
    assert [each["written_bytes"] > 0 for each in measured] == own


def test_help_is_made_from_the_table_of_knobs(firn):
    text = firn("run", "--help").stdout
    table = firn("doctor", "--markdown").stdout
    rows = [[cell.strip(" `") for cell in line.strip("|").split(" | ")]
            for line in table.splitlines()[2:]]
    assert len(rows) > 20
    for name, _, fallback, meaning, _ in rows:
        assert re.search(rf"^  {name} +{re.escape(f'{meaning} [{fallback}]')}$", text, re.M), name


@pytest.mark.parametrize("command, options", [
    ("run", ("--budget", "--dir", "--host", "--policy", "--device", "--gpu-memory", "--watch",
             "--remake", "--relay", "--trace", "--stats")),
    ("doctor", ("--dir", "--json", "--device")), ("top", ("--once", "--json")),
    ("stats", ("PID", "--json", "--metrics")), ("spill", ("PID", "--json")), ("report", ("TRACE", "-o"))])
def test_help_names_every_option(firn, command, options):
    result = firn(command, "--help")
    assert result.returncode == 0 and result.stderr == ""
    for option in options:
        assert option in result.stdout, option


SUMMARY = ["steps", "unlimited_peak_bytes", "budget_bytes", "without_firn", "bitwise_equal",
           "spilled_bytes", "faulted_bytes", "stall_s", "seconds_unlimited", "seconds_firn"]

COMPARE = """
import json, pathlib, sys
sys.path.insert(0, "")
import compare
summary = compare.summarize(pathlib.Path(sys.argv[1]), int(sys.argv[2]), 1)
print(json.dumps([summary, list(compare.shortcomings(summary))]))
"""


def demo(folder, **changed):
    """summary.json of three made-up runs, and what the demo would complain of."""
    run = {"steps": 2, "losses": [(2.5).hex(), (2.25).hex()], "parameters_sha256": "ab",
           "peak_bytes": 900 * MIB, "seconds": 1.0, "gpu": "software", "parameters": 7}
    device = {name: 5 for name in DEVICE}
    device.update(peak_device_bytes=400 * MIB, lost_blocks=0, stall_s=0.5)
    stats = {"devices": [device], "store": {"kind": "threads", "written_bytes": 5, "read_bytes": 5}}
    (folder / "unlimited.json").write_text(json.dumps(run))
    (folder / "firn.json").write_text(json.dumps({**run, **changed}))
    (folder / "stats.json").write_text(json.dumps(stats))
    (folder / "without_firn.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried")
    done = subprocess.run([sys.executable, "-c", COMPARE, str(folder), str(450 * MIB)],
                          cwd=ROOT / "bench/demo", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_demos_summary(tmp_path):
    summary, found = demo(tmp_path)
    assert list(summary)[:len(SUMMARY)] == SUMMARY
    assert summary["without_firn"] == "out of memory" and summary["bitwise_equal"] is True
    assert found == []
    summary, found = demo(tmp_path, losses=[(2.5).hex(), (2.5).hex()])
    assert summary["bitwise_equal"] is False and len(found) == 1
    summary, found = demo(tmp_path, parameters_sha256="cd")
    assert summary["bitwise_equal"] is False and len(found) == 1


@pytest.mark.parametrize("words, says", [
    (("--frob",), "--frob"), (("--steps",), "--steps"), (("--steps", "0"), "--steps 0"),
    (("--steps", "many"), "many")])
def test_the_demo_refuses_bad_words(tmp_path, words, says):
    """On one line, before anything is installed, from any directory."""
    done = subprocess.run(["bash", str(ROOT / "bench/demo.sh"), *words], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and says in done.stderr


def test_firn_run_becomes_its_command():
    """The same process: whoever started it, and signals it, has the command."""
    process = subprocess.Popen([find_binary(), "run", "--device", "software", "--", "sh", "-c",
                                "echo $$; read line; exit 3"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env=clean_environment())
    assert int(process.stdout.readline()) == process.pid
    assert pathlib.Path(f"/proc/{process.pid}/comm").read_text() == "sh\n"
    process.communicate("\n")
    assert process.returncode == 3
