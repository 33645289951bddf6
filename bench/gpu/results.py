"""What a run found, written to results.json after each step, so that a run that is cut off still
tells; and the steps' commands, each under a time limit."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAIL = 4000  # characters of a command's output that are kept of what failed


class Skip(Exception):
    """A step that cannot be done here, and why."""


class Cut(Exception):
    """A step that ran out of its time."""


class Failed(Exception):
    """A step whose command ended otherwise than it should."""


@dataclasses.dataclass
class Done:
    rc: int
    text: str  # standard output and error
    seconds: float


class Step:
    """One row of results.json."""

    def __init__(self, results, name, title, limit_s):
        self.results, self.limit_s, self.ends = results, limit_s, 0.0
        self.row = {"name": name, "title": title, "status": "not reached", "rc": None,
                    "seconds": 0.0, "limit_s": limit_s, "why": "", "checks": [], "figures": {}}

    def figure(self, name, value):
        self.row["figures"][name] = value

    def check(self, name, ok, detail=""):
        """Something that has to be so; the step fails where it is not."""
        self.row["checks"].append({"name": name, "ok": bool(ok), "detail": str(detail)})
        return ok

    def left_out(self, name, why):
        """A part of the step that was not done."""
        self.row.setdefault("left_out", []).append({"name": name, "why": why})

    def time_left(self):
        return self.ends - time.monotonic()

    def run(self, command, environment=None, limit_s=None, ok=(0,), cwd=None):
        """Runs `command` to its end, and all that it started with it. Cut and Failed where it does
        not end well; `ok`: the statuses that are well, None for any."""
        limit = self.time_left() if limit_s is None else min(limit_s, self.time_left())
        if limit <= 1:
            raise Cut(f"no time was left for {shown(command)}")
        begin = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], env=environment, cwd=cwd,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        with self.results.current(process):
            try:
                text, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                text = end_group(process)
                self.log(command, "cut", text)
                raise Cut(f"{shown(command)}: cut off after {limit:.0f} s") from None
        self.log(command, process.returncode, text)
        self.row["rc"] = process.returncode
        if ok is not None and process.returncode not in ok:
            said = text.strip().splitlines() or ["nothing was said"]
            raise Failed(f"{shown(command)}: status {process.returncode}: {said[-1][:300]}")
        return Done(process.returncode, text, time.monotonic() - begin)

    def log(self, command, rc, text):
        self.row["output"] = text[-TAIL:]
        with open(self.results.log, "a", encoding="utf-8") as out:
            out.write(f"== {self.row['name']}: {shown(command, 400)}\n{text.rstrip()}\n-- {rc}\n")


def at_once(step, most, names, work):
    """`work` for each of the names, `most` of them at a time. One that cannot be done is left out, one
    that does not come to its end is a check that failed."""
    def one(name):
        try:
            work(name)
        except Skip as why:
            step.left_out(name, str(why))
        except (Failed, Cut) as words:
            step.check(f"{name}: ran to its end", False, words)
    with concurrent.futures.ThreadPoolExecutor(most) as pool:
        list(pool.map(one, names))


def shown(command, most=160):
    words = " ".join(str(word) for word in command)
    return words if len(words) <= most else words[:most] + " ..."


def end_group(process):
    """Ends a process and its children, and reads what they had said."""
    for sent, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        try:
            return process.communicate(timeout=patience)[0] or ""
        except subprocess.TimeoutExpired:
            continue
    return ""


class Results:
    def __init__(self, folder, head, minutes):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path, self.log = self.folder / "results.json", self.folder / "log.txt"
        self.log.write_text("")
        self.begin = time.monotonic()
        self.ends = self.begin + 60 * minutes
        self.head, self.steps, self.running = head, [], set()

    def add(self, name, title, limit_s):
        self.steps.append(Step(self, name, title, limit_s))
        return self.steps[-1]

    @contextlib.contextmanager
    def current(self, process):
        self.running.add(process)
        try:
            yield
        finally:
            self.running.discard(process)

    def do(self, step, work):
        """Runs a step: whatever comes, a row says how it ended."""
        begin, row = time.monotonic(), step.row
        step.ends = min(begin + step.limit_s, self.ends)
        row["status"] = "running"
        self.write()
        try:
            if self.ends - begin < 2:
                raise Skip("no time was left: --minutes")
            work(step)
            bad = [check["name"] for check in row["checks"] if not check["ok"]]
            row["status"], row["why"] = ("failed", "not so: " + "; ".join(bad)) if bad else (
                "passed", row["why"])
        except Skip as words:
            row["status"], row["why"] = "skipped", str(words)
        except Cut as words:
            row["status"], row["why"] = "cut", str(words)
        except Failed as words:
            row["status"], row["why"] = "failed", str(words)
        except Exception as error:  # the suite's own mistake is no reason to end it
            row["status"], row["why"] = "failed", f"{type(error).__name__}: {error}"
        row["seconds"] = round(time.monotonic() - begin, 2)
        if row["status"] == "passed":
            row.pop("output", None)
        self.write()
        return row

    def stop(self):
        """Ends what runs: the suite itself was told to end."""
        for process in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def count(self):
        found = {}
        for step in self.steps:
            found[step.row["status"]] = found.get(step.row["status"], 0) + 1
        return found

    def write(self):
        """As a whole or not at all."""
        whole = {**self.head, "seconds": round(time.monotonic() - self.begin, 1),
                 "counts": self.count(), "steps": [step.row for step in self.steps]}
        fresh = self.path.with_suffix(".tmp")
        # (Without the folders that this checkout and its Python happen to be in.)
        text = json.dumps(whole, indent=1)
        for folder in (f"{ROOT}/", f"{sys.prefix}/"):
            text = text.replace(folder, "")
        fresh.write_text(text + "\n")
        os.replace(fresh, self.path)
