"""Which tests run under a sanitizer, what has to be built for them, and the closing line.

Usage: suite.py choose BUILD KIND [--long] [NAME...]   prints "target FILE" and "test NAME" lines
       suite.py precompile BUILD             compiles BUILD/std.h: saves a quarter of the build
       suite.py close BUILD KIND BUILD_SECONDS TEST_SECONDS
Status of `close`: 0 when something passed and nothing failed.
"""

import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import precompile  # noqa: E402
SUITES = {"unit", "sim", "stress"}
OUTPUT_LINES = 40  # of a test that failed, the last ones
QUIET = ("[ RUN ", "[       OK ", "[==========]", "[----------]")


def listed(name):
    """Patterns of a file of lines `PATTERN  reason`; # begins a comment, - a case left out."""
    patterns = []
    with open(os.path.join(HERE, name), encoding="utf-8") as lines:
        for line in lines:
            line = line.split("#")[0].strip()
            if line and not line.startswith("-"):
                patterns.append(line.split(None, 1)[0])
    return patterns


def holds(patterns, name):
    return any(re.fullmatch(pattern.replace("*", ".*"), name) for pattern in patterns)


def introspect(build, what):
    answer = subprocess.run(["meson", "introspect", build, "--" + what], check=True,
                            stdout=subprocess.PIPE)
    return json.loads(answer.stdout)


def choose(build, kind, words):
    files = {target["id"]: target["filename"] for target in introspect(build, "targets")}
    wanted, out = listed("thread_tests.txt") if kind == "thread" else ["*"], []
    unwanted = listed("address_left_out.txt") if kind == "address" else []
    long, names = "--long" in words, [word for word in words if word != "--long"]
    if kind == "address" and not long and not names:
        unwanted += listed("address_long.txt")
    targets = set()
    for test in introspect(build, "tests"):
        # Meson's name of a test is matched with _ in place of spaces.
        name = test["name"].replace(" ", "_")
        if not SUITES & {suite.split(":")[-1] for suite in test["suite"]}:
            continue
        if not holds(wanted, name) or holds(unwanted, name):
            continue
        if names and not any(part in name for part in names):
            continue
        for target in test["depends"]:
            targets.update(os.path.relpath(path, os.path.abspath(build)) for path in files[target])
        out.append(test["name"])
    for path in sorted(targets):
        print("target", path)
    for name in sorted(set(out)):
        print("test", name)


def precompile_all(build):
    """With the flags of a library and of tests with and without GoogleTest: GCC takes the one that
    fits."""
    commands = precompile.commands_of(os.path.join(build, "compile_commands.json"))
    header, folder = os.path.join(build, "std.h"), os.path.join(build, "std.h.gch")
    os.makedirs(folder, exist_ok=True)
    for like in ("firn_allocator-unity0.cpp", "range_map_test.cpp", "engine_property_test.cpp"):
        out = os.path.join(folder, like + ".gch")
        if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(header):
            precompile.precompile(commands[like], header, out)


def output_of(test):
    """The lines that `test` wrote, without those of GoogleTest that only say that a test is well."""
    lines = f"{test.get('stdout') or ''}\n{test.get('stderr') or ''}".splitlines()
    return [line for line in lines if line.strip() and not line.startswith(QUIET)]


def close(build, kind, build_seconds, test_seconds):
    passed, failed, skipped = 0, [], 0
    path = os.path.join(build, "meson-logs", "testlog.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as log:
            for line in log:
                test = json.loads(line)
                result = test["result"].strip()
                if result in ("OK", "EXPECTEDFAIL"):
                    passed += 1
                elif result == "SKIP":
                    skipped += 1
                else:
                    failed.append((f"{test['name']} ({result})", output_of(test)))
    for name, output in failed:
        print(f"{kind}: failed: {name}")
        for line in output[-OUTPUT_LINES:]:
            print(f"  {line}")
    print(f"{kind}: {passed} passed, {len(failed)} failed, {skipped} skipped"
          f" (built in {build_seconds} s, tested in {test_seconds} s: {build}/test.log)")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    if sys.argv[1] == "choose":
        choose(sys.argv[2], sys.argv[3], sys.argv[4:])
    elif sys.argv[1] == "precompile":
        precompile_all(sys.argv[2])
    else:
        sys.exit(close(*sys.argv[2:]))
