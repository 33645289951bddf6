"""Makes every call twice on the software GPU, in a process with the native allocator and in one
with Firn's, and prints what came out: call | native | firn.

    python compare.py [--build BUILD] [--state half|all] [--all] [FILE[:CALL]...]

BUILD is a build folder; without it, the Firn that is installed in .venv. --all: also the calls that
answer alike, and whole answers. --state: with Firn, every second block, or every one, is spilled
after every call of torch's.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PYTHON = os.environ.get("FIRN_TEST_PYTHON") or str(ROOT / ".venv/bin/python")
SECONDS = 240


def files():
    """Those with calls: stats_calls.py and the like."""
    helpers = ("_calls", "run_calls")
    return [path for path in sorted(HERE.glob("*_calls.py")) if path.stem not in helpers]


listed = {}  # {file: its calls}: of all files at once, or each would import torch once more


def environment(build=None):
    """The software GPU's, without an allocator asked for."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_", "CUDA_")) and
            name not in ("PYTHONPATH", "LD_PRELOAD")}
    if build:
        made = subprocess.run([sys.executable, str(ROOT / "pytorch_plugin/dev_site.py"), build],
                              capture_output=True, text=True, check=True).stdout
        kept.update(line.split("=", 1) for line in made.split())
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    found = subprocess.run(
        [PYTHON, "-c", "from firn._libraries import find_library as f\n"
                       "print(f('software/libcudart.so.13'), f('software/libcuda.so.1'), sep=':')"],
        env=kept, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
    return {**kept, "LD_PRELOAD": found, "FIRN_DEVICE": "software",
            "FIRN_GPU_MEMORY": str(1 << 30)}


def calls_of(path, settings):
    """{call: null, or what its process needs}"""
    if str(path) not in listed:
        words = [PYTHON, str(HERE / "run_calls.py"), "--list", *map(str, {*files(), path})]
        done = subprocess.run(words, env=settings, capture_output=True, text=True, check=True)
        listed.update(json.loads(done.stdout))
    return listed[str(path)]


def run(path, names, settings, need=None, backend=None):
    """{call: answer or error} of one process, and of others from where one died."""
    found = {}
    need = need or {"conf": "", "environment": {}}
    conf = ",".join(filter(None, (backend, need["conf"])))
    settings = {**settings, **need["environment"]}
    if conf:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = conf
    while names:
        try:
            done = subprocess.run([PYTHON, str(HERE / "run_calls.py"), str(path), *names],
                                  env=settings, capture_output=True, text=True, timeout=SECONDS,
                                  stdin=subprocess.DEVNULL)
            output, end = done.stdout, "ended with status %d: %s" % (
                done.returncode, done.stderr.strip()[-300:])
        except subprocess.TimeoutExpired as late:
            output, end = (late.stdout or b"").decode(), "did not come back"
            done = None
        running = None
        for line in output.splitlines():
            if not line.startswith("@"):
                continue
            said = json.loads(line[1:])
            if "begin" in said:
                running = said["begin"]
            else:
                found[said.pop("call")] = said
                running = None
        if running:
            found[running] = {"error": end}
        elif done is None or done.returncode != 0:
            left = [name for name in names if name not in found]
            found[left[0] if left else names[-1]] = {"error": end}
        names = [name for name in names if name not in found]
    return found


STATES = {"": "", "half": "", "all": "firn_test_adversarial:1"}  # what is spilled: how


def answers(path, settings, names=None, backend=None, state=""):
    """{call: its answer} with one allocator, while half, or all, of its memory is spilled."""
    settings = {**settings, "FIRN_CALLS_STATE": state}
    words = ",".join(filter(None, (backend, STATES[state])))
    listed = {name: need for name, need in calls_of(path, settings).items()
              if not names or name in names}
    found = run(path, [name for name, need in listed.items() if not need], settings,
                backend=words)
    for name, need in listed.items():
        if need:
            found.update(run(path, [name], settings, need, words))
    return {name: found[name] for name in listed}


def compare(path, settings, names=None, state="", native=None):
    """[(call, native's answer, Firn's)]; `native`: all of them, where they are known."""
    native = native or answers(path, settings, names)
    firn = answers(path, settings, names, "backend:firn", state)
    return [(name, native[name], firn[name]) for name in firn]


def agrees(native, firn):
    """Firn does what native does; where native fails, that is no example."""
    return "error" in native or native == firn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--state", choices=list(STATES), default="")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    settings = environment(options.build)
    wanted = {}
    for word in options.files or map(str, files()):
        file, _, name = word.partition(":")
        wanted.setdefault(file, []).extend([name] if name else [])
    same = total = 0
    for file, names in wanted.items():
        path = pathlib.Path(file).resolve()
        for name, native, firn in compare(path, settings, names, options.state):
            total += 1
            alike = agrees(native, firn)
            same += alike
            if options.all or not alike or "error" in native:
                most = None if options.all else 300
                mark = "same" if alike else "DIFFERS"
                print("%s:%s | %s\n  native | %s\n  firn   | %s" % (
                    path.stem[:-6], name[5:], mark, json.dumps(native)[:most],
                    json.dumps(firn)[:most]), flush=True)
    print("%d of %d calls answered alike" % (same, total))


if __name__ == "__main__":
    main()
