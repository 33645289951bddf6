#!/usr/bin/env python3
"""allocator/README.md's table of a block's states, made of allocator/blocks/block_state.h: written anew
by `states_table.py`, compared by test_states.py."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "allocator/blocks/block_state.h"
README = ROOT / "allocator/README.md"
HEAD = "| from | event | to | |\n|---|---|---|---|\n"
TOUCH = "touch: "  # a comment that begins so is a row by itself: a touch moves no block


def rows(header):
    """(states, event, state, words): one for each comment, of the transitions behind it."""
    body = re.search(r"transitions\[\] = \{\n(.*?)\n\};", header, re.S).group(1)
    found, words = [], ""
    for line in body.splitlines():
        if comment := re.fullmatch(r"\s*// (.*)", line):
            words += (" " if words else "") + comment[1]
            if words.startswith(TOUCH):
                found.append((["resident"], "touch", "resident", words.removeprefix(TOUCH)))
                words = ""
            continue
        start, event, end = re.fullmatch(
            r"\s*\{State::(\w+), Event::(\w+), State::(\w+)\},", line).groups()
        if words:
            found.append(([start], event, end, words))
            words = ""
        else:  # another state in the row before
            assert found[-1][1:3] == (event, end), line
            found[-1][0].append(start)
    return found


def table():
    return HEAD + "".join(
        f"| {', '.join(states)} | {event.replace('_', ' ')} | {end} | {words} |\n"
        for states, event, end, words in rows(HEADER.read_text(encoding="utf-8")))


def in_readme(text):
    """Where the table stands."""
    begin = text.index(HEAD)
    return begin, text.index("\n\n", begin) + 1


def main():
    text = README.read_text(encoding="utf-8")
    begin, end = in_readme(text)
    README.write_text(text[:begin] + table() + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
