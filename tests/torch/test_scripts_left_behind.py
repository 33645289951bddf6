"""What a job leaves on the machine: nothing, whether it ends well, is refused, or is killed."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

import script_runs
from script_runs import check_budget, check_same

SCRIPT = "gpt_adamw.py"
ARGUMENTS = ("--steps", 2, "--layers", 4)


def written_bytes(pid):
    """What the process has sent to disks so far, by the kernel's own count."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines).get("write_bytes", 0))


def wait_for(what, process, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not what():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def started(paths, folder, spill_dir, budget, *arguments):
    command = script_runs.firn_command(paths, folder, SCRIPT, *arguments, budget=budget,
                                       dirs=[spill_dir], host="32MiB")
    return subprocess.Popen(command, env=script_runs.clean_environment(), text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, start_new_session=True)


def end_by(process, kind):
    """Sends the signal until the process ends; its output. Once is not always enough for SIGINT:
    Python drops a KeyboardInterrupt that arrives while it runs a finaliser."""
    for _ in range(12 if kind == signal.SIGINT else 1):
        process.send_signal(kind)
        try:
            return process.communicate(timeout=5 if kind == signal.SIGINT else 60)[0]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"still running after {kind.name}")


def free_blocks(folder):
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


@pytest.mark.parametrize("kind", [
    pytest.param(signal.SIGKILL, id="SIGKILL", marks=pytest.mark.quick),
    pytest.param(signal.SIGTERM, id="SIGTERM"), pytest.param(signal.SIGINT, id="SIGINT")])
def test_nothing_is_left_after_a_signal_in_the_middle_of_io(paths, native, tmp_path, spill_dir,
                                                            kind):
    budget = native(SCRIPT, *ARGUMENTS).budget(0.5)
    process = started(paths, tmp_path, spill_dir, budget, *ARGUMENTS, "--steps", 1000)
    try:
        wait_for(lambda: written_bytes(process.pid) > (96 << 20), process)
        output = end_by(process, kind)
    finally:
        process.kill()
        process.wait()
    if kind == signal.SIGINT:
        assert "KeyboardInterrupt" in output
    assert process.returncode in (-kind, 1 if kind == signal.SIGINT else -kind, 130)
    assert list(spill_dir.iterdir()) == []


def test_a_killed_job_gives_its_disk_space_back(paths, native, tmp_path, spill_dir):
    budget = native(SCRIPT, *ARGUMENTS).budget(0.5)
    process = started(paths, tmp_path, spill_dir, budget, *ARGUMENTS, "--steps", 1000)
    try:
        wait_for(lambda: written_bytes(process.pid) > (256 << 20), process)
        held = open_file_bytes(process.pid, spill_dir)
        assert held >= 32 << 20, "the spill file is not among the process's open files"
    finally:
        process.kill()
        process.communicate()
    # The file had no name, or lost it: with its last descriptor its blocks are free.
    assert list(spill_dir.iterdir()) == []
    assert open_file_bytes(process.pid, spill_dir) == 0


def open_file_bytes(pid, folder):
    """Disk blocks of the files in `folder` that the process has open, named or not."""
    total = 0
    try:
        descriptors = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0
    for descriptor in descriptors:
        try:
            if os.readlink(descriptor).startswith(str(folder) + "/"):
                total += os.stat(descriptor).st_blocks * 512
        except OSError:
            pass
    return total


def test_two_jobs_share_a_directory(paths, native, tmp_path, spill_dir):
    alone = native(SCRIPT, *ARGUMENTS)
    budget = alone.budget(0.5)
    processes, folders = [], [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        processes.append(started(paths, folder, spill_dir, budget, *ARGUMENTS))
    try:
        outputs = [process.communicate(timeout=script_runs.TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, output, folder in zip(processes, outputs, folders):
        run = script_runs.Run(process.returncode, output, 0, None,
                              script_runs.read_json(folder / "stats.json"))
        check_same(run, alone)
        assert run.device()["spilled_bytes"] > 0
        assert run.stats["store"]["written_bytes"] > 0


@pytest.mark.quick
def test_an_exception_leaves_nothing_and_its_own_status(with_firn, spill_dir):
    script = ("import torch\n"
              "kept = [torch.rand(1 << 20, device='cuda') for _ in range(60)]\n"
              "total = sum(t.sum() for t in kept)\n"
              "raise SystemExit(7)\n")
    run = with_firn(script, budget="64MiB", dirs=[spill_dir], host="16MiB")
    assert run.status == 7, run.text
    assert run.device()["spilled_bytes"] > 0
    check_budget(run, 64 << 20)
