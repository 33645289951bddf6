"""Threads of which one runs at a time: the holder of the baton.

A micro-batch's thread passes the baton on at each seam, to the next thread in a circle that has not
ended. An exception in one of them is handed to the caller, once; each of the others ends with
Stopped at its next seam.

Owns its threads: run() returns, or raises, when all have ended. Locks: one a thread (its gate),
which is open while the thread has the baton, or is about to get it.
"""

from __future__ import annotations

import contextvars
import threading
from typing import Callable


class Stopped(BaseException):
    """Another micro-batch failed. No Exception: programs that catch those go on."""


class Baton:
    def __init__(self, count: int) -> None:
        self._gates = [_closed() for _ in range(count)]
        self._all_ended = _closed()
        self._running = [True] * count
        self._error: BaseException | None = None

    def run(self, body: Callable[[int], None]) -> None:
        """body(0), body(1), ... each in a thread with the caller's context variables; raises the
        first exception, which may be the caller's own (KeyboardInterrupt)."""
        threads = [threading.Thread(target=contextvars.copy_context().run,
                                    args=(self._thread, body, number), name=f"relay {number}")
                   for number in range(len(self._gates))]
        try:
            for thread in threads:
                thread.start()
            _open(self._gates[0])
            self._all_ended.acquire()
        except BaseException as error:
            self._error = self._error or error
            for gate in self._gates:
                _open(gate)
        for thread in threads:
            _join(thread)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # (no cycle of exception, frame and baton)

    def pass_on(self, number: int) -> None:
        """Lets the others run up to their next seam. Raises Stopped where one failed."""
        following = self._next(number)
        if following != number and self._error is None:
            _open(self._gates[following])
            self._gates[number].acquire()
        if self._error is not None:
            raise Stopped

    def has_ended(self, number: int) -> bool:
        return not self._running[number]

    def _next(self, number: int) -> int:
        count = len(self._gates)
        return next((at % count for at in range(number + 1, number + count)
                     if self._running[at % count]), number)

    def _thread(self, body: Callable[[int], None], number: int) -> None:
        self._gates[number].acquire()
        try:
            if self._error is None:
                body(number)
        except Stopped:
            pass
        except BaseException as error:
            self._error = self._error or error
        self._running[number] = False
        following = self._next(number)
        _open(self._all_ended if following == number else self._gates[following])


def _closed() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def _open(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:
        pass  # it is open: after an interrupt all are


def _join(thread: threading.Thread) -> None:
    """To its end: the first KeyboardInterrupt stopped the threads already."""
    while thread.ident is not None:  # (None: it could not start)
        try:
            thread.join()
            return
        except KeyboardInterrupt:
            pass
