"""How much the tests that draw or count their cases have tried, from their own closing words.

A row of the table at the end of tests/run.sh is made of what one test, or each of several, printed.
Where one that passed does not say what its row is made of, its words have changed: that is an
error, never an empty cell.
"""

import dataclasses
import re


@dataclasses.dataclass
class Figures:
    tried: int
    unit: str
    survived: int     # with every byte right, or an error that says why not
    faults: int = -1  # that came to pass; -1: not counted
    errors: int = -1  # of the survivors, those with an error
    lost: int = -1    # blocks, or slots, whose last copy was spoilt: said to be lost
    parts: int = 1    # programs
    operations: int = -1

    @property
    def wrong(self):
        return self.tried - self.survived

    def add(self, other):
        for name in ("tried", "survived", "parts"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("faults", "errors", "lost", "operations"):
            counted = [each for each in (getattr(self, name), getattr(other, name)) if each >= 0]
            setattr(self, name, sum(counted) if counted else -1)


def numbers(pattern, text):
    """The numbers of each place that `pattern` fits."""
    return [[int(each) for each in found.groups()] for found in re.finditer(pattern, text, re.M)]


def tags(text):
    for seeds, operations, faults, lost, wrong in numbers(
            r"^(\d+) seeds x \d+ operations in \d+ s \((\d+) in all\), (\d+) faults injected "
            r"\(.*\), (\d+) blocks lost as they had to be, (\d+) wrong$", text):
        return Figures(seeds, "seeds", seeds - wrong, faults, lost=lost, operations=operations)
    return None


def tags_same(text):
    for seeds, differ in numbers(r"^(\d+) seeds x \d+ operations twice, (\d+) differ$", text):
        return Figures(seeds, "seeds, twice", seeds - differ)
    return None


def seeds_failed(text):
    for seeds, failed in numbers(r"^(\d+) seeds, (\d+) failed$", text):
        return Figures(seeds, "seeds", seeds - failed)
    return None


def canaries(text):
    for met, every in numbers(
            r"^(\d+) of (\d+) canaries found, each by an oracle that is meant to$", text):
        return Figures(every, "canaries, found", met, every)
    return None


def nth_calls(text):
    """The table of tests/faults: a run for each call that fails, of `calls` where that is told."""
    head = re.search(r"^\w+ +(?:answer|what fails) +when( +calls)? +runs +right +error +not met$",
                     text, re.M)
    if head is None:
        return None
    found = numbers(rf"^\w+ +\w+ +(?:once|from){' +[0-9]+' if head.group(1) else ''}"
                    r" +(\d+) +(\d+) +(\d+) +(\d+)$", text)
    if not found:
        return None
    runs, right, errors, unmet = (sum(each) for each in zip(*found))
    return Figures(runs, "runs", right + errors + unmet, runs - unmet, errors)


def corruptions(text):
    found = numbers(r"^(\d+) corruptions: (\d+) healed, (\d+) corrupt, (\d+) handed over$", text)
    if not found:
        return None
    every, healed, corrupt, _ = (sum(each) for each in zip(*found))
    return Figures(every, "slots", healed + corrupt, every, corrupt, corrupt)


def model(text):
    found = numbers(r"^[\w ]+: (\d+) executions, no fault$", text)
    if not found or not re.search(r"^[\w ]+: its canary was found: ", text, re.M):
        return None
    return Figures(found[0][0], "executions", found[0][0])


def fuzzers(text):
    """The table of tests/fuzz/run.sh: a line for each target. (A find ends its target.)"""
    found = re.findall(r"^\w+ +(\d+|-) +\S+ +\S+ +\S+ +(passed|FAILED)$", text, re.M)
    if not found or not re.search(r"^target +runs +runs/s +corpus +coverage$", text, re.M):
        return None
    runs = sum(int(each) for each, _ in found if each != "-")
    finds = sum(end == "FAILED" for _, end in found)
    return Figures(runs, "inputs", runs - finds, parts=len(found))


def sanitizers(text):
    for passed, failed in numbers(r"^(?:address|thread): (\d+) passed, (\d+) failed", text):
        return Figures(passed + failed, "tests", passed)
    return None


# Row, the names of its tests (of Meson's, or of a runner of run.sh's), what reads their words.
ROWS = [("tags", "tags", tags), ("tags_same", "tags_same", tags_same),
        ("engine_property", "engine_property", seeds_failed), ("canaries", "canaries", canaries),
        ("driver_faults", "driver_faults", nth_calls),
        ("process_faults", "process_faults", nth_calls),
        ("store_corruption", "store_corruption .*", corruptions), ("models", "model_.*", model),
        ("fuzz", "fuzz", fuzzers), ("sanitizers", "sanitizers-.*", sanitizers)]
COLUMNS = ("tried", "times", "of", "survived", "faults", "with an error", "lost, said so",
           "lost or wrong")


def cell(number):
    return f"{number:,}" if number >= 0 else "-"


def table(tests):
    """(lines, errors) of `tests`: (name, whether it passed, text) of each that ran."""
    rows, errors = [COLUMNS], []
    for row, names, read in ROWS:
        whole, silent = None, False
        for name, passed, text in tests:
            if not re.fullmatch(names, name):
                continue
            figures = read(text)
            if figures is None or figures.tried == 0:
                silent = True
                if passed:
                    errors.append(f"{name} passed, and no figures were found in its output")
            else:
                if passed and figures.wrong:
                    errors.append(f"{name} passed, and says that {figures.wrong} were wrong")
                if whole is None:
                    whole = figures
                else:
                    whole.add(figures)
        if whole:
            label = row if whole.parts == 1 else f"{row} ({whole.parts})"
            rows.append((label, cell(whole.tried), whole.unit, cell(whole.survived),
                         cell(whole.faults), cell(whole.errors), cell(whole.lost),
                         cell(whole.wrong)))
        if silent:
            rows.append((row, "no figures", *("?" for _ in COLUMNS[2:])))
    if len(rows) == 1:
        return [], errors
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(word.ljust(width) if i in (0, 2) else word.rjust(width)
                       for i, (word, width) in enumerate(zip(row, widths))).rstrip()
             for row in rows]
    return lines, errors
