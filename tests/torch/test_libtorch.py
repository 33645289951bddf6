"""A C++ program that is linked with libtorch, without Python: `firn run` puts the library in front
of the driver into it, and on the software GPU the kernels of PyTorch's operators. The same bits as
on the processor, with all the memory, half of it and a third."""

import json
import pathlib
import shutil
import subprocess

import pytest

import script_runs

SOURCE = pathlib.Path(__file__).parent / "libtorch/train.cpp"
STEPS = 3


@pytest.fixture(scope="module")
def program(paths, tmp_path_factory):
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    asked = subprocess.run([paths.python, "-c", "import torch; print(torch.__path__[0])"],
                           env=script_runs.clean_environment(), capture_output=True, text=True,
                           check=True)
    torch = pathlib.Path(asked.stdout.strip())
    built = tmp_path_factory.mktemp("libtorch") / "train"
    done = subprocess.run(
        [compiler, "-std=c++17", "-O0", "-DNDEBUG", "-isystem", torch / "include",
         "-isystem", torch / "include/torch/csrc/api/include", SOURCE, "-o", built,
         f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-Wl,--no-as-needed",
         "-ltorch_cuda", "-ltorch_cpu", "-ltorch", "-lc10_cuda", "-lc10"],
        capture_output=True, text=True, timeout=script_runs.TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return built


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith(("loss ", "sum ", "threads "))]


def firn_run(paths, program, folder, *options):
    stats = folder / "stats.json"
    done = subprocess.run(
        [paths.firn, "run", "--device", "software", "--gpu-memory", "1GiB", "--stats", stats,
         *options, "--", program, "cuda", str(STEPS)], env=script_runs.clean_environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=script_runs.TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, json.loads(stats.read_text())


@pytest.fixture(scope="module")
def on_the_processor(program):
    done = subprocess.run([program, "cpu", str(STEPS)], env=script_runs.clean_environment(),
                          capture_output=True, text=True, timeout=script_runs.TIMEOUT_S, check=True)
    lines = lines_of(done.stdout)
    assert len(lines) == STEPS + 2
    return lines


@pytest.fixture(scope="module")
def with_room(paths, program, tmp_path_factory):
    return firn_run(paths, program, tmp_path_factory.mktemp("room"))


def test_it_runs_where_all_fits(with_room, on_the_processor):
    done, stats = with_room
    assert lines_of(done.stdout) == on_the_processor
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in done.stderr
    (device,) = stats["devices"]
    assert device["peak_allocated_bytes"] > 32 << 20 and device["spilled_bytes"] == 0
    assert stats["coverage"]["launches"] > 100


@pytest.mark.parametrize("part", [.5, .35])
def test_bits_are_equal_with_less_memory(paths, program, with_room, on_the_processor, spill_dir,
                                         tmp_path, part):
    (roomy,) = with_room[1]["devices"]
    budget = int(roomy["peak_allocated_bytes"] * part) // script_runs.GRANULE * script_runs.GRANULE
    done, stats = firn_run(paths, program, tmp_path, "--budget", str(budget), "--host", "16MiB",
                           "--dir", spill_dir, "--verify")
    assert lines_of(done.stdout) == on_the_processor
    (device,) = stats["devices"]
    assert device["spilled_bytes"] > 0 and device["peak_device_bytes"] <= budget
    assert stats["coverage"]["unknown_kernels"] == 0 and stats["coverage"]["warnings"] == []


def test_a_release_without_operators_is_named(paths, program, tmp_path):
    """Beside another PyTorch, for which there are none."""
    lib = pathlib.Path(program).parent / "other/lib"
    lib.mkdir(parents=True)
    (lib.parent / "build-version").write_text("1.13.1+cu117\n")
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    (real,) = [line.split()[2] for line in needed.splitlines() if "libc10_cuda.so" in line]
    (lib / "libc10_cuda.so").symlink_to(real)
    done = subprocess.run(
        [paths.firn, "run", "--device", "software", "--gpu-memory", "1GiB", "--", "env",
         f"LD_LIBRARY_PATH={lib}", program, "cuda", "1"], env=script_runs.clean_environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=script_runs.TIMEOUT_S)
    assert done.returncode != 0
    assert "firn: the software GPU cannot run PyTorch's operators: PyTorch 1.13" in done.stderr
