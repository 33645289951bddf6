"""Jobs in processes of their own, told what to do line by line (job.cpp). Each answer comes within
a bounded time, or the test fails."""

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import resource
import select
import shlex
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("FIRN_TEST_BUILD", "build")
PROGRAM = BUILD / "tests/real_faults/real_faults_job"
GPU = BUILD / "backing/gpu/software/libcuda.so.1"
STORES = ("io_uring", "threads")
# firn_status
INVALID, OUT_OF_MEMORY, HOST_OUT_OF_MEMORY, DRIVER, IO, NOT_SUPPORTED, LOST = range(1, 8)
ANSWER_S = 30
PIPE_SETSIZE = 1031  # F_SETPIPE_SZ
WORDS = "budget:32MiB,host:16MiB,watch:0,test_allow_tmpfs:1,io_patience:2s"


@dataclasses.dataclass
class Answer:
    text: str
    kind: str      # ok, error, cannot
    status: int    # of the first error, else 0
    first: str     # its words
    values: dict   # steps, errors, lost, blocks, pid, flying, ...

    @staticmethod
    def of(line):
        head, _, first = line.rstrip("\n").partition(" first=")
        words = head.split()
        kind = words[0] if words else ""
        status = int(words[1]) if kind == "error" else 0
        values = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", head)}
        return Answer(line.rstrip("\n"), kind, status, first, values)

    def __getattr__(self, name):
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(f"{name} in {self.text}") from None


def words_of(spill, store="io_uring", **knobs):
    named = dict(each.split(":", 1) for each in WORDS.split(","))
    named.update({"dir": str(spill), "store": store, **{k: str(v) for k, v in knobs.items()}})
    if store is None:
        del named["store"]
    return ",".join(f"firn_{name}:{value}" for name, value in named.items() if value != "")


# (A shell's background jobs are begun with SIGINT ignored, and would hand that on to theirs.)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def descriptors_of(pid):
    """A process's descriptors in /proc, each with where it leads; not those that it closes now."""
    for each in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield each, os.readlink(each)
        except FileNotFoundError:
            pass


class Job:
    """A job, ended with the test. `prefix`: words before the command."""

    def __init__(self, spill, store="io_uring", block_mib=4, prefix=(), shell="", preexec=None,
                 stderr=subprocess.PIPE, environment=None, forbid=(), **knobs):
        """`forbid`: system calls, from before Firn's start, and a file to open. `knobs`: Firn's."""
        if not PROGRAM.exists():
            raise AssertionError(f"{PROGRAM} is not built (bench/setup.sh --tests)")
        command = [str(PROGRAM), str(GPU), str(spill), str(block_mib),
                   words_of(spill, store, **knobs), *map(str, forbid)]
        if shell:  # redirections
            command = ["sh", "-c", f"exec {shlex.join(command)} {shell}"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FIRN_")}
        self.process = subprocess.Popen(
            [*map(str, prefix), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, env={**kept, **(environment or {})}, preexec_fn=preexec, bufsize=0)
        self.buffer, self.said = b"", b""
        self.erred = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    def begun(self, timeout_s=ANSWER_S):
        start = self.answer("the start", timeout_s)
        assert start.kind == "ok", f"no start: {start.text}"
        return self

    def refused(self, *words, timeout_s=ANSWER_S):
        """The start is an error that has these words, and the job's status is not 0."""
        start = self.answer("the start", timeout_s)
        assert start.kind == "error", f"it starts: {start.text}"
        for each in words:
            assert each in start.first, start.first
        assert self.wait() == 3, self.words()

    def answer(self, what, timeout_s=ANSWER_S):
        """The next line. Standard error is read meanwhile."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no answer within {timeout_s} s to {what}: {self.hangs()}")
            pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe]
            for pipe in select.select(pipes, [], [], left)[0]:
                got = os.read(pipe.fileno(), 1 << 16)
                if pipe is self.process.stderr:
                    self.said += got
                    if not got:
                        self.process.stderr.close()
                        self.process.stderr = None
                elif got:
                    self.buffer += got
                else:
                    status = self.wait()
                    raise Ended(status, f"ended with {status} at {what}: {self.words()}")
        line, _, self.buffer = self.buffer.partition(b"\n")
        got = Answer.of(line.decode(errors="replace"))
        assert not got.text.startswith("WRONG"), f"{got.text} at {what}: {self.words()}"
        self.erred |= got.kind == "error"
        return got

    def hangs(self):
        """Where its threads are; and it ends."""
        found = [self.words()]
        for task in sorted(pathlib.Path(f"/proc/{self.pid}/task").iterdir()):
            try:
                found.append(" ".join(["thread", (task / "comm").read_text().strip(),
                                       *(task / "stack").read_text().split()]))
            except OSError as error:
                found.append(str(error))
        self.process.send_signal(signal.SIGABRT)  # it prints its main thread's stack
        end = time.monotonic() + 3
        while self.process.poll() is None and time.monotonic() < end:
            if self.process.stderr and select.select([self.process.stderr], [], [], 0.1)[0]:
                found.append(os.read(self.process.stderr.fileno(), 1 << 16).decode())
        self.process.kill()
        return "\n".join(found)

    def tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")

    def does(self, line, timeout_s=ANSWER_S):
        self.tell(line)
        return self.answer(line, timeout_s)

    def must(self, line, timeout_s=ANSWER_S):
        got = self.does(line, timeout_s)
        assert got.kind == "ok", f"{line}: {got.text}: {self.words()}"
        return got

    def status(self):
        """That it ends with: 3 where it was answered an error."""
        return 3 if self.erred else 0

    def stats(self):
        return json.loads(self.must("stats").text[3:])

    def says(self, words, timeout_s=2):
        """On standard error, where Firn's lines come a moment later."""
        end = time.monotonic() + timeout_s
        while words not in self.words():
            left = end - time.monotonic()
            assert left > 0 and self.process.stderr, f"not said: {words}: {self.words()}"
            if select.select([self.process.stderr], [], [], left)[0]:
                self.said += os.read(self.process.stderr.fileno(), 1 << 16)

    def words(self):
        """What it has said on standard error."""
        return self.said.decode(errors="replace")

    def wait(self, timeout_s=ANSWER_S):
        """Its exit status."""
        end = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still there after {timeout_s} s: {self.words()}"
            if self.process.stderr is None:
                time.sleep(0.002)
            elif select.select([self.process.stderr], [], [], 0.005)[0]:
                got = os.read(self.process.stderr.fileno(), 1 << 16)
                self.said += got
                if not got:
                    time.sleep(0.002)
        while self.process.stderr and select.select([self.process.stderr], [], [], 0)[0]:
            got = os.read(self.process.stderr.fileno(), 1 << 16)
            self.said += got
            if not got:
                break
        return self.process.returncode

    def ends(self, status=None, how="end", timeout_s=ANSWER_S):
        """By itself, with that status (that which is due)."""
        status = self.status() if status is None else status
        self.tell(how)
        got = self.answer(how, timeout_s)
        found = self.wait(timeout_s)
        assert found == status, f"status {found}: {got.text}: {self.words()}"
        return got


class Ended(AssertionError):
    """It has ended, though it was to answer."""

    def __init__(self, status, words):
        super().__init__(words)
        self.status, self.words = status, words

    def of_others(self):
        """Before Firn could begin, or within the software GPU, which gives up where a driver
        answers an error: by its own words, or by whose function ended it (the first of the stack
        below the C and C++ libraries)."""
        if "broken: " in self.words:  # Firn's own words
            return False
        if any(each in self.words for each in ("firn software GPU: ", "shared librar",
                                               "memory for thread-local data",
                                               "setpriv: failed to execute")):
            return True
        stack = [line.split("(")[0].rsplit("/", 1)[-1] for line in self.words.splitlines()
                 if line.startswith("/") and "(+0x" in line or "](" in line]
        below = [name for name in stack[1:]
                 if not name.startswith(("libc.so", "libstdc++", "libgcc"))]
        return self.status == -signal.SIGABRT and bool(below) and below[0].startswith("libcuda.so")


def limits(**values):
    """For `preexec`: soft and hard limits by their short names."""

    def lower():
        for name, value in values.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return lower


def goes_on(job, line, seconds=15):
    """Once the trouble is over: the directory is asked again each second."""
    end = time.monotonic() + seconds
    while True:
        got = job.does(line)
        if got.kind == "ok":
            return got
        assert got.status in (OUT_OF_MEMORY, IO, LOST), got.text
        assert time.monotonic() < end, f"{line} fails still: {got.text}"
        time.sleep(0.1)


def full_pipe():
    """Nobody reads it, and it takes no byte more."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, PIPE_SETSIZE, 4096)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writing, True)
    return reading, writing
