"""What every bench is given: where to write, how to run a program, and where it says what it left
out."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
SOFTWARE = BUILD / "backing/gpu/software/libcuda.so.1"


class LeftOut(Exception):
    """Why a bench, or a part of it, did not run."""


@dataclasses.dataclass
class Context:
    quick: bool
    folder: pathlib.Path               # scratch, on the file system that is measured
    left_out: list[str] = dataclasses.field(default_factory=list)

    def run(self, words, seconds: float, alone: bool = False, **environment: str) -> str:
        """What the program printed. `alone`: `environment` is all of its environment."""
        words = [str(each) for each in words]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds,
                                  env=environment if alone else {**os.environ, **environment})
        except subprocess.TimeoutExpired:
            raise LeftOut(f"{pathlib.Path(words[0]).name} took more than {seconds:.0f} s") from None
        except OSError as error:
            raise LeftOut(f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            raise LeftOut(f"{' '.join(words[:3])}: status {done.returncode}: {said}")
        return done.stdout

    def google(self, program, *words: str, **environment: str) -> dict[str, list[dict]]:
        """A program of Google Benchmark's: its repetitions by name, times in nanoseconds."""
        said = self.run([program, *words, "--benchmark_format=json",
                         f"--benchmark_repetitions={3 if self.quick else 9}",
                         f"--benchmark_min_time={0.02 if self.quick else 0.2}"], 1200,
                        **environment)
        found: dict[str, list[dict]] = {}
        for each in json.loads(said)["benchmarks"]:
            if each["run_type"] == "iteration":
                name = each["run_name"].replace("/real_time", "").replace("/manual_time", "")
                found.setdefault(name, []).append(each)
        return found


def scratch(where: pathlib.Path) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="firn-bench-", dir=where)
