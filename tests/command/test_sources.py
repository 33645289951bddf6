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
    assert found == {"allocator/json_text.h"}


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
