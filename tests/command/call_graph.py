"""Who calls whom in the allocator, as the compiler has it: gcc's -fcallgraph-info of every source.

Nothing is optimized, so that calls of inline functions are calls too. Virtual calls and calls by
pointer name nobody and are left out. A call through a function of no part (the standard library's,
a seam's) is its caller's. A template's instance calls what it was given by who made it, a lambda
say: what its own part may not call is a call of its caller's.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRONT_ENDS = ("allocator/preload/", "allocator/command/")
NODE = re.compile(r'^node: \{ title: "([^"]+)" label: "(.*)"( shape : ellipse)? \}$')
EDGE = re.compile(r'^edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"')
PLACE = re.compile(r"(?:^|[/\\]n?)(allocator/\w+/[\w.]+):\d+:\d+$")

Function = collections.namedtuple("Function", "name file template")


def flags(command):
    """What decides over declarations."""
    return [word for word in shlex.split(command) if re.match(r"-[ID]|-std=", word)]


def units(build):
    """(flags, file) of the allocator's units of compilation."""
    commands = json.loads((build / "compile_commands.json").read_text())
    return [(flags(each["command"]), each["file"]) for each in commands
            if each["output"].startswith("allocator/") and not each["output"].endswith(".gch")
            and not each["output"].startswith(FRONT_ENDS)]


def compile_units(build, folder, header=ROOT / "tests/std.h"):
    """The text of each unit's call graph. `header`: compiled once, for those that have the flags
    of most."""
    given = units(build)
    # (gcc dies of a header that was compiled without the last.)
    always = ["-O0", "-fPIC", "-w", "-fcallgraph-info"]
    if header:
        most = collections.Counter(tuple(word for word in words if not word.startswith("-I"))
                                   for words, _ in given).most_common(1)[0][0]
        shutil.copy(header, folder / "std.h")
        subprocess.run(["g++", *most, *always, "-x", "c++-header", header, "-o",
                        folder / "std.h.gch"], check=True)
        always += ["-include", folder / "std.h"]

    def compile_one(numbered):
        number, (words, file) = numbered
        out = folder / f"{number}.s"
        subprocess.run(["g++", *words, *always, "-S", file, "-o", out], cwd=build, check=True)
        return out.with_suffix(".ci").read_text()

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compile_one, enumerate(given)))


def read(texts):
    """{title: Function}, {title: titles that it calls}"""
    functions, declared, calls = {}, {}, collections.defaultdict(set)
    for text in texts:
        for line in text.splitlines():
            if found := NODE.match(line):
                title, label, elsewhere = found.groups()
                place = PLACE.search(label)
                (declared if elsewhere else functions)[title] = Function(
                    label, place and place[1], "[with " in label)
            elif found := EDGE.match(line):
                calls[found[1]].add(found[2])
    # A complete object's constructor is often another name of its base's: gcc lists that one.
    for title, function in declared.items():
        base = title.replace("C1E", "C2E").replace("D1E", "D2E")
        functions.setdefault(title, functions.get(base, function))
    return functions, calls


def part_of(file):
    return file.split("/")[1]


class CallGraph:
    def __init__(self, texts, permitted):
        self.functions, self.calls = read(texts)
        self.permitted = permitted  # {part: parts that it may call, besides itself}

    def may(self, function, other):
        part, called = part_of(function.file), part_of(other.file)
        return part == called or called in self.permitted[part]

    def reached(self, title):
        """Functions of parts that the function calls, and that those call for it."""
        found, seen, ahead = set(), {title}, list(self.calls[title])
        while ahead:
            called = ahead.pop()
            function = self.functions.get(called)
            if called in seen or function is None or called.startswith("__"):  # (the language's)
                continue
            seen.add(called)
            if function.file:
                found.add(function)
            if not function.file or function.template:
                ahead += self.calls[called]
        return found

    def arrows(self):
        """{(caller, called)}, of functions."""
        found = set()
        for title, function in self.functions.items():
            if not function.file:
                continue
            for called in self.reached(title):
                if not function.template or self.may(function, called):
                    found.add((function, called))
        return found

    def between(self, key):
        """{a: {b: a call}} of what `key` tells of callers and called: their parts, their files."""
        found = collections.defaultdict(dict)
        for caller, called in sorted(self.arrows()):
            if key(caller) != key(called):
                found[key(caller)].setdefault(key(called), (caller, called))
        return found


def cycles(arrows):
    """Sets that reach each other along the arrows ({a: those that follow}), the largest first."""
    after = {}
    for begin in arrows:
        after[begin], ahead = set(), [begin]
        while ahead:
            new = set(arrows.get(ahead.pop(), ())) - after[begin]
            after[begin] |= new
            ahead += new
    found = {frozenset(other for other in after[each] if each in after.get(other, ()))
             for each in after if each in after[each]}
    return sorted(found, key=len, reverse=True)
