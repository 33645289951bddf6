"""tests/README.md names tests that exist: in the second column of its tables are Meson's tests,
files of pytest's and bench/gpu's steps, and after a colon a part of the names of tests in them."""

import fnmatch
import json
import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
BUILD = ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")
README = (TESTS / "README.md").read_text(encoding="utf-8")
# The tables, by how their headings begin, and how many rows each has at least.
TABLES = {"What is promised of real GPUs": 40, "Promises about disks": 25,
          "Promises about memory": 100}


def rows(begin):
    """(promise, tests, note) of the table under the heading that begins so."""
    lines = iter(README[README.index("## " + begin):].splitlines())
    found = []
    for line in lines:
        if line.startswith("| ") and not line.startswith("| promise "):
            found.append([cell.strip() for cell in line.strip("| ").split(" | ")])
        elif found and not line.startswith("|"):
            break
    return found


def named(cell):
    """(test, part of a name in it or None), as the second column has them."""
    cell = re.sub(r"\([^()]*\)", "", cell)
    return [(name, part.strip().replace(" ", "_") or None)
            for name, part in re.findall(r"`([^`]+)`(?::([^`;,]*))?", cell)]


NAMED = [(heading, name, part) for heading in TABLES for row in rows(heading)
         for name, part in named(row[1])]


@pytest.mark.parametrize("heading", TABLES)
def test_tables_are_read_whole(heading):
    found = rows(heading)
    assert len(found) >= TABLES[heading]
    for row in found:
        assert len(row) == 3, row
        assert named(row[1]) or "bench/gpu" in row[1], row


@pytest.fixture(scope="module")
def compiled():
    """Meson's tests by name: the sources of each."""
    path = BUILD / "meson-info"
    if not (path / "intro-tests.json").exists():
        pytest.skip(f"{BUILD} is not configured")
    sources = {}
    for target in json.loads((path / "intro-targets.json").read_text()):
        for file in target["filename"]:
            sources[file] = [each for group in target["target_sources"]
                             for each in group.get("sources", [])]
    return {test["name"]: sources.get(test["cmd"][0], [])
            for test in json.loads((path / "intro-tests.json").read_text())}


def files_of(name):
    """Of pytest's: by its path, or by its name alone where one has it."""
    whole = TESTS / name
    return [whole] if whole.exists() else list(TESTS.rglob(name))


def names_in(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    found = re.findall(r"^\s*def (test_\w+|case_\w+)", text, flags=re.M)
    return found + [".".join(each) for each in re.findall(
        r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", text, flags=re.M)]


def sources_of(name, compiled):
    """Of what is named so; none: it does not exist."""
    if name.endswith(".py"):
        return files_of(name)
    whole = (name, f"preload_{name}", f"preload_program_{name}", f"preload_route_{name}_*")
    kinds = [each for each in compiled if each.split(" ")[0] == name or
             any(fnmatch.fnmatch(each, one) for one in whole)]
    if kinds:
        return [path for each in kinds for path in compiled[each]] or [TESTS / "meson.build"]
    return [path for path in (ROOT / "bench/gpu").glob("**/*.py")
            if f'"{name}"' in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name, part", sorted({each[1:] for each in NAMED}, key=str), ids=str)
def test_what_is_named_exists(compiled, name, part):
    sources = sources_of(name, compiled)
    assert sources, f"no test is called {name}"
    if part:
        there = [each for path in sources for each in names_in(path)]
        assert any(part in each for each in there), f"{part} is none of {there}"
