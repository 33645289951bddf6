"""Runs tests of one of PyTorch's own test files, each in a forked child of this process, which has
imported torch and not started CUDA. Prints a line of JSON for each:
{"test", "end": passed | skipped | failed | late | died, "said", "peak": bytes allocated, "seconds"}

    python run_tests.py [--only PATTERN] [--seconds N] [--tests FILE.json] FILE CLASS...

With --tests, {"Class.test": bytes}, only those are run, and where there are bytes, with that
FIRN_BUDGET.
"""

import argparse
import importlib.util
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import unittest

import stand_ins


def said_last(text):
    """What a traceback ends with."""
    lines = [line.strip() for line in text.strip().splitlines()
             if line.strip() and not line.startswith(("To execute this test", "This message can",
                                                      "    python ", "-----"))]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return (errors or lines or [""])[-1][:300]


def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(path))
    # The module's main block would parse our own words.
    sys.argv = [path]
    spec.loader.exec_module(module)
    return module


def in_child(work, seconds):
    """(what work() returned, None), or (None, how the child ended); and what it printed."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.setsid()  # with whatever it starts
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            status = 1
            try:
                answer = json.dumps(work()).encode()
                with os.fdopen(writer, "wb") as pipe:
                    pipe.write(answer)
                status = 0
            except BaseException:
                import traceback
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(status)
        os.close(writer)
        until = time.monotonic() + seconds
        answer, late = b"", False
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                late = True
                break
            got = os.read(reader, 1 << 16)
            if not got:
                break
            answer += got
        os.close(reader)
        if late:
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    if late:
        return None, "late", text
    if status or not answer:
        return None, "died", "status %d: %s" % (status, text[-2000:])
    return json.loads(answer), None, text


def names_in(path, classes):
    module = load(path)
    found = []
    for name in classes:
        cases = getattr(module, name, None)
        if cases is not None:
            found += ["%s.%s" % (name, test)
                      for test in unittest.defaultTestLoader.getTestCaseNames(cases)]
    return found


def run_one(path, name):
    stand_ins.of_older_names()
    module = load(path)
    cases, test = name.split(".")
    outcome = unittest.TestResult()
    begun = time.monotonic()
    unittest.TestSuite([getattr(module, cases)(test)])(outcome)
    seconds = time.monotonic() - begun
    bad = outcome.failures + outcome.errors
    end = "failed" if bad else "skipped" if outcome.skipped else "passed"
    said = bad[0][1] if bad else outcome.skipped[0][1] if outcome.skipped else ""
    if os.environ.get("FIRN_TEST_TRACEBACK"):
        print(said, file=sys.stderr)
    import torch
    peak = max([torch.cuda.memory_stats(device).get("allocated_bytes.all.peak", 0)
                for device in range(torch.cuda.device_count())] or [0]) if end == "passed" else 0
    return {"end": end, "said": said_last(said), "peak": peak, "seconds": round(seconds, 2)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tests")
    parser.add_argument("file")
    parser.add_argument("classes", nargs="+")
    options = parser.parse_args()
    path = os.path.abspath(options.file)
    wanted = None
    if options.tests:
        with open(options.tests) as file:
            wanted = json.load(file)
    stand_ins.import_without_cuda()
    names, ended, text = in_child(lambda: names_in(path, options.classes), options.seconds)
    if ended:
        sys.exit("%s: %s %s" % (path, ended, text))
    for name in names:
        if options.only and not re.search(options.only, name):
            continue
        if wanted is not None and name not in wanted:
            continue

        def work(name=name):
            if wanted and wanted[name]:
                os.environ["FIRN_BUDGET"] = str(wanted[name])
            return run_one(path, name)
        answer, ended, text = in_child(work, options.seconds)
        answer = answer or {"end": ended, "said": said_last(text), "peak": 0, "seconds": 0}
        if os.environ.get("FIRN_TEST_TRACEBACK"):
            print(text, file=sys.stderr)
        print("@" + json.dumps({"test": name, **answer}), flush=True)


if __name__ == "__main__":
    main()
