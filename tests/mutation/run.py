"""Branch mutation: each branch condition of the files below made constant, and a test has to fail
for it.

    .venv/bin/python tests/mutation/run.py [--list] [--part I/N] [--minutes N] [--file NAME]
                                            [--again] [--survivors]

All mutants of a file are in one object (mutants.py), linked in front of the libraries into the
tests of that file and the engine's simulation; FIRN_MUTANT chooses one. It wants what
bench/setup.sh installs, and builds these tests in build/mutation/build, each source compiled by
itself (once, as long as building everything takes). What was tried is kept in
build/mutation/FILE.json until the file changes. Survivors have to be in survivors.md, each with its
reason; a new one is a failure. The status is 0 where nothing failed, 77 where nothing can be done
here."""

import argparse
import collections
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
WORK = ROOT / "build/mutation"
BUILD = WORK / "build"
SIMULATION = "tests/simulation/tags_test"
UNITS = "tests/allocator/"
FILES = {  # and the tests of each
    "allocator/blocks/block.cpp": ["block_test", "engine_test"],
    "allocator/blocks/block_word.cpp": ["block_test", "block_state_test", "engine_test"],
    "allocator/blocks/age_order.cpp": ["candidates_test", "engine_test"],
    "allocator/blocks/candidates.cpp": ["candidates_test", "engine_test"],
    "allocator/blocks/small_blocks.cpp": ["small_blocks_test", "small_blocks_model_test",
                                          "engine_small_test", "engine_segments_test",
                                          "engine_parts_test", "engine_test"],
    "allocator/blocks/streams.cpp": ["streams_test", "streams_refused_test", "engine_streams_test",
                                     "engine_stop_test"],
    "allocator/blocks/uses.cpp": ["uses_test", "engine_streams_test", "engine_test"],
    "allocator/blocks/recipes.cpp": ["recipes_test", "engine_recipes_test",
                                     "engine_remake_test"],
    "allocator/movement/drop.cpp": ["movement_drop_test", "engine_remake_test"],
    "allocator/engine/recipes.cpp": ["engine_recipes_test", "engine_recipes_keep_test",
                                      "engine_remake_test"],
    "allocator/blocks/placed_blocks.cpp": ["placed_blocks_test", "engine_places_test",
                                           "engine_test"],
    "allocator/movement/host_copies.cpp": ["host_copies_test", "engine_write_test", "engine_test"],
    "allocator/movement/mapper.cpp": ["mapper_test", "mapper_refused_test", "engine_map_test",
                                      "engine_map_apart_test", "engine_test"],
    "allocator/movement/mapper_apart.cpp": ["mapper_test", "mapper_refused_test",
                                            "engine_map_test", "engine_map_apart_test",
                                            "engine_test"],
    "allocator/movement/at_host.cpp": ["engine_on_host_test", "engine_on_host_refused_test"],
    "allocator/movement/arrive.cpp": ["movement_test", "movement_failed_test",
                                      "movement_sums_test", "engine_fault_test",
                                      "engine_read_test", "engine_test", "engine_sums_test",
                                      "engine_refused_copies_test", "engine_remake_test"],
    "allocator/movement/movement.cpp": ["movement_test", "engine_test"],
    "allocator/movement/read.cpp": ["movement_test", "movement_failed_test", "engine_read_test",
                                    "engine_fault_test", "engine_sums_test",
                                    "engine_patience_test", "engine_stop_test", "engine_test"],
    "allocator/movement/reap.cpp": ["movement_test", "movement_failed_test",
                                    "movement_sums_test", "engine_test", "engine_write_test",
                                    "engine_sums_test", "engine_net_test"],
    "allocator/movement/write.cpp": ["movement_write_test", "movement_sums_test",
                                     "engine_write_test", "engine_test", "engine_sums_test",
                                     "engine_patience_test"],
    "allocator/movement/transfers.cpp": ["transfers_test", "engine_refused_copies_test",
                                         "engine_test"],
    "allocator/movement/sums.cpp": ["sums_test", "engine_sums_test"],
    "allocator/movement/write_back.cpp": ["write_back_test", "engine_write_test",
                                          "engine_patience_test"],
    "allocator/memory/host_tier.cpp": ["host_tier_test", "host_tier_growth_test", "engine_test"],
    "allocator/lifetimes/coarse.cpp": ["lifetimes/coarse_test"],
    "allocator/lifetimes/remake.cpp": ["lifetimes/remake_test", "lifetimes/rewrite_test"],
    "allocator/lifetimes/rewrite.cpp": ["lifetimes/rewrite_test"],
    "allocator/lifetimes/versions.cpp": ["lifetimes/versions_test", "lifetimes/rewrite_test"],
    "allocator/lifetimes/waits.cpp": ["lifetimes/waits_test"],
    "allocator/lifetimes/stage_move.cpp": ["lifetimes/rehearse_test", "spare_choice_test"],
    "allocator/policy/births.cpp": ["births_test", "engine_lifetimes_test", "engine_test"],
    "allocator/policy/learner.cpp": ["learner_test", "outlook_test", "engine_lifetimes_test"],
    "allocator/policy/outlook.cpp": ["outlook_test", "engine_lifetimes_test"],
    "allocator/policy/place_planner.cpp": ["place_planner_test", "engine_places_test"],
    "allocator/policy/remake_choice.cpp": ["lifetimes/remake_choice_test"],
    "allocator/policy/remake_search.cpp": ["lifetimes/remake_choice_test"],
    "allocator/policy/spare_choice.cpp": ["spare_choice_test", "engine_lifetimes_test"],
    "allocator/engine/thrash_notices.cpp": ["thrash_notices_test", "engine_notices_test"],
    "allocator/engine/on_host.cpp": ["engine_on_host_test", "engine_on_host_refused_test"],
    "allocator/engine/tiers.cpp": ["engine_lifetimes_test", "engine_test"],
    "allocator/engine/hints.cpp": ["engine_hints_test", "engine_fault_test", "engine_map_test",
                                   "engine_test"],
    "allocator/engine/fault.cpp": ["engine_fault_test", "engine_read_test", "engine_test",
                                   "engine_parts_test", "engine_stop_test", "engine_trace_test",
                                   "engine_refused_copies_test", "engine_remake_test",
                                   "engine_recipes_rare_test"],
    "allocator/simulate/greedy.cpp": ["simulate/compared_policies_test", "engine_stop_test"],
    "allocator/simulate/greedy_plan.cpp": ["simulate/greedy_plan_test",
                                           "simulate/compared_policies_test"],
    "allocator/simulate/oracle.cpp": ["simulate/compared_policies_test"],
}
SHORT, LONG = (6, 3000), (30, 8000)  # seeds and operations of the simulation


def build():
    """Where a library's sources are compiled together, a mutant is no file of its own."""
    tools = ROOT / ".venv/bin"
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                   "NINJA": str(tools / "ninja")}
    tests = {UNITS + test for tests in FILES.values() for test in tests}
    targets = sorted({SIMULATION, "backing/gpu/software/libcuda.so.1", *tests})
    commands = [[str(tools / "ninja"), "-C", str(BUILD), *targets]]
    if not (BUILD / "build.ninja").exists():
        commands.insert(0, [str(tools / "meson"), "setup", str(BUILD), "-Dbuildtype=release",
                            "-Db_ndebug=false", "-Dtests=true", "-Dtorch=disabled",
                            "-Dtogether=false"])
    with open(WORK / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in commands:
            done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            (WORK / "build.log").write_text(done.stdout)
            if done.returncode != 0:
                sys.exit(f"mutation: building failed: {WORK / 'build.log'}")
        if "no work to do" not in done.stdout:  # what was made of the files before
            for stem in FILES:
                shutil.rmtree(WORK / pathlib.Path(stem).stem, ignore_errors=True)


def commands_of(target):
    ninja = [str(ROOT / ".venv/bin/ninja"), "-C", str(BUILD), "-t", "commands", target]
    done = subprocess.run(ninja, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def compile_mutated(source, target, folder):
    """The object of the mutated source, made as the ordinary one is."""
    written = folder / pathlib.Path(source.name).name
    text = source.mutated()
    output = written.with_suffix(".o")
    if output.exists() and written.exists() and written.read_text() == text:
        return output
    written.write_text(text)
    (command,) = [line for line in commands_of(target)
                  if re.search(rf" -c \S*\.\./{re.escape(source.name)}$", line)
                  and "canary" not in line]
    words = shlex.split(command)
    words[-1] = str(written)
    at = words.index("-o")
    words[at + 1] = str(output)
    words = [word for word in words if word not in ("-MD", "-Werror") and "ccache" not in word]
    for flag in ("-MQ", "-MF"):
        at = words.index(flag)
        del words[at:at + 2]
    words[1:1] = ["-include", str(HERE / "mutant.h"), "-w", "-O1"]
    subprocess.run(words, cwd=BUILD, check=True)
    return output


def link(target, mutated, folder):
    """The test with the mutated object in front of the libraries."""
    output = folder / pathlib.Path(target).name
    words = shlex.split(commands_of(target)[-1])
    words[words.index("-o") + 1] = str(output)
    words.insert(words.index(str(output)) + 1, str(mutated))
    if not output.exists() or output.stat().st_mtime < mutated.stat().st_mtime:
        subprocess.run(words, cwd=BUILD, check=True)
    return output


class Oracle:
    def __init__(self, name, command, environment=()):
        self.name, self.command = name, command
        self.environment, self.limit = dict(environment), 600

    def run(self, number):
        """None where it passes, else how it ends."""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("FIRN_")}
        environment.update(self.environment, FIRN_MUTANT=str(number), FIRN_JOBS="1",
                           FIRN_TEST_GPU=str(BUILD / "backing/gpu/software/libcuda.so.1"))
        process = subprocess.Popen(self.command, env=environment, cwd=WORK, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, errors="replace",
                                   start_new_session=True)
        try:
            text = process.communicate(timeout=self.limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return f"{self.name}: time"
        if process.returncode == 0:
            return None
        found = re.search(r"failed at operation \d+: (\w+)", text) or \
            re.search(r"\[  FAILED  \] (\S+)", text)
        return f"{self.name}: {found.group(1) if found else f'status {process.returncode}'}"


def oracles_of(file, mutated, folder):
    tags = str(link(SIMULATION, mutated, folder))
    tests = [str(link(UNITS + name, mutated, folder)) for name in FILES[file]]
    simulated = [Oracle("simulation", [tags, "--no-shrink"],
                        {"FIRN_SEEDS": str(seeds), "FIRN_OPERATIONS": str(operations)}.items())
                 for seeds, operations in (SHORT, LONG)]
    units = [Oracle(pathlib.Path(test).name, [test, "--gtest_brief=1"]) for test in tests]
    for each in (every := [*simulated, *units]):
        begin = time.monotonic()
        if ended := each.run(0):
            sys.exit(f"mutation: {file}: fails without a mutant: {ended}")
        each.limit = 15 + 5 * (time.monotonic() - begin)
    return sorted(every, key=lambda each: each.limit)


def known_survivors():
    found = {}
    for line in (HERE / "survivors.md").read_text().splitlines():
        match = re.match(r"- `(\S+)` `(.*?)` `(.*)` -> (true|false): (.+)", line)
        if match:
            found[match.groups()[:4]] = match.group(5)
    return found


class Run:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.part, self.parts = map(int, options.part.split("/"))

    def left(self):
        return self.options.minutes * 60 - (time.monotonic() - self.begin)

    def mutants(self, source):
        return [each for each in source.mutants
                if zlib.crc32(each.words().encode()) % self.parts == self.part - 1]

    def results_of(self, source):
        """{key: how it was killed, or "survived"}, as far as time allows."""
        mark = hashlib.sha256(source.bytes).hexdigest()[:16]
        kept_at = WORK / (pathlib.Path(source.name).stem + ".json")
        kept = json.loads(kept_at.read_text()) if kept_at.exists() else {}
        if kept.get("mark") != mark or self.options.again:
            kept.clear()
            kept.update(mark=mark, results={})
        untried = ("survived", None) if self.options.survivors else (None,)
        todo = [each for each in self.mutants(source)
                if kept["results"].get(str(each.number)) in untried]
        if todo and self.left() > 0:
            folder = WORK / pathlib.Path(source.name).stem
            folder.mkdir(parents=True, exist_ok=True)
            oracles = oracles_of(source.name, compile_mutated(source, SIMULATION, folder), folder)
            for mutant in todo:
                if self.left() <= 0:
                    break
                ended = next(filter(None, (each.run(mutant.number) for each in oracles)),
                             "survived")
                kept["results"][str(mutant.number)] = ended
                print(f"{mutant.words()} (line {mutant.line}): {ended}", flush=True)
                kept_at.write_text(json.dumps(kept, indent=1))
        return kept["results"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--file", default="")
    parser.add_argument("--again", action="store_true", help="whatever was tried before")
    parser.add_argument("--survivors", action="store_true", help="those are tried again")
    options = parser.parse_args()
    try:
        from mutants import Source
    except ImportError as error:
        print(f"mutation: 0 passed, 0 failed, 1 skipped: {error} (pip install tree-sitter "
              f"tree-sitter-cpp)")
        sys.exit(77)
    WORK.mkdir(parents=True, exist_ok=True)
    if not options.list:
        build()
    run, known = Run(options), known_survivors()
    passed = failed = skipped = 0
    for name in FILES:
        if options.file not in name:
            continue
        source = Source(ROOT / name, name, 1)
        mutants = run.mutants(source)
        if options.list:
            for each in mutants:
                print(f"{each.number:4d} {each.words()} (line {each.line})")
            continue
        results = run.results_of(source)
        by, new = collections.Counter(), []
        for each in mutants:
            ended = results.get(str(each.number))
            if ended is None:
                skipped += 1
            elif ended == "survived":
                by["survivors"] += 1
                new += [] if each.key() in known else [each]
            else:
                by[ended.split(":")[0]] += 1
        failed += len(new)
        passed += sum(by.values()) - len(new)
        print(f"{name}: {len(mutants)} mutants, {sum(by.values())} tried: " +
              ", ".join(f"{count} {'' if word == 'survivors' else 'by '}{word}"
                        for word, count in by.most_common()), flush=True)
        for each in new:
            print(f"  survived, and not in survivors.md: {each.words()} (line {each.line})")
    if not options.list:
        print(f"mutation: {passed} passed, {failed} failed, {skipped} skipped (no time was left)")
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
