"""`firn order`: bad input is one line and status 2; the contract; graphs with known figures. Every
order and layout is checked by bench/order/check.py, which shares nothing with the solver."""

import importlib.util
import json
import os
import pathlib

import pytest
from firn_command import ROOT, refused


def load(path):
    """A module by its path: others are called check, too."""
    spec = importlib.util.spec_from_file_location("order_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load(ROOT / "bench" / "order" / "check.py")
graphs = load(ROOT / "bench" / "order" / "graphs.py")

STORAGES = "storage,bytes,kind\n"
OPS = "op,name,inputs,outputs,mutates\n"
# A weight, a batch, two values: the batch is over after operator 0.
GOOD_STORAGES = STORAGES + "w,100,param\nx,50,batch\na,30,temporary\nb,20,temporary\n"
GOOD_OPS = OPS + "0,mm,x w,a,\n1,relu,a,b,\n2,sgd,w b,,w\n"


def written(tmp_path, storages=GOOD_STORAGES, ops=GOOD_OPS):
    (tmp_path / "x.storages.csv").write_text(storages)
    (tmp_path / "x.ops.csv").write_text(ops)
    return str(tmp_path / "x")


BAD_WORDS = [
    # arguments behind the prefix, what the line names
    (("more",), ("more",)),
    (("--frob",), ("--frob",)),
    (("--deadline", "10"), ("--deadline", "10")),
    (("--deadline", "-1s"), ("--deadline", "-1s")),
    (("--deadline", "90000s"), ("--deadline", "86400s")),
    (("--seed", "x"), ("--seed", "x")),
    (("--threads", "0"), ("--threads", "0")),
    (("--threads", "100000"), ("--threads", "1024")),
    (("-o", ""), ("-o",)),
    (("-o", "/"), ("-o", "prefix")),
    (("-o", "/nonexistent/x"), ("-o", "/nonexistent")),
]


@pytest.mark.parametrize("arguments, says", BAD_WORDS, ids=lambda value: " ".join(value)[-60:])
def test_bad_words_are_refused(firn, tmp_path, arguments, says):
    refused(firn("order", written(tmp_path), *arguments), *says)


def test_no_prefix_and_no_files_are_refused(firn, tmp_path):
    refused(firn("order"), "PREFIX")
    refused(firn("order", str(tmp_path / "y")), "y.storages.csv")
    written(tmp_path)
    (tmp_path / "x.ops.csv").unlink()
    refused(firn("order", str(tmp_path / "x")), "x.ops.csv")


BAD_STORAGES = [
    ("", ("x.storages.csv", "empty")),
    ("storage,bytes\na,1\n", ("x.storages.csv:1:", "kind")),
    ("storage,bytes,kind,colour\na,1,param,red\n", ("x.storages.csv:1:", "colour")),
    (GOOD_STORAGES + "a,1,param\n", ("x.storages.csv:6:", '"a"', "line 4")),
    (GOOD_STORAGES + ",1,param\n", ("x.storages.csv:6:", "empty")),
    (GOOD_STORAGES + "c d,1,param\n", ("x.storages.csv:6:", "blank")),
    (GOOD_STORAGES + "c\1d,1,param\n", ("x.storages.csv:6:", "\\x01", "control character")),
    (GOOD_STORAGES + "c,-1,param\n", ("x.storages.csv:6:", "bytes", "negative")),
    (GOOD_STORAGES + "c,,param\n", ("x.storages.csv:6:", "bytes")),
    (GOOD_STORAGES + "c,1.5,param\n", ("x.storages.csv:6:", "bytes", "1.5")),
    (GOOD_STORAGES + "c,9223372036854775809,param\n", ("x.storages.csv:6:", "too large")),
    (GOOD_STORAGES + "c,9223372036854775808,param\n", ("x.storages.csv:6:", "together")),
    (GOOD_STORAGES + "c,1,weight\n", ("x.storages.csv:6:", "weight", "temporary")),
    (GOOD_STORAGES + "c,1\n", ("x.storages.csv:6:", "2 fields")),
]


@pytest.mark.parametrize("text, says", BAD_STORAGES, ids=lambda value: repr(value)[-40:])
def test_bad_storages_are_refused(firn, tmp_path, text, says):
    refused(firn("order", written(tmp_path, storages=text)), *says)


BAD_OPS = [
    ("", ("x.ops.csv", "empty")),
    (OPS, ("x.ops.csv:1:", "no operators")),
    ("op,name,inputs,outputs\n0,mm,w,a\n", ("x.ops.csv:1:", "mutates")),
    ("op,name,inputs,outputs,mutates,time\n0,mm,w,a,,5\n", ("x.ops.csv:1:", "time")),
    (GOOD_OPS + "1,mm,w,,\n", ("x.ops.csv:5:", '"1"', "line 3")),
    (GOOD_OPS + ",mm,w,,\n", ("x.ops.csv:5:", "op", "empty")),
    (GOOD_OPS + "3,mm,w q,,\n", ("x.ops.csv:5:", "inputs", '"q"')),
    (GOOD_OPS + "3,mm,,q,\n", ("x.ops.csv:5:", "outputs", '"q"')),
    (GOOD_OPS + "3,mm,,,q\n", ("x.ops.csv:5:", "mutates", '"q"')),
    (GOOD_OPS + "3,mm,w,a,\n", ("x.ops.csv:5:", '"a"', "before")),
    (OPS + "0,mm,a,b,\n", ("x.ops.csv:2:", "no operator makes", '"a"')),
    (OPS + "0,mm,w,b,\n1,mm,w,,a\n", ("x.ops.csv:3:", "no operator makes", '"a"')),
    (OPS + "0,mm,a,,\n1,mm,w,a,\n", ("x.ops.csv:2:", '"a"', "later")),
    (OPS + "p,mm,b,a,\nq,mm,a,b,\n", ("x.ops.csv:", "cycle", " p,", " q,")),
    (OPS + "5,mm,a,a,\n6,mm,b,,\n7,mm,a,b,\n", ("x.ops.csv:3:", '"b"', "later")),
    (GOOD_OPS + "3,mm,w,,,\n", ("x.ops.csv:5:", "6 fields")),
]


@pytest.mark.parametrize("text, says", BAD_OPS, ids=lambda value: repr(value)[-40:])
def test_bad_operators_are_refused(firn, tmp_path, text, says):
    refused(firn("order", written(tmp_path, ops=text)), *says)


def ordered(firn, tmp_path, prefix, *words):
    """The findings, once what was written has been checked."""
    out = str(tmp_path / "out")
    result = firn("order", str(prefix), "-o", out, "--json", *words)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert check.check(prefix, out) == (found["peak_program_order"], found["peak"],
                                        found["height"])
    assert found["bound"] <= found["peak"] <= found["peak_program_order"]
    return found


def test_the_contract(firn, tmp_path):
    prefix = written(tmp_path)
    found = ordered(firn, tmp_path, prefix)
    assert list(found)[:5] == ["peak_program_order", "peak", "bound", "height", "seconds"]
    assert found["peak_program_order"] == found["peak"] == found["height"] == 180
    assert found["bound"] == 180 and found["optimal"] is True
    text = firn("order", prefix)
    assert text.returncode == 0 and text.stderr == ""
    assert "peak 180 bytes" in text.stdout


def test_ids_columns_and_line_ends_of_any_kind(firn, tmp_path):
    prefix = written(tmp_path, "kind,storage,bytes\r\ntemporary,ü,5\r\nbatch,x-1,0\r\n",
                     "mutates,op,outputs,inputs\r\n,load,ü,x-1  x-1\r\nü,ä,,ü\r\n")
    found = ordered(firn, tmp_path, prefix)
    assert found["peak"] == 5
    assert (tmp_path / "out.order.csv").read_text() == "op\nload\nä\n"
    assert (tmp_path / "out.layout.csv").read_text() == "storage,offset\nü,0\nx-1,0\n"


def test_updates_run_before_the_peak(firn, tmp_path):
    # Two gradients, each as large as its weight: one update has to run before the other gradient.
    prefix = written(
        tmp_path, STORAGES + "w,100,param\nu,100,param\ng,100,temporary\nh,100,temporary\n",
        OPS + "0,back,w,g,\n1,back,u,h,\n2,sgd,w g,,w\n3,sgd,u h,,u\n")
    found = ordered(firn, tmp_path, prefix)
    assert (found["peak_program_order"], found["peak"], found["height"]) == (400, 300, 300)


@pytest.mark.parametrize("kind, seed", [("step", 1), ("step", 2), ("random", 1), ("random", 2)])
def test_drawn_graphs(firn, tmp_path, kind, seed):
    prefix = str(tmp_path / "drawn")
    graphs.write(prefix, kind, 1500, seed)
    found = ordered(firn, tmp_path, prefix, "--deadline", "2s")
    assert found["seconds"] < 10
    if kind == "step":
        assert found["height"] <= 1.005 * found["bound"]


def test_one_thread_and_a_seed_repeat(firn, tmp_path):
    prefix = str(tmp_path / "drawn")
    graphs.write(prefix, "step", 300, 3)
    texts = []
    for _ in range(2):
        ordered(firn, tmp_path, prefix, "--threads", "1", "--seed", "5", "--deadline", "60s")
        texts.append([(tmp_path / name).read_text() for name in ("out.order.csv",
                                                                 "out.layout.csv")])
    assert texts[0] == texts[1]


def test_the_deadline_is_kept(firn, tmp_path):
    prefix = str(tmp_path / "drawn")
    graphs.write(prefix, "step", 30_000, 1)
    found = ordered(firn, tmp_path, prefix, "--deadline", "500ms")
    assert found["seconds"] < 10


@pytest.mark.long
def test_more_operators_than_are_ordered_are_refused(firn, tmp_path):
    prefix = written(tmp_path)
    with open(f"{prefix}.ops.csv", "w") as file:
        file.write(OPS)
        for begin in range(0, 5_000_001, 100_000):
            file.writelines(f"{index},mm,w,,\n"
                            for index in range(begin, min(begin + 100_000, 5_000_001)))
    refused(firn("order", prefix), "x.ops.csv:5000002:", "more than 5000000 operators")


def test_help_names_every_option(firn):
    result = firn("order", "--help")
    assert result.returncode == 0
    for option in ("PREFIX", "--deadline", "--seed", "--threads", "--output", "--json"):
        assert option in result.stdout


SHARED = pathlib.Path(os.environ.get("FIRN_SHARED", ROOT.parent / "shared"))
# Bytes of the peak, proven to be the least.
KNOWN = {"alexnet-32": 697388192, "vgg11-32": 2122601888, "vgg11-32-persistent": 3185508576,
         "mnasnet-1": 35011840, "vit-1-persistent": 1183447776, "roberta-1": 959476776}


@pytest.mark.parametrize("name", KNOWN)
def test_captured_training_steps(firn, tmp_path, name):
    prefix = SHARED / "graphs" / name
    if not pathlib.Path(f"{prefix}.ops.csv").exists():
        pytest.skip(f"no captured graphs in {SHARED} (FIRN_SHARED names their folder)")
    found = ordered(firn, tmp_path, prefix)
    assert found["peak"] == KNOWN[name]
    assert found["height"] <= 1.001 * KNOWN[name]


def test_the_checker_sees_what_is_wrong(firn, tmp_path):
    prefix, out = written(tmp_path), str(tmp_path / "out")
    assert firn("order", prefix, "-o", out).returncode == 0
    order, layout = tmp_path / "out.order.csv", tmp_path / "out.layout.csv"
    assert check.check(prefix, out) == (180, 180, 180)
    right = order.read_text(), layout.read_text()
    for wrong_order, wrong_layout in (("op\n1\n0\n2\n", right[1]), ("op\n0\n1\n", right[1]),
                                      ("op\n2\n0\n1\n", right[1]),
                                      (right[0], "storage,offset\nw,0\nx,100\na,149\nb,100\n"),
                                      (right[0], "storage,offset\nw,0\nx,100\na,150\n")):
        order.write_text(wrong_order)
        layout.write_text(wrong_layout)
        with pytest.raises(check.Wrong):
            check.check(prefix, out)
