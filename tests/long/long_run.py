"""Runs the pieces (pieces.py) at random, as many at a time as there are cores, until the time is
over; see run.sh."""

import argparse
import concurrent.futures
import os
import random
import sys
import threading
import time

from pieces import Tried, pieces

COLUMNS = ("runs", "operations", "faults", "right", "refused", "lost", "wrong", "leaks", "failed")


class Hour:
    def __init__(self, options):
        self.begin, self.seconds = time.monotonic(), options.minutes * 60
        self.random = random.Random(options.seed)
        self.lock = threading.Lock()
        self.pieces = pieces()
        if options.only:
            words = options.only.split(",")
            self.pieces = [each for each in self.pieces if any(word in each.name for word in words)]
        self.seconds_of = {each.name: 0. for each in self.pieces}
        self.tried = {each.name: Tried(runs=0) for each in self.pieces}
        self.uncounted = {each.name: each.uncounted for each in self.pieces}
        self.whole = [each for each in self.pieces if each.weight == 0]
        self.running, self.told = {}, set()

    def left(self):
        return self.begin + self.seconds - time.monotonic()

    def next_piece(self):
        """What was tried for least of the time that its weight is worth; now and then one of those
        that are run once."""
        with self.lock:
            if self.left() <= 0:
                return None
            seeded = [each for each in self.pieces if each.weight]
            if self.whole and (not seeded or self.random.random() < 0.25):
                piece = self.whole.pop(0)
            elif seeded:
                piece = min(seeded, key=lambda each: (self.seconds_of[each.name] / each.weight,
                                                      self.random.random()))
            else:
                return None
            self.seconds_of[piece.name] += 5  # (until it is known)
            return piece, self.random.getrandbits(40)

    def work(self):
        me = threading.get_ident()
        while (taken := self.next_piece()) is not None:
            piece, seed = taken
            self.running[me] = f"{piece.name} {seed}"
            begin = time.monotonic()
            try:
                tried = piece.run(seed, max(10, self.left()))
            except Exception as error:  # the piece's own code: a failure, and the hour goes on
                tried = Tried(failed=1, words=f"{piece.name}, seed {seed}: {error!r}")
            self.running.pop(me)
            self.finish(piece, seed, tried, time.monotonic() - begin)

    def finish(self, piece, seed, tried, seconds):
        with self.lock:
            self.seconds_of[piece.name] += seconds - 5
            self.tried[piece.name].add(tried)
            if tried.bad():
                print(f"FAILED: {piece.name}, seed {seed}\n{tried.words.rstrip()}\n", flush=True)
            if tried.skipped and piece.name not in self.told:
                print(f"skipped: {piece.name}: {tried.words.strip()}", flush=True)
                self.told.add(piece.name)
        if tried.skipped:  # (it will be skipped again)
            self.pieces = [each for each in self.pieces if each is not piece]

    def say(self, stop):
        while not stop.wait(60):
            with self.lock:
                runs = sum(each.runs for each in self.tried.values())
                bad = sum(each.bad() for each in self.tried.values())
            past = time.monotonic() - self.begin
            print(f"long: {past / 60:.0f} of {self.seconds / 60:.0f} min: {runs} runs, {bad} failed; "
                  f"now {', '.join(self.running.values())}",
                  file=sys.stderr, flush=True)

    def table(self):
        """A dash: not counted."""
        rows = [("tried", "min", *COLUMNS)]
        for name, tried in self.tried.items():
            if tried.runs:
                rows.append((name, f"{self.seconds_of[name] / 60:.1f}",
                             *("-" if column in self.uncounted[name] else
                               f"{int(getattr(tried, column)):,}" for column in COLUMNS)))
        total = Tried(runs=0)
        for tried in self.tried.values():
            total.add(tried)
        rows.append(("all", f"{(time.monotonic() - self.begin) / 60:.1f}",
                     *(f"{int(getattr(total, column)):,}" for column in COLUMNS)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print("  ".join([row[0].ljust(widths[0]),
                             *(word.rjust(width) for word, width in zip(row[1:], widths[1:]))]))
        return total


def main():
    parser = argparse.ArgumentParser(prog="tests/long/run.sh")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the hour: which seeds are drawn")
    parser.add_argument("--only", help="pieces whose names hold one of these")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(5), "little")
    print(f"long: {options.minutes:g} minutes, seed {options.seed}", flush=True)
    hour, stop = Hour(options), threading.Event()
    teller = threading.Thread(target=hour.say, args=(stop,), daemon=True)
    teller.start()
    workers = os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for each in [pool.submit(hour.work) for _ in range(workers)]:
            each.result()
    stop.set()
    print()
    total = hour.table()
    passed = sum(1 for each in hour.tried.values() if each.runs and not each.bad())
    failed = sum(1 for each in hour.tried.values() if each.bad())
    gone = sum(1 for each in hour.tried.values() if each.skipped and not each.runs)
    print(f"long: {passed} passed, {failed} failed, {gone} skipped")
    sys.exit(1 if failed or not total.runs else 0)


if __name__ == "__main__":
    main()
