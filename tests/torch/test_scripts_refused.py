"""What cannot work is refused in one line that names it; what the machine withholds is done
without, or ends in an error that says so. Never in other bits."""

import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import time

import pytest

import script_runs
from script_runs import check_budget, check_same

SCRIPT = "gpt_adamw.py"
ARGUMENTS = ("--steps", 2, "--layers", 4)
START = "import torch; print('alive', float(torch.ones(3, device='cuda').sum()))"

BAD_CONF = [
    # words after backend:firn, what the error names
    ("firn_frob:1", "firn_frob"),
    ("firn_budget:0", "firn_budget"),
    ("firn_budget:-1", "firn_budget"),
    ("firn_budget:10XB", "XB"),
    ("firn_budget", "firn_budget"),
    ("firn_budget:", "firn_budget"),
    ("firn_budget:1TiB", "exceeds"),
    ("firn_host:lots", "firn_host"),
    ("firn_policy:lru", "firn_policy"),
    ("firn_watch:2", "firn_watch"),
    ("firn_dir:relative/path", "relative/path"),
    ("firn_dir:/nonexistent-folder", "/nonexistent-folder"),
    ("firn_dir:/etc/passwd", "/etc/passwd"),
    ("firn_dir:/dev/shm", "/dev/shm"),
    ("firn_dir:/proc", "/proc"),
    ("max_split_size_mb:1", "max_split_size_mb"),
]


def with_conf(paths, folder, words, environment=None, script=START):
    conf = ",".join(["backend:firn", *filter(None, [words])])
    return script_runs.run_native(paths, folder, script, environment={
        "PYTORCH_CUDA_ALLOC_CONF": conf, **(environment or {})})


@pytest.mark.parametrize("words, names", [
    pytest.param(*each, id=each[0], marks=[pytest.mark.quick] if number < 2 else [])
    for number, each in enumerate(BAD_CONF)])
def test_bad_words_end_cudas_start(paths, tmp_path, words, names):
    run = with_conf(paths, tmp_path, words)
    assert run.status == 1, run.text
    last = run.text.strip().splitlines()[-1]
    assert last.startswith(("RuntimeError: ", "ValueError: ")), run.text
    assert names in last, run.text
    assert "alive" not in run.text


@pytest.mark.quick
def test_good_words_do_not(paths, tmp_path, spill_dir):
    words = f"firn_budget:1GiB,firn_dir:{spill_dir},firn_host:64MiB,firn_policy:age"
    run = with_conf(paths, tmp_path, words, script=START +
                    "; print('backend', torch.cuda.get_allocator_backend())")
    assert run.status == 0, run.text
    assert run.values("alive") == ["3.0"] and run.values("backend") == ["firn"]


def test_a_directory_that_cannot_be_written(paths, tmp_path, spill_dir):
    """As another user, since root may write anywhere."""
    if os.geteuid() != 0:
        spill_dir.chmod(0o555)
        run = with_conf(paths, tmp_path, f"firn_dir:{spill_dir}")
        spill_dir.chmod(0o755)
    else:
        if shutil.which("chattr") is None or subprocess.run(
                ["chattr", "+i", spill_dir], capture_output=True).returncode != 0:
            pytest.skip("this file system knows no immutable directory")
        try:
            run = with_conf(paths, tmp_path, f"firn_dir:{spill_dir}")
        finally:
            subprocess.run(["chattr", "-i", spill_dir], check=True)
    assert run.status == 1, run.text
    last = run.text.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: ") and str(spill_dir) in last, run.text


@pytest.mark.quick
def test_a_program_without_firns_words_gets_pytorchs_allocator(paths, tmp_path):
    run = script_runs.run_native(paths, tmp_path, START +
                                 "; print('backend', torch.cuda.get_allocator_backend())")
    assert run.values("backend") == ["native"], run.text


@pytest.mark.quick
def test_a_budget_above_the_device_is_refused(with_firn):
    run = with_firn(START, budget="2GiB", memory=1 << 30)
    assert run.status == 2
    assert len(run.text.splitlines()) == 1 and "2GiB" in run.text and "1GiB" in run.text


def spilling(native, with_firn, **options):
    """A script that spills at half its peak, with `options`, and the native run."""
    alone = native(SCRIPT, *ARGUMENTS)
    budget = alone.budget(0.5)
    return with_firn(SCRIPT, *ARGUMENTS, budget=budget, **options), alone, budget


def test_a_full_store_goes_on_in_host_memory(native, with_firn, spill_dir):
    run, alone, budget = spilling(native, with_firn, dirs=[spill_dir], host="4GiB",
                                  environment={"FIRN_STORE_SIZE": "32MiB"})
    check_same(run, alone)
    check_budget(run, budget)


@pytest.mark.quick
def test_full_store_and_full_host_memory_end_out_of_memory(native, with_firn, spill_dir):
    run, _, _ = spilling(native, with_firn, dirs=[spill_dir], host="32MiB",
                         environment={"FIRN_STORE_SIZE": "32MiB"})
    assert run.status == 1, run.text
    assert "OutOfMemoryError: CUDA out of memory" in run.text
    last = run.text[run.text.index("OutOfMemoryError"):]
    assert "firn_host" in last and ("firn_dir" in last or "firn_store_size" in last), last
    assert run.device()["lost_blocks"] == 0


@pytest.fixture
def small_disk(tmp_path):
    """An ext4 file system of 96 MiB."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, folder]):
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]}")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    yield folder
    for _ in range(100):  # (Others who list file systems may look at it just now.)
        done = subprocess.run(["umount", folder], capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(done.stderr)


def test_a_disk_that_fills_up(native, with_firn, small_disk):
    spill = small_disk / "spill"
    spill.mkdir()
    run, alone, budget = spilling(native, with_firn, dirs=[spill], host="4GiB")
    check_same(run, alone)
    check_budget(run, budget)
    assert list(spill.iterdir()) == []
    run, _, _ = spilling(native, with_firn, dirs=[spill], host="32MiB")
    assert run.status == 1 and "OutOfMemoryError: CUDA out of memory" in run.text, run.text
    assert str(spill) in run.text or "firn_dir" in run.text, run.text
    assert list(spill.iterdir()) == []


def test_a_small_memlock_limit(native, with_firn, spill_dir):
    prefix = ["prlimit", "--memlock=65536:65536"]
    if os.geteuid() == 0:  # for root the limit counts only without these
        prefix += ["setpriv", "--bounding-set", "-ipc_lock,-sys_resource"]
    run, alone, budget = spilling(native, with_firn, dirs=[spill_dir], host="32MiB", prefix=prefix)
    check_same(run, alone)
    check_budget(run, budget)
    store = run.stats["store"]
    assert store["written_bytes"] > 0
    assert store["kind"] == "threads" or "RLIMIT_MEMLOCK" in store["why"]


def refuse_io_uring():
    """In the child: io_uring_setup answers ENOSYS, by a seccomp filter."""
    io_uring_setup, allow, errno_enosys = 425, 0x7FFF0000, 0x00050000 | 38
    program = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, io_uring_setup,
                          0x06, 0, 0, errno_enosys, 0x06, 0, 0, allow)
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer)))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


@pytest.mark.quick
def test_io_uring_refused(native, with_firn, spill_dir):
    run, alone, budget = spilling(native, with_firn, dirs=[spill_dir], host="32MiB",
                                  preexec_fn=refuse_io_uring)
    check_same(run, alone)
    check_budget(run, budget)
    assert run.stats["store"]["kind"] == "threads"
    assert "io_uring" in run.stats["store"]["why"]
    assert run.stats["store"]["read_bytes"] > 0


def other_version(paths, folder):
    """Settings with which the present `firn` is found as if it were built for torch 2.4."""
    found = subprocess.run([paths.python, "-c", "import firn, os; print(os.path.dirname("
                            "firn.__file__))"], capture_output=True, text=True, check=True,
                           env=script_runs.clean_environment(), cwd="/")
    package = folder / "firn"
    package.mkdir(parents=True)
    for each in pathlib.Path(found.stdout.strip()).iterdir():
        if each.name == "lib":
            (package / "lib").mkdir()
            for library in each.iterdir():
                name = re.sub(r"-\d+\.\d+\.so$", "-2.4.so", library.name)
                (package / "lib" / name).symlink_to(library)
        elif each.name != "__pycache__":
            (package / each.name).symlink_to(each)
    python_path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(python_path)}
    if os.environ.get("FIRN_TEST_BUILD"):
        build = folder / "build"
        (build / "pytorch_plugin").mkdir(parents=True)
        (build / "backing").symlink_to(pathlib.Path(os.environ["FIRN_TEST_BUILD"]) / "backing")
        (build / "pytorch_plugin/_build.py").write_text("torch_version = '2.4.1'\n")
        settings["FIRN_BUILD"] = str(build)
    return settings


@pytest.mark.quick
def test_another_torch_version_is_named(paths, with_firn, tmp_path):
    environment = other_version(paths, tmp_path / "other")
    run = with_firn(START, budget="1GiB", environment=environment)
    assert run.status == 2, run.text
    (line,) = run.text.splitlines()
    assert "built for torch 2.4, found 2.11" in line
    run = with_conf(paths, tmp_path, "", environment={**environment, "FIRN_DEVICE": ""},
                    script="import torch; print('imported'); torch.cuda.init()")
    assert run.status == 1 and "imported" in run.text.splitlines(), run.text
    assert run.text.splitlines()[-1].startswith(
        "RuntimeError: firn: built for torch 2.4, found 2.11"), run.text
