"""`firn simulate`: bad input is one line and status 2; times by hand; the public traces."""

import json
import os
import pathlib

import pytest
from firn_command import ROOT, refused

DATA = ROOT / "tests" / "data"
LAYERS = str(DATA / "layers")
PING_PONG = str(DATA / "ping-pong")
TENSORS = "tensor,bytes,kind\n0,104857600,transient\n1,4096,persistent\n"
KERNELS = "kernel,name,duration_ns,inputs,outputs\n0,a,1000,1,0\n1,b,1000,0,1\n"
CONTRACT = ["ideal_s", "iteration_s", "steady_s", "fraction_of_ideal", "bytes_spilled",
            "bytes_faulted", "stall_s", "plan_s"]

BAD_WORDS = [
    # arguments, what the line names
    ((), ("PREFIX",)),
    ((LAYERS,), ("--gpu-memory",)),
    ((LAYERS, "more", "--gpu-memory", "1GiB"), ("more",)),
    ((LAYERS, "--frob"), ("--frob",)),
    ((LAYERS, "--gpu-memory"), ("--gpu-memory",)),
    ((LAYERS, "--gpu-memory", ""), ("--gpu-memory",)),
    ((LAYERS, "--gpu-memory", "0"), ("--gpu-memory", "0 bytes")),
    ((LAYERS, "--gpu-memory", "-1GiB"), ("--gpu-memory", "negative")),
    ((LAYERS, "--gpu-memory", "much"), ("--gpu-memory", "much")),
    ((LAYERS, "--gpu-memory", "1MiB"), ("--gpu-memory", "32MiB")),
    ((LAYERS, "--gpu-memory", "9999TiB"), ("--gpu-memory", "4TiB")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-read", "3.2GiB"), ("--ssd-read", "3.2GiB/s")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-read", "0GiB/s"), ("--ssd-read",)),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-write", "-1GiB/s"), ("--ssd-write", "negative")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-write", "1XB/s"), ("--ssd-write", '"XB"')),
    ((LAYERS, "--gpu-memory", "1GiB", "--pcie", "/s"), ("--pcie",)),
    ((LAYERS, "--gpu-memory", "1GiB", "--pcie", "1KiB/s"), ("--pcie", "1MiB/s")),
    ((LAYERS, "--gpu-memory", "1GiB", "--pcie", "nan"), ("--pcie",)),
    ((LAYERS, "--gpu-memory", "1GiB", "--host", "1MiB"), ("--host", "256MiB")),
    ((LAYERS, "--gpu-memory", "1GiB", "--policy", "lru"), ("--policy", "lru", "oracle")),
    ((LAYERS, "--gpu-memory", "1GiB", "--iterations", "0"), ("--iterations", "0")),
    ((LAYERS, "--gpu-memory", "1GiB", "--iterations", "2.5"), ("--iterations", "2.5")),
    ((LAYERS, "--gpu-memory", "1GiB", "--iterations", "-3"), ("--iterations", "-3")),
    ((LAYERS, "--gpu-memory", "1GiB", "--run-ahead", "x"), ("--run-ahead", "x")),
    ((LAYERS, "--gpu-memory", "1GiB", "--spare", "2"), ("--spare", "2")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssds", "0"), ("--ssds", "0")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-latency", "20"), ("--ssd-latency", "20us")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-latency", "2s"), ("--ssd-latency", "1s")),
    ((LAYERS, "--gpu-memory", "1GiB", "--ssd-endurance", "x"), ("--ssd-endurance",)),
    ((LAYERS, "--gpu-memory", "1GiB", "--timeline", "/nonexistent/x"), ("--timeline",)),
    ((LAYERS, "--gpu-memory", "1GiB", "--plot", "/"), ("--plot", "directory")),
    ((LAYERS, "--sweep", "20GiB:80GiB:10GiB"), ("--sweep", "budget=")),
    ((LAYERS, "--sweep", "budget=20GiB:80GiB"), ("--sweep", "three sizes")),
    ((LAYERS, "--sweep", "200MiB-600MiB"), ("--sweep", "write budget=FIRST:LAST:STEP")),
    ((LAYERS, "--sweep", "budget=200MiB-600MiB"),
     ("--sweep", "200MiB-600MiB", "write budget=FIRST:LAST:STEP")),
    ((LAYERS, "--sweep", "budget=80GiB:20GiB:1GiB"), ("--sweep", "ends before")),
    ((LAYERS, "--sweep", "budget=1GiB:80GiB:1MiB"), ("--sweep", "steps")),
    ((LAYERS, "--sweep", "budget=1GiB:2GiB:0"), ("--sweep", "0 bytes")),
    ((LAYERS, "--sweep", "budget=1GiB:2GiB:1GiB", "--timeline", "x"), ("--timeline",)),
    (("/nonexistent/trace", "--gpu-memory", "1GiB"), ("/nonexistent/trace.tensors.csv",)),
    ((LAYERS, "--gpu-memory", "48MiB"), ("layers.tensors.csv:", "alone exceeds", "48MiB")),
]


@pytest.mark.parametrize("arguments, says", BAD_WORDS, ids=lambda value: " ".join(value)[-60:])
def test_bad_words_are_refused(firn, arguments, says):
    refused(firn("simulate", *arguments), *says)


BAD_TRACES = [
    # tensors, kernels, what the line names
    ("", KERNELS, ("t.tensors.csv", "empty")),
    (TENSORS + "0,1,transient\n", KERNELS, ("t.tensors.csv:4:", "line 2")),
    (TENSORS + "2,0,transient\n", KERNELS, ("t.tensors.csv:4:", "zero")),
    (TENSORS + "2,-5,transient\n", KERNELS, ("t.tensors.csv:4:", "negative")),
    (TENSORS + "2,5\n", KERNELS, ("t.tensors.csv:4:", "2 fields")),
    (TENSORS + "2,99999999999999999999,transient\n", KERNELS, ("t.tensors.csv:4:", "too large")),
    (TENSORS + "2,99999999999,persistent\n", KERNELS, ("t.tensors.csv:4:", "tensor 2")),
    (TENSORS, "", ("t.kernels.csv", "empty")),
    (TENSORS, "kernel,name\n", ("t.kernels.csv:1:", "duration_ns")),
    (TENSORS, KERNELS + "1,c,1,0,1\n", ("t.kernels.csv:4:", "kernel 1")),
    (TENSORS, KERNELS[:KERNELS.index("0,a")], ("t.kernels.csv:1:", "no kernels")),
    (TENSORS[:TENSORS.index("0,")], KERNELS, ("t.tensors.csv:1:", "no tensors")),
    ("tensor,kind\n0,transient\n", KERNELS, ("t.tensors.csv:1:", "bytes")),
    (TENSORS, "kernel,name,duration_ns,inputs\n0,a,1,0\n", ("t.kernels.csv:1:", "outputs")),
    (TENSORS, KERNELS + "2,c,0,0,1\n", ("t.kernels.csv:4:", "zero")),
    (TENSORS, KERNELS + "2,c,-1,0,1\n", ("t.kernels.csv:4:", "negative")),
    (TENSORS, KERNELS + "2,c,1,0,9\n", ("t.kernels.csv:4:", "outputs", "9")),
    (TENSORS, KERNELS + "2,c,20000000000000000,0,1\n",
     ("t.kernels.csv:4:", "two years in 6 iterations", "--iterations")),
    (TENSORS, KERNELS + "2,c,1,9,1\n", ("t.kernels.csv:4:", "9")),
    (TENSORS, KERNELS + "2,c,1,0\n", ("t.kernels.csv:4:", "4 fields")),
    (TENSORS, KERNELS + "\0\xff,c,1,0,1\n", ("t.kernels.csv:4:",)),
]


@pytest.mark.parametrize("tensors, kernels, says", BAD_TRACES,
                         ids=lambda value: str(value)[-30:].encode("ascii", "replace").decode())
def test_bad_traces_are_refused(firn, tmp_path, tensors, kernels, says):
    (tmp_path / "t.tensors.csv").write_bytes(tensors.encode("latin-1"))
    (tmp_path / "t.kernels.csv").write_bytes(kernels.encode("latin-1"))
    refused(firn("simulate", str(tmp_path / "t"), "--gpu-memory", "1GiB"), *says)


def simulated(firn, *arguments):
    result = firn("simulate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_the_contracts_keys_come_first(firn):
    found = simulated(firn, LAYERS, "--gpu-memory", "1GiB")
    assert list(found)[:len(CONTRACT)] == CONTRACT
    assert len(found["iteration_s"]) == 6


def test_what_fits_runs_at_the_ideal(firn):
    found = simulated(firn, LAYERS, "--gpu-memory", "1GiB", "--iterations", "3",
                      "--no-driver-costs")
    assert found["ideal_s"] == pytest.approx(0.031, rel=1e-12)
    assert found["iteration_s"] == pytest.approx([0.031] * 3, rel=1e-12)
    assert found["fraction_of_ideal"] == pytest.approx(1, rel=1e-12)
    assert found["bytes_spilled"] == found["bytes_faulted"] == 0
    assert found["stall_s"] == 0


@pytest.mark.parametrize("policy", ["age", "lifetime", "oracle", "greedy"])
def test_ping_pong_is_bound_by_the_link(firn, policy):
    """Two tensors of 32 MiB (one piece), written in turn by kernels of 1 ms, on a GPU that holds
    one: before each kernel 32 MiB go out at 16 GiB/s, then 32 MiB come in. No policy can help."""
    found = simulated(firn, PING_PONG, "--gpu-memory", "32MiB", "--pcie", "16GiB/s", "--policy",
                      policy, "--no-driver-costs")
    way = 1 / 32 / 16
    assert found["ideal_s"] == pytest.approx(0.002, rel=1e-12)
    assert found["steady_s"] == pytest.approx(4 * way + 0.002, rel=1e-6)
    assert found["stall_s"] == pytest.approx(4 * way, rel=1e-6)
    assert found["bytes_spilled"] == found["bytes_faulted"] + found["bytes_prefetched"] == 64 << 20
    assert found["peak_device_bytes"] == 32 << 20


def test_many_ssds_are_as_busy_as_one(firn, tmp_path):
    """4 GiB in 32 tensors, each written in turn, on a GPU of 2 GiB with no host memory but for
    staging: eight SSDs of 1 GB/s each way have as much to do as one of 8 GB/s."""
    (tmp_path / "t.tensors.csv").write_text("tensor,bytes,kind\n" + "".join(
        f"{i},{128 << 20},persistent\n" for i in range(32)))
    (tmp_path / "t.kernels.csv").write_text("kernel,name,duration_ns,inputs,outputs\n" + "".join(
        f"{i},k,1000000,,{i}\n" for i in range(32)))
    one, many = (simulated(firn, tmp_path / "t", "--gpu-memory", "2GiB", "--pcie", "55GB/s",
                           "--iterations", "4", "--ssds", str(ssds), "--ssd-read", f"{8 // ssds}GB/s",
                           "--ssd-write", f"{8 // ssds}GB/s", "--no-driver-costs")
                 for ssds in (1, 8))
    assert one["bytes_written"] > 0 and many["bytes_written"] > 0
    assert many["steady_s"] == pytest.approx(one["steady_s"], rel=.1)


def test_what_is_allocated_next_is_mapped_while_the_kernel_runs(firn, tmp_path):
    """Every kernel of 1 ms writes a tensor of another size; two fit, and all frames are kept. Each
    allocation takes the driver's calls: in the program's time by age, in the kernels' by
    lifetimes."""
    kernels = 40
    (tmp_path / "t.tensors.csv").write_text("tensor,bytes,kind\n" + "".join(
        f"{i},{(24 + 4 * (7 * i % 20)) << 20},transient\n" for i in range(kernels)))
    (tmp_path / "t.kernels.csv").write_text("kernel,name,duration_ns,inputs,outputs\n" + "".join(
        f"{i},k,1000000,{i - 1 if i else ''},{i}\n" for i in range(kernels)))
    age, lifetime = (simulated(firn, tmp_path / "t", "--gpu-memory", "256MiB", "--policy", policy)
                     for policy in ("age", "lifetime"))
    assert age["bytes_spilled"] == lifetime["bytes_spilled"] == 0
    assert age["stall_s"] > 1e-3
    assert lifetime["stall_s"] < age["stall_s"] / 2


def test_what_is_waited_for_is_not_given_to_the_next_allocation(firn):
    """Two layers of a GPT (bench/jobs/record.py) at half their memory. Where the driver's calls take
    no time, memory that came free for who waits for it, and was mapped for the allocation that comes
    next instead, again and again, kept the clock from going on."""
    found = simulated(firn, DATA / "gpt_two_layers", "--gpu-memory", "18600MiB", "--pcie", "55GB/s",
                      "--ssd-read", "52GB/s", "--ssd-write", "36GB/s", "--host", "64GiB",
                      "--no-driver-costs", "--iterations", "4")
    assert found["bytes_spilled"] > 0 and found["fraction_of_ideal"] > 0.4


@pytest.mark.parametrize("end", [".csv", ".tensors.csv", ".kernels.csv"])
def test_a_file_of_the_trace_names_it(firn, end):
    first, second = (simulated(firn, name, "--gpu-memory", "340MiB", "--policy", "age")
                     for name in (LAYERS, LAYERS + end))
    assert first.pop("plan_s") >= 0 and second.pop("plan_s") >= 0
    assert first == second


def test_two_runs_say_the_same(firn):
    words = (LAYERS, "--gpu-memory", "340MiB", "--policy", "age", "--iterations", "5")
    first, second = (simulated(firn, *words) for _ in range(2))
    for found in (first, second):
        assert found.pop("plan_s") >= 0
        assert found["bytes_spilled"] > 0
    assert first == second


def test_small_tensors_leave_as_others_do(firn, tmp_path):
    small = "".join(f"{100 + i},1000000,persistent\n" for i in range(100))
    (tmp_path / "t.tensors.csv").write_text(TENSORS + "2,104857600,transient\n" + small)
    (tmp_path / "t.kernels.csv").write_text(KERNELS + "2,c,1000,0,2\n")
    found = simulated(firn, str(tmp_path / "t"), "--gpu-memory", "256MiB")
    assert found["bytes_faulted"] == 0 and found["fraction_of_ideal"] > 0.99  # they are away for good


def test_a_kernel_that_does_not_fit_uses_host_memory(firn, tmp_path):
    """As a job would; the time is the link's at least, and both outputs say so."""
    large = "".join(f"{name},104857600,{kind}\n" for name, kind in
                    ((2, "persistent"), (3, "persistent"), (4, "transient")))
    (tmp_path / "t.tensors.csv").write_text(TENSORS + large)
    (tmp_path / "t.kernels.csv").write_text(KERNELS + "2,c,1000,2 3,4\n")
    words = (str(tmp_path / "t"), "--pcie", "1GiB/s", "--host", "2GiB")
    fits = simulated(firn, *words, "--gpu-memory", "512MiB")
    found = simulated(firn, *words, "--gpu-memory", "220MiB")
    assert fits["bytes_in_host"] == 0
    assert found["bytes_in_host"] >= 90 << 20
    assert found["steady_s"] >= found["bytes_in_host"] / (1 << 30)
    text = firn("simulate", *words, "--gpu-memory", "220MiB").stdout
    assert "used by kernels there" in text
    assert "used by kernels there" not in firn("simulate", *words, "--gpu-memory", "512MiB").stdout


def test_the_text_is_short(firn):
    result = firn("simulate", LAYERS, "--gpu-memory", "340MiB")
    assert result.returncode == 0, result.stderr
    assert "of ideal" in result.stdout
    assert len(result.stdout.splitlines()) < 12
    assert all(len(line) <= 120 for line in result.stdout.splitlines())


def test_help_names_every_option(firn):
    result = firn("simulate", "--help")
    assert result.returncode == 0
    for option in ("PREFIX", "--gpu-memory", "--ssd-read", "--ssd-write", "--pcie", "--host",
                   "--policy", "--iterations", "--run-ahead", "--spare", "--ssd-latency", "--ssds",
                   "--json",
                   "--timeline", "--plot", "--sweep", "--ssd-endurance"):
        assert option in result.stdout


def test_the_timeline_is_a_chrome_trace(firn, tmp_path):
    out = tmp_path / "out.json"
    found = simulated(firn, LAYERS, "--gpu-memory", "340MiB", "--policy", "age", "--timeline",
                      str(out))
    events = json.loads(out.read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events
              if event["ph"] == "M" and event["name"] == "thread_name"}
    spent = dict.fromkeys(tracks.values(), 0)
    for event in events:
        if event["ph"] == "X":
            spent[tracks[event["tid"]]] += event["dur"]
    assert spent["kernels"] == pytest.approx(6 * found["ideal_s"] * 1e6)
    assert spent["kernels"] + spent["stalls"] == pytest.approx(sum(found["iteration_s"]) * 1e6)
    assert spent["copies out"] > 0 and spent["copies in"] > 0
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"memory"}


def test_a_sweep_is_a_table_and_a_document(firn):
    words = (LAYERS, "--sweep", "budget=32MiB:640MiB:152MiB", "--policy", "age",
             "--ssd-endurance", "1200TB")
    points = simulated(firn, *words)["sweep"]
    assert [point["budget_bytes"] >> 20 for point in points] == [32, 184, 336, 488, 640]
    assert "layers.tensors.csv" in points[0]["error"]
    assert points[1]["bytes_in_host"] > 0 and points[2]["bytes_in_host"] == 0
    slow = [point["slow_down"] for point in points[1:]]
    assert slow == sorted(slow, reverse=True)
    assert points[-1]["slow_down"] == pytest.approx(1, abs=1e-3)
    assert points[-1]["endurance_days"] is None  # nothing is written
    for point in points[1:]:
        assert point["bytes_written_per_day"] == pytest.approx(
            point["bytes_written"] / point["steady_s"] * 86400, rel=1e-6, abs=1)
    table = firn("simulate", *words)
    assert table.returncode == 0
    assert len(table.stdout.splitlines()) == 6


def plots(firn, tmp_path, *arguments):
    out = tmp_path / "out.png"
    result = firn("simulate", LAYERS, *arguments, "--plot", str(out))
    if result.returncode == 2 and "matplotlib" in result.stderr:
        assert not out.exists()
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    assert out.read_bytes().startswith(b"\x89PNG")


def test_plots(firn, tmp_path):
    plots(firn, tmp_path, "--gpu-memory", "340MiB", "--policy", "age")
    plots(firn, tmp_path, "--sweep", "budget=384MiB:640MiB:128MiB")


SHARED = pathlib.Path(os.environ.get("FIRN_SHARED", ROOT.parent / "shared"))


@pytest.mark.parametrize("host", [(), ("--host", "128GiB")], ids=["ssd", "full"])
@pytest.mark.parametrize("name", ["bert-256", "vit-1280", "resnet152-1280"])
def test_public_traces_run(firn, name, host):
    if not (SHARED / "traces" / f"{name}.kernels.csv").exists():
        pytest.skip(f"no public traces in {SHARED} (FIRN_SHARED names their folder)")
    found = simulated(firn, str(SHARED / "traces" / name), "--gpu-memory", "40GiB", "--ssd-read",
                      "3.2GiB/s", "--ssd-write", "3.2GiB/s", "--pcie", "15.754GiB/s", "--policy",
                      "age", "--iterations", "2", *host)
    assert 0.2 < found["fraction_of_ideal"] <= 1
    assert found["peak_device_bytes"] <= 40 << 30
    assert found["bytes_spilled"] > 0
