"""Who calls whom in the allocator, of what was compiled: parts call those below them only, and the
engine's files call each other in a circle no wider than it is. (test_sources.py: includes.)"""

import json
import os
import pathlib
import shutil

import pytest
from call_graph import CallGraph, compile_units, cycles, part_of
from test_sources import PARTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")).resolve()
# Files of the engine that all reach each other by calls. It may only become less.
ENGINE_CYCLE_MOST = 27

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="only gcc says who calls whom")


def part(function):
    return part_of(function.file)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    if not (BUILD / "allocator/runtime_build.h").exists():
        pytest.skip(f"{BUILD} is not built")
    return CallGraph(compile_units(BUILD, tmp_path_factory.mktemp("calls")), PARTS)


def test_parts_call_parts_below_them_only(graph):
    arrows = graph.between(part)
    assert {("runtime", "engine"), ("engine", "policy"), ("engine", "movement"),
            ("movement", "blocks"), ("blocks", "memory"), ("memory", "base"),
            ("policy", "lifetimes"), ("lifetimes", "layout")} <= {
                (above, below) for above in arrows for below in arrows[above]}  # it sees calls
    wrong = [f"{above} calls {below}: {caller.name} calls {called.name}" for above in arrows
             for below, (caller, called) in arrows[above].items() if below not in PARTS[above]]
    assert wrong == []
    assert cycles(arrows) == []


def test_the_engine_s_files_form_no_wider_cycle(graph):
    files = {file: calls for file, calls in graph.between(lambda function: function.file).items()
             if file.startswith("allocator/engine/")}
    assert len(files) > 30
    widest = max(cycles(files), key=len, default=())
    print(f"{len(widest)} of {len(files)} of the engine's files reach each other by calls:",
          *sorted(file.split("/")[-1] for file in widest))
    assert len(widest) <= ENGINE_CYCLE_MOST


def test_a_call_upwards_is_found(tmp_path):
    """In a tree of three functions, and in a template that is given one of above."""
    def made(up):
        texts = {"low/low.h": "void low();\n"
                              "template <class F> void each(F call) { call(); }\n",
                 "low/low.cpp": '#include "low.h"\nvoid high();\n'
                                f"void low() {{ {up} }}\n",
                 "high/high.cpp": '#include "../low/low.h"\nstatic void mine() {}\n'
                                  "void high() { low(); each([] { mine(); }); each(mine); }\n"}
        commands = []
        for name, text in texts.items():
            path = tmp_path / "allocator" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.suffix == ".cpp":
                commands.append({"command": "g++ -std=c++20", "file": str(path), "output":
                                 f"allocator/{name}.o"})
        (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
        graph = CallGraph(compile_units(tmp_path, tmp_path, header=None),
                          {"low": set(), "high": {"low"}})
        return {above: set(below) for above, below in graph.between(part).items()}

    assert made(up="") == {"high": {"low"}}
    assert made(up="high();") == {"high": {"low"}, "low": {"high"}}
    assert cycles(made(up="each([] { high(); });")) == [{"low", "high"}]
