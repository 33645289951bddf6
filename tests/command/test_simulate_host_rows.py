"""`firn simulate` of traces whose rows run at the host (column `where`)."""

import json
import pathlib

from firn_command import ROOT, refused

LAYERS = ROOT / "tests" / "data" / "layers"
MACHINE = ("--gpu-memory", "1GiB", "--pcie", "16GiB/s", "--no-driver-costs")
HOST_KEYS = {"host_rows", "host_s", "host_waited_s", "stall_for_host_s", "bytes_used_at_host"}
# A weight and its gradient of 32 MiB, 1/512 s over the link; the host writes the weight.
TENSORS = "tensor,bytes,kind\n0,33554432,persistent\n1,33554432,transient\n"
KERNELS = ("kernel,name,duration_ns,inputs,outputs,where\n0,forward,4000000,0,,gpu\n"
           "1,backward,4000000,0,1,gpu\n2,update,20000000,1,0,host\n3,other,1000000,,,gpu\n")


def write(folder, kernels=KERNELS):
    (folder / "t.tensors.csv").write_text(TENSORS)
    (folder / "t.kernels.csv").write_text(kernels)
    return str(folder / "t")


def simulated(firn, *arguments):
    result = firn("simulate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_times_by_hand(firn, tmp_path):
    found = simulated(firn, write(tmp_path), *MACHINE)
    way = 1 / 512
    assert abs(found["ideal_s"] - 0.009) < 1e-9
    assert abs(found["steady_s"] - (0.008 + way + 0.020 + way)) < 1e-7
    assert found["host_rows"] == 1 and found["bytes_used_at_host"] == 64 << 20
    assert abs(found["host_s"] - 0.020) < 1e-9
    assert abs(found["host_waited_s"] - way) < 1e-7
    assert abs(found["stall_for_host_s"] - (way + 0.020 - 0.001)) < 1e-7
    text = firn("simulate", write(tmp_path), *MACHINE).stdout
    assert "host work   1 rows, 0.020 s" in text


def test_without_such_rows_all_figures_are_as_without_the_column(firn, tmp_path):
    plain = tmp_path / "plain"
    for end in (".tensors.csv", ".kernels.csv"):
        pathlib.Path(str(plain) + end).write_text(pathlib.Path(str(LAYERS) + end).read_text())
    words = ("--gpu-memory", "340MiB", "--host", "256MiB")
    before = simulated(firn, str(plain), *words)
    kernels = pathlib.Path(str(plain) + ".kernels.csv")
    lines = kernels.read_text().splitlines()
    kernels.write_text("\n".join([lines[0] + ",where", *(each + ",gpu" for each in lines[1:])]))
    after = simulated(firn, str(plain), *words)
    for each in (before, after):
        del each["plan_s"]
    assert json.dumps(before) == json.dumps(after)
    assert not HOST_KEYS & set(after)


def test_the_timeline_shows_them(firn, tmp_path):
    out = tmp_path / "timeline.json"
    simulated(firn, write(tmp_path), *MACHINE, "--timeline", str(out))
    events = json.loads(out.read_text())["traceEvents"]
    (track,) = [each["tid"] for each in events if each["ph"] == "M" and
                each["args"]["name"] == "host work"]
    runs = [each for each in events if each["ph"] == "X" and each["tid"] == track]
    assert [each["name"] for each in runs] == ["update"] * 6
    assert all(abs(each["dur"] - 20_000) < 1e-3 for each in runs)


def test_lifetimes_are_of_the_device(firn, tmp_path):
    found = firn("simulate", write(tmp_path), "--lifetimes", "--json")
    assert found.returncode == 0, found.stderr
    assert abs(json.loads(found.stdout)["seconds"] - 0.009) < 1e-9


def test_wrong_words_are_refused_with_file_and_line(firn, tmp_path):
    wrong = write(tmp_path, KERNELS.replace("1,0,host", "1,0,cpu"))
    refused(firn("simulate", wrong, *MACHINE), "t.kernels.csv:4:", '"cpu"', "gpu or host")
    none = write(tmp_path, KERNELS.replace(",gpu", ",host"))
    refused(firn("simulate", none, *MACHINE), "t.kernels.csv:5:", "no kernel runs on the GPU")


def test_who_does_not_know_them_is_refused(firn, tmp_path):
    trace = write(tmp_path)
    refused(firn("simulate", trace, *MACHINE, "--remake", "on"), "--remake", "host")
    for policy in ("oracle", "greedy"):
        refused(firn("simulate", trace, *MACHINE, "--policy", policy), "--policy", "host")


def test_host_memory_that_cannot_hold_a_row_is_said(firn, tmp_path):
    (tmp_path / "t.tensors.csv").write_text("tensor,bytes,kind\n0,536870912,persistent\n")
    (tmp_path / "t.kernels.csv").write_text(
        "kernel,name,duration_ns,inputs,outputs,where\n0,a,1000,0,,gpu\n1,b,1000,0,0,host\n")
    result = firn("simulate", str(tmp_path / "t"), *MACHINE, "--host", "256MiB")
    assert result.returncode == 1
    assert "iteration 0, kernel \"b\"" in result.stderr and "t.kernels.csv:3" in result.stderr
