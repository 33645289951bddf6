"""The table of a block's states is one: allocator/blocks/block_state.h has it, README explains it, and the
design allows nothing else but what facts/remake.md adds: blocks that are made again."""

import os
import pathlib
import re

import pytest

import states_table

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("FIRN_SHARED") or ROOT.parent / "shared")
# A touch moves no block: it is a compare-and-swap of the word. A write that failed moves none either.
STANDING = {("resident", "touch", "resident"), ("hosted", "write failed", "hosted")}
# The design's words for events, where the code has one word for several of them.
EVENTS = {"touch, or a failure": "keep", "touch or prefetch": "fault"}


def in_code():
    header = (ROOT / "allocator/blocks/block_state.h").read_text(encoding="utf-8")
    rows = re.findall(r"\{State::(\w+), Event::(\w+), State::(\w+)\}", header)
    states = re.search(r"enum class State[^{]*\{(.*?)\}", header, re.S).group(1)
    return set(rows), set(re.findall(r"^\s*(\w+),", states, re.M))


def cells(text):
    """Rows of the table that begins with from, event, to."""
    table = text[re.search(r"^\| from \| event \| to \|", text, re.M).start():]
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")][:3]


def parts(cell):
    return [part.strip().replace(" ", "_") for part in cell.split(",")]


def expanded(rows):
    """"a, b | e | c" is two transitions; "a | e, f | c, d" is two as well."""
    found = set()
    for start, event, end in rows:
        events, ends = parts(event), parts(end)
        if len(ends) == 1:
            ends *= len(events)
        assert len(events) == len(ends), (event, end)
        found |= {(each, what, to) for each in parts(start) for what, to in zip(events, ends)}
    return found


def test_readme_has_each_transition_and_no_other():
    code, states = in_code()
    assert len(code) > 15 and len(states) == 11
    text = (ROOT / "allocator/README.md").read_text(encoding="utf-8")
    begin, end = states_table.in_readme(text)
    assert text[begin:end] == states_table.table(), "tests/command/states_table.py writes it anew"
    standing = {tuple(part.replace(" ", "_") for part in row) for row in STANDING}
    assert expanded(cells(text)) - standing == code


def test_the_design_asks_for_nothing_that_the_code_forbids():
    if not (SHARED / "design.md").exists():
        pytest.skip(f"{SHARED}/design.md is not there (FIRN_SHARED names its folder)")
    code, states = in_code()
    rows = list(cells((SHARED / "design.md").read_text(encoding="utf-8")))
    assert len(rows) >= 10
    missing, seen = [], set()
    for start, event, end in rows:
        if (start, event, end) in STANDING:
            continue
        if start == "any in flight":  # (one that is leaving is kept first: it is whole)
            wanted = {(each, "release", end) for each in ("hosted", "spilled", "faulting")}
        else:
            wanted = {(each, EVENTS.get(event, event.replace(" ", "_")), end)
                      for each in parts(start)}
        missing += sorted(wanted - code)
        seen |= {state for row in wanted for state in (row[0], row[2])}
    assert missing == []
    assert seen == states - {"ready", "dropped", "remaking"}  # (facts/remake.md has those)
