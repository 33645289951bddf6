"""Runs a script on the software GPU, natively or with Firn, and reads what it printed, what Firn's
statistics say, and what the software GPU counted by itself. For tests and benches; not installed."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = ROOT / "tests/torch/scripts"  # where a script is looked for that is named by itself
COUNTS = HERE / "counts"  # holds the sitecustomize.py that writes down the software GPU's counts
DEVICE_MEMORY = 8 << 30
GRANULE = 2 << 20
TIMEOUT_S = 600
# Options of `firn run` under which a use of memory that Firn does not see is found (firn_command's
# and run_with_firn's `options`; check_nets() looks at the run).
NETS = ("--verify", "--guard", "--poison")


@dataclasses.dataclass
class Paths:
    firn: str        # the command
    python: str
    libraries: list  # the software GPU's, to be preloaded

    @staticmethod
    def find():
        """The paths, or why there are none. FIRN_TEST_BUILD names a build folder to use instead of
        what is installed in .venv."""
        build = os.environ.get("FIRN_TEST_BUILD")
        if build:
            build = ROOT / build
            dev_site = [ROOT / "pytorch_plugin/dev_site.py", build]
            shown = subprocess.run([sys.executable, *dev_site], capture_output=True, text=True,
                                   check=True)
            os.environ.update(line.split("=", 1) for line in shown.stdout.splitlines())
            python = os.environ.get("FIRN_TEST_PYTHON") or str(ROOT / ".venv/bin/python")
            return Paths(str(build / "allocator/command/firn"), python,
                          [build / "backing/gpu/software/cudart/libcudart.so.13",
                           build / "backing/gpu/software/nccl/libnccl.so.2",
                           build / "backing/gpu/software/libcuda.so.1"])
        firn = os.environ.get("FIRN_TEST_BINARY") or str(ROOT / ".venv/bin/firn")
        if not pathlib.Path(firn).exists():
            return f"no firn at {firn} (bench/setup.sh makes it; FIRN_TEST_BINARY names another)"
        python = str(ROOT / ".venv/bin/python")
        probe = subprocess.run(
            [python, "-c", "import firn, os; print(os.path.dirname(firn.__file__))"],
            capture_output=True, text=True, env=clean_environment(), cwd="/")
        if probe.returncode != 0:
            return f"{python} has no firn: {probe.stderr.strip().splitlines()[-1:]}"
        software = pathlib.Path(probe.stdout.strip()) / "lib" / "software"
        libraries = [software / name for name in
                     ("libcudart.so.13", "libnccl.so.2", "libcuda.so.1")]
        for each in libraries:
            if not each.exists():
                return f"{each} is missing"
        return Paths(firn, python, libraries)


def clean_environment():
    kept = {name: value for name, value in os.environ.items()
            if (not name.startswith(("FIRN_", "PYTORCH_")) or name == "FIRN_BUILD") and
            name != "LD_PRELOAD"}
    # (MKL would use fewer threads when it sees fit, and they round differently.)
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "MKL_DYNAMIC": "FALSE"}


@dataclasses.dataclass
class Run:
    status: int
    text: str          # standard output and error
    seconds: float
    counts: dict       # the software GPU's, None where the process was killed
    stats: dict        # Firn's, None for a native run

    def values(self, word):
        """What follows `word` in the lines that begin with it."""
        return [line[len(word) + 1:] for line in self.text.splitlines()
                if line.startswith(word + " ")]

    def results(self):
        """Everything that has to be the same in every run: losses and the parameters' digest."""
        return {"losses": self.values("loss"), "sha256": self.values("sha256")}

    def peak(self):
        (line,) = self.values("peak")
        return int(line)

    def budget(self, fraction):
        """That part of the peak, in whole granules."""
        return int(self.peak() * fraction) // GRANULE * GRANULE

    def device(self):
        (device,) = self.stats["devices"]
        return device


def counting(environment, folder):
    """`environment`, in which Python writes the software GPU's counts to folder/counts.json."""
    python_path = [str(COUNTS), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(python_path),
            "TEST_COUNTS_FILE": str(folder / "counts.json")}


def read_json(path):
    return json.loads(path.read_text()) if path.exists() and path.stat().st_size else None


def finish(command, environment, folder, **options):
    """Runs `command` to its end."""
    begin = time.monotonic()
    done = subprocess.run(command, env=counting(environment, folder), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=TIMEOUT_S, **options)
    return Run(done.returncode, done.stdout, time.monotonic() - begin,
               read_json(folder / "counts.json"), read_json(folder / "stats.json"))


def script_command(paths, script, arguments):
    if script.endswith(".py"):
        return [paths.python, str(SCRIPTS / script), *map(str, arguments)]
    return [paths.python, "-c", script, *map(str, arguments)]


def native_environment(paths, memory=DEVICE_MEMORY):
    return {**clean_environment(), "LD_PRELOAD": ":".join(map(str, paths.libraries)),
            "FIRN_DEVICE": "software", "FIRN_GPU_MEMORY": str(memory)}


def run_native(paths, folder, script, *arguments, memory=DEVICE_MEMORY, environment=None):
    return finish(script_command(paths, script, arguments),
                  {**native_environment(paths, memory), **(environment or {})}, folder)


def firn_command(paths, folder, script, *arguments, budget, dirs=(), host="64MiB",
                 memory=DEVICE_MEMORY, options=()):
    command = [paths.firn, "run", "--device", "software", "--gpu-memory", str(memory),
               "--budget", str(budget), "--stats", str(folder / "stats.json")]
    if host:
        command += ["--host", str(host)]
    for each in dirs:
        command += ["--dir", str(each)]
    return [*command, *options, "--", *script_command(paths, script, arguments)]


def run_with_firn(paths, folder, script, *arguments, environment=None, prefix=(), preexec_fn=None,
                  **options):
    """`prefix`: words before the command (prlimit ...)."""
    command = firn_command(paths, folder, script, *arguments, **options)
    return finish([*prefix, *command], {**clean_environment(), **(environment or {})}, folder,
                  preexec_fn=preexec_fn)


def check_same(run, native):
    """The run with Firn ended like the native one, to the last bit."""
    assert run.status == 0, run.text
    assert run.results() == native.results(), run.text
    assert run.results()["losses"] and len(run.results()["sha256"]) == 1


def check_budget(run, budget):
    """Firn's own figure and the software GPU's, which knows nothing of Firn."""
    device = run.device()
    assert device["budget_bytes"] <= budget
    assert device["peak_device_bytes"] <= budget
    assert run.counts["used_bytes_peak"] <= budget, run.counts
    assert run.counts["frame_bytes_peak"] > 0, "Firn took no frames: was it there at all?"
    assert device["lost_blocks"] == 0


def check_nets(run):
    """The run was under NETS, and what left was what its copies say."""
    assert "UNSEEN" not in run.text, run.text
    for device in run.stats["devices"]:
        assert device["unseen_writes"] == 0
    assert sum(device["verified_bytes"] for device in run.stats["devices"]) > 0


def measure_programs(command, options, programs, measure, report):
    """The body of a bench's command: measure(paths, folder, name) of each program, or of
    `options.only`, then report(name, found), or with `options.json` all at the end."""
    paths = Paths.find()
    if isinstance(paths, str):
        sys.exit(f"{command}: {paths}")
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    document = {}
    for name in [options.only] if options.only else programs:
        with tempfile.TemporaryDirectory(dir=build) as folder:
            document[name] = measure(paths, folder, name)
        if not options.json:
            report(name, document[name])
    if options.json:
        print(json.dumps(document, indent=1))
