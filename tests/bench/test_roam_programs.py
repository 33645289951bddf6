"""bench/roam: programs as allocations. reserved.py's from an order, compiled.py's pools, and what
PyTorch's allocator and Firn reserve for one by hand."""

import importlib
import json
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")
ROAM = ROOT / "bench/roam"
MIB = 1 << 20


def of_roam(name):
    """That module of bench/roam; other folders have modules of the same names."""
    names = {each.stem for each in ROAM.glob("*.py")}
    others = {each: sys.modules.pop(each) for each in names if each in sys.modules}
    sys.path.insert(0, str(ROAM))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROAM))
        for each in names:
            sys.modules.pop(each, None)
        sys.modules.update(others)


@pytest.fixture(scope="module")
def reserved():
    return of_roam("reserved")


@pytest.fixture(scope="module")
def compiled():
    return of_roam("compiled")


@pytest.fixture(scope="module")
def program():
    return of_roam("inductor_program")


def test_an_order_as_allocations(reserved, tmp_path):
    prefix = tmp_path / "x"
    (tmp_path / "x.storages.csv").write_text(
        "storage,bytes,kind\nw,100,param\nx,50,batch\na,30,temporary\nb,20,temporary\n")
    (tmp_path / "x.ops.csv").write_text(
        "op,name,inputs,outputs,mutates\n0,mm,x w,a,\n1,relu,a,b,\n2,sgd,w b,,w\n")
    graph = reserved.figures.check.Graph(prefix)
    events = reserved.events_of(graph, graph.program)
    step = [["x", 50], ["a", 30], ["x", 0], ["b", 20], ["a", 0], ["b", 0], "step"]
    assert events[0] == ["w", 100] and events[1:] == step * reserved.STEPS
    assert reserved.alive(events) == max(graph.profile(graph.program)) == 180


# A parameter, then twice: a saved storage and two of the forward pass; two of the backward pass and
# a gradient.
EVENTS = [["p", 900]] + [
    ["a", 600], ["s", 100], ["b", 500], ["a", 0], ["b", 0], "backward",
    ["g", 200], ["c", 100], ["c", 0], ["d", 300], ["s", 0], ["d", 0], "done", ["g", 0], "step"] * 2


def test_pools_hold_what_a_graph_makes_and_frees(compiled, tmp_path, monkeypatch):
    asked = []

    def laid_out(firn, lives, folder):
        asked.append(sorted(lives))
        return sum(size for _, _, size in lives)
    monkeypatch.setattr(compiled, "laid_out", laid_out)
    found = compiled.pooled("firn", EVENTS, tmp_path)
    # In units of 512 bytes; a graph that comes again is not asked for again.
    assert asked == [[(0, 3, 1024), (2, 4, 512)], [(1, 2, 512), (3, 5, 512)]]
    assert found[:5] == [["p", 900], ["pool 0", 1536], ["s", 100], ["pool 0", 0], "backward"]
    assert found[5:10] == [["pool 1", 1024], ["g", 200], ["s", 0], ["pool 1", 0], "done"]
    assert [each for each in found if each in compiled.MARKS] == ["backward", "done", "step"] * 2
    sizes = {}
    for event in found:
        if event not in compiled.MARKS:
            assert (event[0] in sizes) == (event[1] == 0)
            sizes.pop(event[0]) if not event[1] else sizes.update([event])
    assert list(sizes) == ["p"]


def test_the_height_is_the_solver_s(compiled, tmp_path):
    firn = BUILD / "allocator/command/firn"
    if not firn.exists():
        pytest.skip("no firn in the build folder")
    assert compiled.laid_out(firn, [(0, 2, 512), (1, 3, 1024), (2, 4, 512)], tmp_path) == 1536


def test_a_part_of_a_pool_is_the_pool_s_storage(program):
    import torch
    pool = torch.zeros(64, dtype=torch.uint8)
    part = program.from_pool(pool, 16, torch.float32, (2, 3), (1, 2))
    assert part.shape == (2, 3) and part.stride() == (1, 2)
    part.fill_(1.0)
    assert pool.nonzero().min() >= 16 and pool.nonzero().max() < 40
    assert part.untyped_storage()._cdata == pool.untyped_storage()._cdata
    strided = torch.zeros(4, 5, dtype=torch.float32).t()
    program.from_pool(strided, 8, torch.uint8, (4,), (1,)).fill_(255)
    assert strided.t().flatten().isnan().nonzero().tolist() == [[2]]


def test_the_names_that_a_graph_takes(program):
    source = "class Runner:\n    def call(self, args):\n        primals_1, relu = args\n" \
             "        args.clear()\n"
    assert program.arguments_of(source) == ["primals_1", "relu"]


@pytest.mark.long
def test_what_both_allocators_hold_for_a_program_by_hand(reserved, tmp_path):
    if not (BUILD / "backing/gpu/software/cudart/libcudart.so.13").exists():
        pytest.skip("no software GPU in the build folder")
    file = tmp_path / "events.json"
    # 3 MiB: PyTorch's allocator takes 20; 30 MiB: itself; 100 KiB: of a segment of 2.
    file.write_text(json.dumps([["a", 3 * MIB], ["b", 30 * MIB], ["c", 100 << 10], "step",
                                ["b", 0], ["d", 30 * MIB]]))
    build = BUILD.resolve()
    script = ROOT / "bench/roam/replay.py"
    native = json.loads(reserved.run(build, "", script, file))
    assert native["reserved"] == 52 * MIB and native["requested"] == 33 * MIB + (100 << 10)
    firn = json.loads(reserved.run(build, "backend:firn", script, file))
    assert firn["allocated"] <= firn["least"] <= 40 * MIB and firn["spilled"] == 0
