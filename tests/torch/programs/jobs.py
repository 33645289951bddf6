"""Jobs that run a random program (program.py) with Firn: drawn from a seed, run, and judged.

    jobs.py SEED [KIND] [--spoil STEP]      one job: what the line of a failure replays

Kinds: plain (nothing fails: every bit is right, nothing is refused, nothing is left), driver
(calls of the driver's fail at random), disk (reads and writes of the spill file fail, are short,
or give a bit that another read gives right: nothing is lost, but an ill disk takes no more for a
while), lost (a bit is turned as it is written: what cannot be had is said to be lost), full (the
spill file has a small limit), killed (at a random point)."""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "pytorch_plugin/runs"))

import script_runs  # noqa: E402

MIB = 1 << 20
KINDS = ("plain", "driver", "disk", "lost", "full", "killed")
TIMEOUT_S = 600
DRIVER_ENTRIES = (("cuMemCreate", 2), ("cuMemMap", 2), ("cuMemMap", 999), ("cuMemSetAccess", 999),
                  ("cuMemUnmap", 999), ("cuMemRelease", 999), ("cuMemAddressReserve", 2),
                  ("cuMemHostRegister", 2), ("cuMemcpyHtoDAsync", 999),
                  ("cuMemcpyDtoHAsync", 999))


@dataclasses.dataclass
class Job:
    seed: int
    kind: str
    threads: int
    steps: int
    bytes: int       # that each thread holds at most
    small: int       # of that in blocks that stay on the device
    largest: int     # of one tensor
    budget: int
    host: int
    environment: dict
    faults: str      # the driver's
    kill_after_s: float
    limits: list     # of the program's own: --refusals, ...

    def words(self):
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        part = 100 * self.budget // (self.threads * self.bytes)
        return (f"{self.kind}: {self.threads} threads x {self.steps} steps, "
                f"{self.bytes // MIB} MiB each, budget {self.budget // MIB} MiB ({part} %), "
                f"host {self.host // MIB} MiB, "
                f"{settings} {self.faults}").rstrip()


def draw_job(seed, kind=None, steps=500):
    random_ = random.Random(seed)
    drawn = random_.choices(KINDS, (8, 4, 3, 1, 1, 3))[0]
    kind = kind or drawn
    threads = 1 + random_.randrange(4)
    held = (96 + random_.randrange(96)) * MIB
    largest = (2 + random_.randrange(4)) * MIB
    # What the threads' operators use at once fits.
    budget = max(int(threads * held * (0.15 + 0.45 * random_.random())),
                 threads * (10 * largest + 12 * MIB)) // (2 * MIB) * 2 * MIB
    environment = {
        "FIRN_STORE": "threads" if kind in ("disk", "lost") else random_.choice(
            ("io_uring", "threads", "automatic")),
        "FIRN_VERIFY": random_.choice(("off", "off", "host", "all")),
        "FIRN_ENCRYPT": random_.choice("0001"),
        "FIRN_POLICY": random_.choice(("age", "lifetime")),
        "FIRN_DEPTH": str(random_.choice((1, 4, 32))),
        "FIRN_PIECE": f"{random_.choice((2, 4, 8))}MiB",
        "FIRN_WATCH": random_.choice(("0", "0.5", "0.9")),
        "FIRN_PLACES": random_.choice("01"),
        "FIRN_TEST_ADVERSARIAL": random_.choice("0000001"),
        "FIRN_TEST_POISON": random_.choice("0001"),
        "OMP_NUM_THREADS": "1"}
    faults, limits = "", []
    if kind == "driver":
        entries = random_.sample(DRIVER_ENTRIES, 1 + random_.randrange(3))
        faults = ",".join(f"{entry}={random_.choice((0.002, 0.01, 0.03))}:{error}"
                          for entry, error in dict(entries).items())
    if kind == "disk":
        rates = [random_.choice((0, 0.002, 0.01)) for _ in range(4)]
        environment["BAD_DISK"] = ":".join(map(str, (seed, *rates, 0)))
        environment["FIRN_IO_PATIENCE"] = "20s"
    if kind == "lost":
        environment["BAD_DISK"] = f"{seed}:0:0:0:0:{random_.choice((0.005, 0.02))}"
    if kind == "full":
        environment["FIRN_STORE_SIZE"] = f"{random_.choice((8, 16, 32))}MiB"
    if kind not in ("plain", "killed"):
        limits.append("--refusals")
    return Job(seed, kind, threads, steps, held, budget // (8 * threads), largest, budget,
               (16 + random_.randrange(48)) * MIB, environment, faults,
               2 + 8 * random_.random(), limits)


@dataclasses.dataclass
class Outcome:
    name: str          # right, refused, lost, killed; wrong, leaked, failed are failures
    counts: dict
    text: str
    stats: dict
    seconds: float

    def failed(self):
        return self.name in ("wrong", "leaked", "failed")

    def of_devices(self, name):
        return sum(each[name] for each in self.stats.get("devices", []))


def bad_disk(folder):
    """The library that makes disks fail (bad_disk.c)."""
    library = pathlib.Path(folder) / "bad_disk.so"
    if not library.exists():
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", str(library),
                        str(HERE / "bad_disk.c"), "-ldl"], check=True)
    return str(library)


def command_of(paths, folder, job, spill, more=()):
    program = [str(job.seed), str(job.threads), str(job.steps), str(job.bytes), str(job.small),
               str(job.largest), *job.limits, *more]
    if job.faults:
        program += ["--faults", job.faults]
    return [paths.firn, "run", "--device", "software", "--gpu-memory", "4GiB", "--budget",
            str(job.budget), "--stats", str(folder / "stats.json"), "--host", str(job.host),
            "--dir", str(spill), "--", paths.python, str(HERE / "program.py"), *program]


def run_job(paths, job, folder, more=()):
    """The job's Outcome. `folder`: an empty one, on a disk."""
    spill = folder / "spill"
    spill.mkdir()
    environment = {**script_runs.clean_environment(), **job.environment}
    if "BAD_DISK" in environment:
        environment["LD_PRELOAD"] = bad_disk(folder)
    begin = time.monotonic()
    process = subprocess.Popen(command_of(paths, folder, job, spill, more), env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text = process.communicate(
            timeout=job.kill_after_s if job.kind == "killed" else TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL if job.kind == "killed" else signal.SIGABRT)
        text = process.communicate()[0]
        if job.kind != "killed":
            text += f"\nstill running after {TIMEOUT_S} s"
    done = [line for line in text.splitlines() if line.startswith("done {")]
    counts = json.loads(done[-1][5:]) if done else {}
    stats = script_runs.read_json(folder / "stats.json") or {}
    name = judge(job, process.returncode, counts, stats, text)
    if list(spill.iterdir()) and name != "wrong":
        name, text = "leaked", text + f"\nleft behind: {list(spill.iterdir())}"
    return Outcome(name, counts, text, stats, time.monotonic() - begin)


def judge(job, status, counts, stats, text):
    devices = stats.get("devices", [])
    lost = sum(each["lost_blocks"] for each in devices)
    if status == 9 or "WRONG" in text or any(each["unseen_writes"] for each in devices):
        return "wrong"
    if job.kind == "killed" and status == -signal.SIGKILL:
        return "killed"
    if job.kind == "lost" and status == 2 and not counts and "(a trial block of " in text:
        return "refused"  # the directory is tried when it is opened: bytes were changed already then
    if not counts or not devices or status not in (0, 1):
        return "failed"
    if any(each["peak_device_bytes"] > job.budget for each in devices):
        return "failed"
    if lost or counts["lost"]:
        # Loudly, where bytes on the disk were changed, and nowhere else.
        said = status == 1 and "LOST" in text
        return "lost" if job.kind == "lost" and said else "failed"
    if status != 0 and job.kind != "driver":
        return "failed"
    if counts["refused"]:
        return "refused" if job.limits else "failed"
    if counts["left"] is not None and counts["left"] != counts["before"]:
        return "leaked"
    return "right"


def replay(job, spoil=None):
    return (f".venv/bin/python tests/torch/programs/jobs.py {job.seed} {job.kind} "
            f"--steps {job.steps}" + (f" --spoil {spoil}" if spoil is not None else ""))


def spill_parent():
    build = script_runs.ROOT / "build"
    build.mkdir(exist_ok=True)
    return build


def run_seed(paths, seed, kind=None, steps=500, more=()):
    """(Job, Outcome) in a folder that is removed."""
    job = draw_job(seed, kind, steps)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="random-", dir=spill_parent()))
    try:
        return job, run_job(paths, job, folder, more)
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--spoil", type=int)
    options = parser.parse_args()
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        sys.exit(paths)
    more = [] if options.spoil is None else ["--spoil", str(options.spoil)]
    job, outcome = run_seed(paths, options.seed, options.kind, options.steps, more)
    print(outcome.text.rstrip()[-6000:])
    print(job.words())
    print(f"{outcome.name} after {outcome.seconds:.1f} s: "
          f"{outcome.of_devices('spilled_bytes')} bytes left, "
          f"{outcome.of_devices('faulted_bytes')} came back; {json.dumps(outcome.counts)}")
    if outcome.failed():
        print("replay:", replay(job, options.spoil))
    sys.exit(1 if outcome.failed() else 0)


if __name__ == "__main__":
    main()
