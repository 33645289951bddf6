"""The suite that bench/gpu/run.sh runs: which steps there are, their order, what they run on."""

import argparse
import dataclasses
import datetime
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import building
import cost_steps
import driver_steps
import library_steps
import machine
import outside_steps
import preload_steps
import question_steps
import torch_steps
from results import Cut, Failed, Results, Skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pytorch_plugin"))
import dev_site  # noqa: E402

GIB = 1 << 30
# What the steps stand on runs first, whatever --only says.
ALWAYS = ("machine", "build")
# Most telling first: a run may be cut off.
ORDER = (
    "machine", "asked", "asked-lost", "build", "conformance", "beliefs", "torch-adversarial",
    "torch-verify", "costs-mapping", "costs-access", "torch-assert", "torch-by-name", "torch-side-stream",
    "costs-driver", "cycles", "torch-bits", "torch-triton", "preload-asked", "torch-large",
    "torch-graph-across", "preload-programs", "preload-pytorch", "costs-calls", "costs-spills",
    "torch-libraries", "frameworks", "torch-compile", "torch-graphs", "torch-nccl", "torch-flash",
    "torch-cudnn", "torch-recipes", "torch-files", "torch-scripts", "torch-large-plain", "torch-edge",
    "preload-runtime", "preload-cublas",
    "costs-launches", "torch-compile-graphs", "preload-sanitizer",
)
# Name, title, most seconds on a GPU, work.
STEPS = sorted((
    ("machine", "what this machine is", 240, lambda suite, step: look(suite, step)),
    ("build", "Firn, built here or carried", 300, lambda suite, step: build(suite, step)),
    *question_steps.STEPS, *driver_steps.STEPS, *torch_steps.STEPS,
    *outside_steps.STEPS, *preload_steps.STEPS, *cost_steps.STEPS, *library_steps.STEPS,
), key=lambda each: ORDER.index(each[0]))


@dataclasses.dataclass
class Suite:
    """What a step may ask for."""
    options: argparse.Namespace
    results: Results
    work: pathlib.Path  # for files that need not stay
    found: dict = dataclasses.field(default_factory=dict)    # machine.describe's, and torch
    build: building.Build = None

    root = ROOT
    python = sys.executable

    @property
    def software(self):
        return self.options.device == "software"

    def needs_build(self):
        if self.build is None:
            raise Skip("there is no build")

    def needs_torch(self):
        self.needs_build()
        if not self.found.get("torch"):
            raise Skip(self.found.get("torch_why") or "this Python has no torch")
        why = self.build.misfit(self.found["torch"]["torch"])
        if why:
            raise Skip(why)

    def site(self):
        return dev_site.make_site(str(self.build.folder))

    def environment(self, **more):
        """Of a program without Firn, on the machine's driver or the software GPU."""
        kept = machine.on_one_gpu()
        if self.software:
            kept = machine.without_firn()
            kept.update(FIRN_GPU_MEMORY=str(self.options.gpu_memory),
                        LD_LIBRARY_PATH=str((self.build / "backing/gpu/software").resolve()))
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def python_environment(self, **more):
        """Of PyTorch with its own allocator."""
        kept = machine.without_firn() if self.software else machine.on_one_gpu()
        kept = {**kept, **self.site(), "PYTHONDONTWRITEBYTECODE": "1",
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1"}
        if self.software:
            libraries = [self.build / "backing/gpu/software/cudart/libcudart.so.13",
                         self.build / "backing/gpu/software/libcuda.so.1"]
            kept.update(FIRN_DEVICE="software", FIRN_GPU_MEMORY=str(self.options.gpu_memory),
                        LD_PRELOAD=":".join(map(str, libraries)))
        return {**kept, **more}

    def firn_run(self, stats, budget=None, host=None, dirs=()):
        """(words before the command, environment)."""
        words = [self.build / "allocator/command/firn", "run", "--stats", stats]
        if self.software:
            words += ["--device", "software", "--gpu-memory", self.options.gpu_memory]
        if budget:
            words += ["--budget", budget]
        if host:
            words += ["--host", host]
        for each in dirs:
            words += ["--dir", each]
        kept = self.python_environment()
        for name in ("FIRN_DEVICE", "FIRN_GPU_MEMORY", "LD_PRELOAD"):
            kept.pop(name, None)
        return [*words, "--"], kept

    def kernels(self, name="kernels.fatbin"):
        """A module for the GPU in use: built here, carried, or the software GPU's."""
        if self.software:
            own = {"kernels.fatbin": "tests/gpu/firn_program_kernels.so",
                   "no_kernel.fatbin": "bench/preload/libno_kernel.so"}
            return self.build / own[name]
        for folder in (self.work / "kernels", ROOT / "bench/carry/kernels"):
            if (folder / name).exists():
                return folder / name
        raise Skip(f"no nvcc here, and bench/carry/kernels holds no {name}")

    def host_bytes(self):
        """Pinned host memory that a run may take."""
        return self.options.host_memory or machine.host_memory() * 6 // 10

    def spill_dirs(self, least_bytes):
        """Where spill files go: nowhere, where there is no room."""
        folder = pathlib.Path(self.options.dir) if self.options.dir else self.work
        if shutil.disk_usage(folder).free < least_bytes:
            return []
        (folder / "spill").mkdir(exist_ok=True)
        return [folder / "spill"]


def look(suite, step):
    """Every later step reads suite.found."""
    found = suite.found
    found.update(machine.describe(ROOT, suite.results.folder))
    suite.results.head["machine"] = found
    told = machine.torch_of(sys.executable)
    if "why" in told:
        found["torch_why"] = f"{sys.executable} has no torch: {told['why']}"
        step.left_out("torch", found["torch_why"])
    else:
        found["torch"] = told
    if not found["nvcc"]:
        step.left_out("nvcc", "no nvcc in PATH or /usr/local/cuda/bin: carried kernels are used")
    step.figure("notes", machine.notes_of(found, suite.software))

def build(suite, step):
    suite.build = None
    with_torch = "torch" in suite.found
    try:
        suite.build = building.find(step, ROOT, suite.options, with_torch)
    finally:
        nvcc = machine.find_nvcc()
        if nvcc and not suite.software:
            try:
                step.run(["bash", ROOT / "bench/gpu/kernels.sh", nvcc, suite.work / "kernels"],
                         building.environment())
            except Failed as words:
                step.left_out("kernels", f"{words}: carried ones are used")
    step.figure("build", {"folder": str(suite.build.folder), "how": suite.build.how})
    why = suite.found.get("torch_why") or suite.build.misfit(suite.found["torch"]["torch"])
    if why:
        step.left_out("torch", why)
    try:
        doctor = step.run([suite.build / "allocator/command/firn", "doctor", "--json", "--dir",
                           suite.spill_dirs(0)[0]], suite.environment(**suite.site()), 60, ok=None)
        (suite.results.folder / "doctor.json").write_text(doctor.text)
    except Cut as words:
        step.left_out("firn doctor", str(words))


def arguments():
    parser = argparse.ArgumentParser(prog="bench/gpu/run.sh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="all of it [10]")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build-gpu/results",
                        help="where results.json, log.txt and doctor.json go [build-gpu/results]")
    parser.add_argument("--device", choices=("auto", "software"), default="auto",
                        help="software: the dry run, small, on the GPU in software")
    parser.add_argument("--limits", type=float, metavar="FACTOR",
                        help="each step's time limit (--list) times this [1; dry run: 4]")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="the steps whose names begin so; may be given again")
    parser.add_argument("--skip", action="append", metavar="NAME", default=[],
                        help="not those whose names begin so")
    parser.add_argument("--list", action="store_true", help="the steps, and nothing is run")
    parser.add_argument("--build", type=pathlib.Path, help="a build folder to use as it is")
    parser.add_argument("--build-folder", default="build-gpu/build", help=argparse.SUPPRESS)
    parser.add_argument("--wrap-mode", default="nodownload", help=argparse.SUPPRESS)
    parser.add_argument("--dir", help="where spill files go [a folder beside the results]")
    parser.add_argument("--gpu-memory", type=size, default=8 * GIB,
                        help="the software GPU's [8GiB]")
    parser.add_argument("--host-memory", type=size,
                        help="pinned host memory of a run [six tenths of what is available]")
    parser.add_argument("--model", default="auto", help="of the large GPT: " + ", ".join(
        torch_steps.MODELS) + ", or auto: as large as fits [auto]")
    options = parser.parse_args()
    if not 0 < options.minutes <= 24 * 60:
        parser.error(f"--minutes {options.minutes}: not a number of minutes")
    if options.limits is not None and not 0 < options.limits <= 1000:
        parser.error(f"--limits {options.limits}: not a factor")
    if options.model not in (*torch_steps.MODELS, "auto"):
        parser.error(f"--model {options.model}: not one of {', '.join(torch_steps.MODELS)}, auto")
    names = [name for name, *_ in STEPS]
    for word in (options.only or []) + options.skip:
        if not any(name.startswith(word) for name in names):
            parser.error(f"{word}: no step's name begins so (--list)")
    if options.build and not options.build.is_dir():
        parser.error(f"--build {options.build}: not a folder")
    if options.build:
        options.build = options.build.resolve()
    options.out = options.out.resolve()
    return options


def size(word):
    units = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    number = word.rstrip("BiKMG")
    try:
        return int(float(number) * units[word[len(number):]])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{word!r} is not a size such as 8GiB") from None


def wanted(name, options):
    if name in ALWAYS:
        return True
    if any(name.startswith(word) for word in options.skip):
        return False
    return not options.only or any(name.startswith(word) for word in options.only)


def in_order(steps, software):
    """The software GPU is a part of the build."""
    return sorted(steps, key=lambda each: software and each[0] not in ALWAYS)


def show(row):
    words = row["why"] or "; ".join(f"{part['name']}: {part['why']}"
                                    for part in row.get("left_out", []))
    print(f"{row['status']:>8}  {row['name']:24} {row['seconds']:6.1f} s  {words}", flush=True)


def main():
    options = arguments()
    if options.list:
        for name, title, limit_s, _ in STEPS:
            print(f"{name:24} {limit_s:4} s  {title}")
        return 0
    driver, why = (None, "") if options.device == "software" else machine.ask_driver()
    if options.device != "software" and driver is None:
        print(f"run.sh: no GPU here ({why}); --device software makes the dry run", file=sys.stderr)
        return 2
    head = {"suite": "bench/gpu", "device": options.device,
            "begun": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "arguments": sys.argv[1:], "minutes": options.minutes, "machine": {}}
    results = Results(options.out, head, options.minutes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (ROOT / "build-gpu").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=ROOT / "build-gpu") as work:
        suite = Suite(options, results, pathlib.Path(work), {"driver": driver})
        chosen = in_order([each for each in STEPS if wanted(each[0], options)], suite.software)
        # (Without a GPU the processor computes, and others may want it too.)
        factor = options.limits or (4 if options.device == "software" else 1)
        rows = [(results.add(name, title, factor * limit_s), work)
                for name, title, limit_s, work in chosen]
        try:
            for step, work_of in rows:
                show(results.do(step, lambda step, work_of=work_of: work_of(suite, step)))
        finally:
            results.stop()
            results.write()
    counts = results.count()
    print(", ".join(f"{number} {status}" for status, number in sorted(counts.items())) +
          f": {results.path}")
    return 1 if counts.get("failed") or counts.get("cut") else 0


if __name__ == "__main__":
    sys.exit(main())
