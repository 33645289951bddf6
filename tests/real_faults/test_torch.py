"""The same with PyTorch's CUDA build on the software GPU: a disk that fills up and comes free, one
that dies, children, system calls forbidden, standard error that nobody reads, in mid-I/O."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

from real_disks import Unavailable, check_clean
from real_jobs import full_pipe

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "pytorch_plugin/runs"))
import script_runs  # noqa: E402

ANSWER_S = 120
ALL = """
    import ctypes, os, struct, subprocess, sys, time
    import torch

    def ask(*words):
        print(*words, flush=True)
        sys.stdin.readline()

    def made(count, first=0):
        return [torch.full((1 << 20,), float(first + i), device="cuda") for i in range(count)]

    def check(tensors, first=0):
        for i, tensor in enumerate(tensors):
            assert (tensor == first + i).all().item(), first + i

    def no_room(count):
        kept = []
        try:
            for i in range(count):
                kept += made(1, i)
        except torch.OutOfMemoryError as error:
            return str(error).replace("\\n", " ")
        return "room for all"

    def once_there_is_room(count):
        end = time.monotonic() + 20
        while True:
            try:
                tensors = made(count)
                check(tensors)
                return
            except torch.OutOfMemoryError:
                tensors = None
                assert time.monotonic() < end, "no room still"
                time.sleep(0.2)

    kept = made(24)
    check(kept)
"""


@pytest.fixture(scope="module")
def paths():
    found = script_runs.Paths.find()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class Script:
    """A script under `firn run`, of 4 MiB tensors with a budget of 40 MiB; ended with the test."""

    def __init__(self, paths, folder, spill, script, prefix=(), stderr=subprocess.STDOUT, **more):
        command = script_runs.firn_command(
            paths, folder, textwrap.dedent(ALL) + textwrap.dedent(script), budget="40MiB",
            dirs=[spill], host="16MiB")
        self.process = subprocess.Popen(
            [*map(str, prefix), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, text=True, env={**script_runs.clean_environment(), **more})
        self.text, self.folder = "", folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def says(self, word):
        """Up to the line that begins so; that line."""
        for line in self.process.stdout:  # (its end comes with the process's)
            self.text += line
            if line.startswith(word):
                return line
        raise AssertionError(f"never {word}: {self.text}")

    def goes_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self, *statuses):
        self.process.stdin.close()
        self.process.stdin = None
        begin = time.monotonic()
        self.text += self.process.communicate(timeout=ANSWER_S)[0]
        assert self.process.returncode in statuses, self.text
        assert time.monotonic() - begin < ANSWER_S
        return script_runs.read_json(self.folder / "stats.json")


def test_a_disk_that_fills_up_and_comes_free(paths, disk, folder):
    place = disk("ext4", 320)
    with Script(paths, folder, place.spill_path(), """
            ask("made")
            print("refused:", no_room(100))
            check(kept)
            ask("full")
            once_there_is_room(20)
            check(kept)
            print("all there")
            """, prefix=place.prefix()) as script:
        script.says("made")
        place.fill()
        script.goes_on()
        words = script.says("refused: ")
        assert "CUDA out of memory" in words and "firn_dir" in words and "firn_host" in words
        script.says("full")
        place.come_free()
        script.goes_on()
        script.says("all there")
        stats = script.ends(0)
        assert str(place.spill_path()) in script.text and "No space left" in script.text
    assert stats["devices"][0]["lost_blocks"] == 0
    check_clean(place, "a PyTorch program")


def test_a_disk_that_dies(paths, disk, folder):
    """An exception, the status 1, and soon."""
    place = disk("xfs")
    with Script(paths, folder, place.spill_path(), """
            ask("made")
            check(kept)
            print("all there")
            """, prefix=place.prefix(), FIRN_IO_PATIENCE="1s") as script:
        script.says("made")
        try:
            place.shut_down()
        except Unavailable as why:
            pytest.skip(str(why))
        script.goes_on()
        begin = time.monotonic()
        script.ends(1)
        assert time.monotonic() - begin < 60
        assert "all there" not in script.text
        assert "Error" in script.text and str(place.spill_path()) in script.text, script.text
        assert "firn_io_patience" in script.text, script.text
    place.mount_again()
    check_clean(place, "a PyTorch program on a disk that died,", tolerance=1 << 20)


def test_children_in_the_middle_of_io(paths, disk, folder):
    """fork, subprocess, and a daemon that closes all descriptors; then the killed parent's disk is
    free, while the daemon lives."""
    place = disk("ext4", 160)
    with Script(paths, folder, place.spill_path(), """
            for round in range(12):
                for tensor in kept[round % 3::3]:
                    tensor.add_(1)
                subprocess.run(["true"], check=True)
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
            torch.cuda.synchronize()
            for i, tensor in enumerate(kept):
                assert (tensor == i + 4).all().item(), i
            for tensor in kept:
                tensor.add_(1)
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.write(writing, str(os.getpid()).encode())
                os.closerange(0, 4096)
                time.sleep(60)
                os._exit(0)
            print("daemon", os.read(reading, 20).decode(), flush=True)
            while True:
                for tensor in kept:
                    tensor.add_(1)
            """, prefix=place.prefix()) as script:
        daemon = int(script.says("daemon").split()[1])
        time.sleep(0.2)
        script.process.kill()
        script.process.wait()
        try:
            os.kill(daemon, 0)
            check_clean(place, "a daemon, which lives,")
        finally:
            os.kill(daemon, 9)
    check_clean(place, "a PyTorch program")


def test_io_uring_is_forbidden_in_the_middle_of_io(paths, disk, folder):
    place = disk("ext4", 160)
    with Script(paths, folder, place.spill_path(), """
            for tensor in kept:
                tensor.add_(1)
            program = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 426,  # io_uring_enter
                                  0x06, 0, 0, 0x00050001, 0x06, 0, 0, 0x7FFF0000)
            buffer = ctypes.create_string_buffer(program)
            header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4,
                                                             ctypes.addressof(buffer)))
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.prctl(38, 1, 0, 0, 0) == 0
            assert libc.syscall(317, 1, 1, header) == 0  # seccomp, to all threads
            for round in range(3):
                for tensor in kept:
                    tensor.add_(1)
            for i, tensor in enumerate(kept):
                assert (tensor == i + 4).all().item(), i
            print("all there")
            """, prefix=place.prefix()) as script:
        script.says("all there")
        store = script.ends(0)["store"]
        assert store["kind"] == "threads" and "io_uring_enter" in store["why"], store
    check_clean(place, "a PyTorch program")


def test_nobody_reads_standard_error(paths, disk, folder):
    place = disk("ext4", 160)
    reading, writing = full_pipe()
    try:
        with Script(paths, folder, place.spill_path(), """
                print("refused:", no_room(100))
                check(kept)
                print("all there", flush=True)
                """, prefix=place.prefix(), stderr=writing) as script:
            assert "CUDA out of memory" in script.says("refused: ")
            script.says("all there")
            script.ends(0)
    finally:
        os.close(reading)
        os.close(writing)
    check_clean(place, "a PyTorch program")
