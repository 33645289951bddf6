"""`firn layout`: bad input is one line and status 2; the contract; public instances. Every layout
is checked by bench/layout/check.py, which shares nothing with the solver."""

import json
import os
import pathlib
import sys

import pytest
from firn_command import ROOT, refused

sys.path.insert(0, str(ROOT / "bench" / "layout"))
import check  # noqa: E402
import instances  # noqa: E402

SAMPLE = str(ROOT / "tests" / "data" / "buffers.csv")
HEADER = "id,lower,upper,size\n"
# Their lowest layout is 12 high, above their load of 11: proven before any deadline.
ABOVE_LOAD = [(1, 3, 5), (4, 7, 5), (2, 5, 3), (2, 4, 2), (7, 9, 1), (1, 4, 1), (3, 5, 2),
              (0, 2, 5), (5, 8, 5)]

BAD_WORDS = [
    # arguments, what the line names
    ((), ("INSTANCE.csv",)),
    ((SAMPLE, "more"), ("more",)),
    ((SAMPLE, "--frob"), ("--frob",)),
    ((SAMPLE, "--capacity"), ("--capacity",)),
    ((SAMPLE, "--capacity", "0"), ("--capacity",)),
    ((SAMPLE, "--capacity", "-5"), ("--capacity", "negative")),
    ((SAMPLE, "--capacity", "much"), ("--capacity", "much")),
    ((SAMPLE, "--capacity", "15"), ("buffers.csv:4:", "--capacity 15", "16 bytes", "time 2")),
    ((SAMPLE, "--deadline", "10"), ("--deadline", "10")),
    ((SAMPLE, "--deadline", "-1s"), ("--deadline", "-1s")),
    ((SAMPLE, "--deadline", "90000s"), ("--deadline", "86400s")),
    ((SAMPLE, "--seed", "x"), ("--seed", "x")),
    ((SAMPLE, "--seed", "-1"), ("--seed", "-1")),
    ((SAMPLE, "--threads", "0"), ("--threads", "0")),
    ((SAMPLE, "--threads", "2.5"), ("--threads", "2.5")),
    ((SAMPLE, "--threads", "100000"), ("--threads", "1024")),
    ((SAMPLE, "-o", "/"), ("-o", "directory")),
    ((SAMPLE, "-o", "/nonexistent/x"), ("-o", "/nonexistent")),
    ((SAMPLE, "--plot", "/nonexistent/x.png"), ("--plot", "/nonexistent")),
    (("/nonexistent.csv",), ("/nonexistent.csv",)),
    (("/dev/zero",), ("/dev/zero", "regular file")),
]


@pytest.mark.parametrize("arguments, says", BAD_WORDS, ids=lambda value: " ".join(value)[-60:])
def test_bad_words_are_refused(firn, arguments, says):
    refused(firn("layout", *arguments), *says)


BAD_FILES = [
    # text, what the line names
    ("", ("x.csv", "empty")),
    (HEADER, ("x.csv:1:", "no buffers")),
    ("id,lower,upper\n1,0,1\n", ("x.csv:1:", "size")),
    ("id,lower,upper,size,colour\n1,0,1,5,red\n", ("x.csv:1:", "colour")),
    ("id,lower,upper,size,size\n1,0,1,5,5\n", ("x.csv:1:", "size", "twice")),
    (HEADER + "1,0,1,5\n2,3,4,5\n1,7,8,5\n", ("x.csv:4:", '"1"', "line 2")),
    (HEADER + ",0,1,5\n", ("x.csv:2:", "id", "empty")),
    (HEADER + "1,0,1,5\n2,4,4,5\n", ("x.csv:3:", "lower 4", "upper 4")),
    (HEADER + "1,5,4,5\n", ("x.csv:2:", "lower 5", "upper 4")),
    (HEADER + "1,0,1,0\n", ("x.csv:2:", "size", "zero")),
    (HEADER + "1,0,1,9223372036854775809\n", ("x.csv:2:", "size", "too large")),
    (HEADER + "1,0,1,99999999999999999999\n", ("x.csv:2:", "size", "too large")),
    (HEADER + "1,0,1,-5\n", ("x.csv:2:", "size", "negative")),
    (HEADER + "1,-1,1,5\n", ("x.csv:2:", "lower", "negative")),
    (HEADER + "1,0,1.5,5\n", ("x.csv:2:", "upper", "1.5")),
    (HEADER + "1,0,1\n", ("x.csv:2:", "3 fields")),
    (HEADER + "1,0,1,5,6\n", ("x.csv:2:", "5 fields")),
    (HEADER + "1,0,\0,5\n", ("x.csv:2:", "upper")),
    (HEADER + "1,0,9,9223372036854775808\n2,3,4,1\n", ("x.csv:2:", "bytes are alive at time 0")),
    (HEADER + '"1,0,1,5\n', ("x.csv:2:", "quote")),
]


@pytest.mark.parametrize("text, says", BAD_FILES, ids=lambda value: repr(value)[-40:])
def test_bad_files_are_refused(firn, tmp_path, text, says):
    (tmp_path / "x.csv").write_text(text)
    refused(firn("layout", str(tmp_path / "x.csv")), *says)


def laid_out(firn, tmp_path, instance, *words, status=0):
    """The findings, once what was written has been checked."""
    out = tmp_path / "out.csv"
    result = firn("layout", str(instance), "-o", str(out), "--json", *words)
    assert result.returncode == status, result.stderr
    found = json.loads(result.stdout)
    assert check.check_files(instance, out) == (found["height"], found["load"])
    return found


def test_the_contract(firn, tmp_path):
    found = laid_out(firn, tmp_path, SAMPLE)
    assert list(found)[:3] == ["height", "load", "seconds"]
    assert found["height"] == found["load"] == 16
    assert found["optimal"] is True
    assert 0 <= found["seconds"] < 5
    text = firn("layout", SAMPLE)
    assert text.returncode == 0 and text.stderr == ""
    assert "height 16 bytes" in text.stdout and len(text.stdout.splitlines()) == 2


def test_columns_in_any_order_and_any_ids(firn, tmp_path):
    (tmp_path / "x.csv").write_text('size,id,upper,lower\r\n5,"a,""b""",3,0\r\n5,ü,4,1\r\n')
    laid_out(firn, tmp_path, tmp_path / "x.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "size,id,upper,lower,offset"


def test_the_capacity_ends_the_search(firn, tmp_path):
    found = laid_out(firn, tmp_path, SAMPLE, "--capacity", "1GiB")
    assert found["capacity_reached"] is True


def test_a_capacity_out_of_reach_is_said(firn, tmp_path):
    (tmp_path / "x.csv").write_text(HEADER + "".join(
        f"{index},{lower},{upper},{size}\n"
        for index, (lower, upper, size) in enumerate(ABOVE_LOAD)))
    free = laid_out(firn, tmp_path, tmp_path / "x.csv")
    assert free["height"] > free["load"] and free["optimal"] is True
    found = laid_out(firn, tmp_path, tmp_path / "x.csv", "--capacity", str(free["load"]), status=1)
    assert found["capacity_reached"] is False
    result = firn("layout", str(tmp_path / "x.csv"), "--capacity", str(free["load"]))
    assert result.returncode == 1
    assert "not reached" in result.stderr and "lowest" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def drawn(tmp_path, kind, buffers, seed=1):
    path = tmp_path / f"{kind}.csv"
    with open(path, "w") as file:
        instances.write(file, kind, buffers, seed)
    return path


@pytest.mark.parametrize("kind", instances.KINDS)
def test_random_instances(firn, tmp_path, kind):
    found = laid_out(firn, tmp_path, drawn(tmp_path, kind, 3000), "--deadline", "500ms")
    assert found["height"] <= 1.3 * found["load"]


def test_one_thread_and_a_seed_repeat(firn, tmp_path):
    path = drawn(tmp_path, "guillotine", 300)
    texts = []
    for _ in range(2):
        laid_out(firn, tmp_path, path, "--threads", "1", "--seed", "5", "--deadline", "60s")
        texts.append((tmp_path / "out.csv").read_text())
    assert texts[0] == texts[1]


def test_the_deadline_is_kept(firn, tmp_path):
    found = laid_out(firn, tmp_path, drawn(tmp_path, "halves", 50_000), "--deadline", "400ms")
    assert found["seconds"] < 3


@pytest.mark.long
def test_ten_million_buffers_get_an_answer(firn, tmp_path):
    path = tmp_path / "x.csv"
    with open(path, "w") as file:
        file.write(HEADER)
        file.writelines(f"{index},{index},{index + 1 + index * 7919 % 1000},{1 + index % 4096}\n"
                        for index in range(10_000_000))
    result = firn("layout", str(path), "--deadline", "10s", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["buffers"] == 10_000_000


@pytest.mark.long
def test_more_buffers_than_are_laid_out_are_refused(firn, tmp_path):
    path = tmp_path / "x.csv"
    with open(path, "w") as file:
        file.write(HEADER)
        for begin in range(0, 20_000_001, 100_000):
            file.writelines(f"{index},{index},{index + 1},1\n"
                            for index in range(begin, min(begin + 100_000, 20_000_001)))
    refused(firn("layout", str(path)), "x.csv:20000002:", "more than 20000000 buffers")
    path.unlink()


def test_the_plot(firn, tmp_path):
    out = tmp_path / "out.png"
    result = firn("layout", SAMPLE, "--plot", str(out))
    if result.returncode == 2 and "matplotlib" in result.stderr:
        assert not out.exists()
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    assert out.read_bytes().startswith(b"\x89PNG")


def test_help_names_every_option(firn):
    result = firn("layout", "--help")
    assert result.returncode == 0
    for option in ("INSTANCE.csv", "--capacity", "--deadline", "--seed", "--threads", "--output",
                   "--plot", "--json"):
        assert option in result.stdout


SHARED = pathlib.Path(os.environ.get("FIRN_SHARED", ROOT.parent / "shared"))


@pytest.mark.parametrize("name", "ABCDEF")
def test_public_instances_fit_their_capacity(firn, tmp_path, name):
    path = SHARED / "layouts" / f"{name}.1048576.csv"
    if not path.exists():
        pytest.skip(f"no public instances in {SHARED} (FIRN_SHARED names their folder)")
    found = laid_out(firn, tmp_path, path, "--capacity", "1048576")
    assert found["height"] <= 1048576


def test_the_public_large_one_reaches_its_load(firn, tmp_path):
    path = SHARED / "layouts" / "somas-resnet50.csv"
    if not path.exists():
        pytest.skip(f"no public instances in {SHARED} (FIRN_SHARED names their folder)")
    found = laid_out(firn, tmp_path, path)
    assert found["height"] == found["load"]


def test_the_checker_sees_what_is_wrong():
    assert check.check_rows([(0, 2, 5, 0), (1, 3, 5, 5), (2, 4, 5, 0)]) == (10, 10)
    for wrong in ([(0, 2, 5, 0), (1, 3, 5, 4)], [(0, 9, 1, 3), (1, 3, 5, 0)],
                  [(0, 9, 5, 0), (1, 3, 1, 2)], [(0, 1, 1, -1)]):
        with pytest.raises(check.Wrong):
            check.check_rows(wrong)
