"""Rules that the sources keep, where a slip would be met by users only."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("allocator", "backing", "include", "pytorch_plugin")
           for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cpp", ".h")]


def code_of(path):
    """Without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)


def test_json_becomes_text_in_one_way():
    """dump() by itself throws at what is no UTF-8, which names of files may hold."""
    found = {str(path.relative_to(ROOT)) for path in SOURCES if ".dump(" in code_of(path)}
    assert found == {"allocator/base/json_text.h"}


def test_each_file_of_the_python_package_is_installed():
    package = ROOT / "pytorch_plugin/firn"
    installed = (ROOT / "pytorch_plugin/meson.build").read_text()
    files = [str(path.relative_to(package.parent)) for path in sorted(package.rglob("*.py"))]
    assert "firn/relay/loop.py" in files
    assert [name for name in files if f"'{name}'" not in installed] == []


def included(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), flags=re.M)


def layer_of(path):
    """Of a file, or of what is included: front ends, allocator, seams, backing."""
    parts = pathlib.PurePath(path).parts
    if parts[0] == "firn" or parts[:2] == ("include", "firn"):
        return "seams"
    if parts[0] == "allocator" and parts[1] in ("preload", "command"):
        return "front ends"
    return "front ends" if parts[0] == "pytorch_plugin" else parts[0]


# allocator/'s folders, each with those that it may include, besides itself.
PARTS = {"base": set(), "layout": set(), "order": {"layout"},
         "lifetimes": {"base", "layout", "order"}, "record": {"lifetimes"}, "memory": {"base"}, "blocks": {"base", "memory"},
         "movement": {"base", "lifetimes", "memory", "blocks"},
         "policy": {"base", "memory", "blocks", "lifetimes"},
         "engine": {"base", "memory", "blocks", "movement", "policy", "lifetimes", "record"},
         "runtime": {"base", "memory", "record", "engine"}, "report": {"base"},
         "simulate": {"base", "memory", "blocks", "lifetimes", "policy", "engine", "runtime"}}

MAY_INCLUDE = {"front ends": {"front ends", "allocator", "seams"},
               "allocator": {"allocator", "seams"}, "seams": {"seams"},
               "backing": {"backing", "seams"}}


def test_arrows_point_down_only():
    """allocator/README.md's picture: the allocator knows no files and no rings, backing no blocks."""
    arrows = {(str(path.relative_to(ROOT)), header) for path in SOURCES
              for header in included(path) if "/" in header}
    seen = {(layer_of(path), layer_of(header)) for path, header in arrows}
    assert {("front ends", "allocator"), ("allocator", "seams"), ("backing", "seams")} <= seen
    assert sorted(arrow for arrow in arrows
                  if layer_of(arrow[1]) not in MAY_INCLUDE[layer_of(arrow[0])]) == []


def test_parts_of_the_allocator_form_no_cycle():
    """allocator/README.md's picture of its folders: each includes only those below it."""
    folders = {path.name for path in (ROOT / "allocator").iterdir() if path.is_dir()}
    assert folders == PARTS.keys() | {"preload", "command"}  # these two are front ends
    assert sorted(path.name for path in (ROOT / "allocator").iterdir() if path.is_file()) == [
        "README.md", "meson.build"]
    reached = {}
    for part in PARTS:  # written from the bottom up, or KeyError
        reached[part] = {part}.union(*(reached[below] for below in sorted(PARTS[part])))
    seen = set()
    for path in SOURCES:
        part = path.relative_to(ROOT).parts
        if part[0] == "allocator" and part[1] in PARTS:
            seen |= {(part[1], below, str(path.relative_to(ROOT))) for below in
                     (header.split("/")[1] for header in included(path)
                      if header.startswith("allocator/") and header.count("/") == 2)
                     if below != part[1]}
    assert sorted(arrow for arrow in seen if arrow[1] not in PARTS[arrow[0]]) == []
    assert {arrow[:2] for arrow in seen} == {
        (part, below) for part, allowed in PARTS.items() for below in allowed}


def test_a_block_s_word_has_named_writers_only():
    """BlockWord keeps the atomic to itself; the tests' inspector, its friend, would write past it."""
    word = (ROOT / "allocator/blocks/block_word.h").read_text()
    assert "std::atomic<uint64_t> bits_" in word.split("\n private:")[-1]
    found = {str(path.relative_to(ROOT)) for path in SOURCES
             if "BlockWordInspector" in code_of(path)}
    assert found == {"allocator/blocks/block_word.h"}


def test_bench_takes_nothing_from_the_tests():
    """bench may run the tests' programs; it includes, imports and compiles in none of their code."""
    found = []
    for path in sorted((ROOT / "bench").rglob("*")):
        if path.suffix in (".c", ".cpp", ".cu", ".h"):
            taken = [header for header in included(path) if "tests/" in header]
        elif path.suffix == ".py":
            taken = re.findall(r"^.*(?:sys\.path.*\btests\b|\b(?:from|import) tests\b).*$",
                               path.read_text(), flags=re.M)
        elif path.name == "meson.build":
            taken = re.findall(r"'(?:\.\./)+tests/[^']*'", path.read_text())
        else:
            continue
        found += [(str(path.relative_to(ROOT)), each) for each in taken]
    assert found == []
