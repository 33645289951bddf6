"""`firn top` on terminals of every size and kind; the jobs are made up."""

import contextlib
import os
import pty
import re
import select
import time

import pytest
from firn_command import clean_environment, find_binary
from top_jobs import document, folder, job  # noqa: F401  (a fixture)


def read_until(terminal, *wanted):
    """All that is shown until that is, in this order."""
    shown = b""
    while not re.search(b".*".join(map(re.escape, wanted)), shown, re.DOTALL):
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, shown
        shown += os.read(terminal, 1 << 16)
    return shown


def test_on_a_terminal(firn, folder):
    with job(folder, document()):
        child, terminal = pty.fork()
        if child == 0:
            os.execve(find_binary(), ["firn", "top"], {**clean_environment(), "TERM": "xterm"})
        read_until(terminal, b"train.py:7 in step")
        os.write(terminal, b"q")
        read_until(terminal, b"\x1b[?1049l")  # the screen as it was before
        assert os.waitpid(child, 0)[1] == 0
        os.close(terminal)


@pytest.mark.parametrize("columns", [30, 80, 100, 240])
def test_terminals_of_every_width(firn, folder, columns):
    with job(folder, document()) as number:
        child, terminal = pty.fork()
        if child == 0:
            os.execve(find_binary(), ["firn", "top"],
                      {**clean_environment(), "TERM": "xterm", "COLUMNS": str(columns),
                       "LINES": "24"})
        shown = read_until(terminal, str(number).encode(), b"waited")  # (other jobs may be there)
        os.write(terminal, b"q")
        assert os.waitpid(child, 0)[1] == 0
        os.close(terminal)
    assert b"RESIDENT"[:columns - 13] in shown
    if columns >= 80:  # who it is, and how much it waits, whatever else there is room for
        assert b"STALL" in shown and b"COMMAND" in shown and b"sleep 600" in shown
    assert (b"WRITE/s" in shown) == (columns > 140)


class Terminal:
    """`firn top` on one of that size; what is on it after some keys."""

    def __init__(self, columns, rows):
        pyte = pytest.importorskip("pyte")
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execve(find_binary(), ["firn", "top"],
                      {**clean_environment(), "TERM": "linux", "COLUMNS": str(columns),
                       "LINES": str(rows)})

    def until(self, true):
        deadline = time.monotonic() + 60
        while not true(self.screen.display):
            ready, _, _ = select.select([self.terminal], [], [], deadline - time.monotonic())
            assert ready, self.screen.display
            self.stream.feed(os.read(self.terminal, 1 << 16))
        return self.screen.display

    def press(self, keys):
        os.write(self.terminal, keys)

    def end(self):
        """Returns all that is left on it."""
        self.press(b"q")
        with contextlib.suppress(OSError):  # the other side is closed
            while more := os.read(self.terminal, 1 << 16):
                self.stream.feed(more)
        assert os.waitpid(self.child, 0)[1] == 0
        os.close(self.terminal)
        return self.screen.display


def test_it_scrolls_to_the_last_line_and_no_farther(firn, folder):
    notices = [f"notice number {i}" for i in range(30)]
    with job(folder, document(notices=notices)):
        terminal = Terminal(100, 12)
        terminal.until(lambda lines: "notice number 0" in "".join(lines))
        terminal.press(b"j" * 200)
        lines = terminal.end()
    assert "RESIDENT" in lines[0]
    assert all(line.strip() for line in lines), lines


def test_what_a_job_was_told_is_on_as_many_lines_as_it_takes(firn, folder):
    words = ("thrash: the program spent 75 % of the last 2.1 s waiting for memory that left and "
             "came back again and again. firn_budget:512MiB would stop the thrashing (the budget "
             "is 256MiB now)")
    with job(folder, document(notices=[words, "x" * 300])):
        terminal = Terminal(60, 40)
        terminal.until(lambda lines: "would stop the thrashing (the budget is 256MiB now)" in
                       " ".join(" ".join(lines).split()))
        lines = terminal.end()
        assert "".join(lines).count("x") >= 300
        assert f"device 0: {words}" in firn("top", "--once").stdout  # one line where nobody looks


def test_an_unknown_terminal(firn, folder):
    child, terminal = pty.fork()
    if child == 0:
        os.execve(find_binary(), ["firn", "top"], {**clean_environment(), "TERM": "no-such"})
    read_until(terminal, b"--once prints one snapshot")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    os.close(terminal)
