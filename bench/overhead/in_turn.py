"""Runs two training scripts in turn, a step of each at a time, so that whatever else this machine
does falls on both alike: a ratio is of steps that were neighbours in time. The run that waits for
its turn is stopped by a signal; none of its threads goes on.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pytorch_plugin" / "runs"))
import script_runs  # noqa: E402

STEPS = str(ROOT / "bench/overhead/steps.py")
DEMO = str(ROOT / "bench/demo/train_gpt.py")


class StepByStep:
    """A script that runs a step when it is told to."""

    def __init__(self, command, environment, log):
        notes, out = os.pipe()
        turns, self.turns = os.pipe()
        environment = {**environment, "IN_TURN_OUT": str(out), "IN_TURN_IN": str(turns)}
        self.log = log
        with open(log, "w") as written:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=written, stderr=subprocess.STDOUT,
                                            pass_fds=(out, turns))
        os.close(out)
        os.close(turns)
        self.notes = os.fdopen(notes)
        self.begun = False

    def step(self):
        """One step, and what was noted at its end."""
        if self.begun:
            self.process.send_signal(signal.SIGCONT)
            os.write(self.turns, b".")
        self.begun = True
        line = self.notes.readline()
        if not line:
            raise RuntimeError(f"ended with {self.process.wait()}:\n{open(self.log).read()}")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def end(self):
        os.close(self.turns)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        self.notes.close()


def native(paths, script, *arguments):
    """(command, environment) for in_turn()."""
    return ([paths.python, STEPS, script, *map(str, arguments)],
            script_runs.native_environment(paths))


def with_firn(paths, folder, script, *arguments, environment=None, **options):
    command = script_runs.firn_command(paths, folder, STEPS, script, *arguments, **options)
    return command, {**script_runs.clean_environment(), **(environment or {})}


def in_turn(run, base, steps, folder):
    """[(note at the end of a step of `run`, note at the end of the same step of `base`)], the one
    first and the other first, turn and turn about. (The same step: arithmetic takes as long as its
    numbers make it.)"""
    open_runs, pairs = [], []
    try:
        for name, (command, environment) in (("run", run), ("base", base)):
            open_runs.append(StepByStep(command, environment,
                                        pathlib.Path(folder) / f"{name}.log"))
            open_runs[-1].step()  # with what starts up
        for number in range(1, steps):
            order = (0, 1) if number % 2 else (1, 0)
            notes = {which: open_runs[which].step() for which in order}
            pairs.append((notes[0], notes[1]))
    finally:
        for each in open_runs:
            each.end()
    return pairs


def ratios(pairs, key, warm):
    """The quartiles of the ratios of steps to the base's, without the first `warm`."""
    found = [note[key] / base[key] for note, base in pairs[warm:]]
    return statistics.quantiles(found, n=4, method="inclusive")


def in_step(pairs, key, warm):
    """By how much `key` grew in a step, on average, after the first `warm`."""
    return (pairs[-1][0][key] - pairs[warm - 1][0][key]) / (len(pairs) - warm)


def show(quartiles):
    low, median, high = quartiles
    return f"{median:.3f} ({low:.3f} to {high:.3f})"
