"""The plugin's tests with other releases of torch than .venv's: those that the wheel is built for, and
the newest that there is. Minutes each, and a network."""

import re
import subprocess
import sys

import pytest

import script_runs

NO_TORCH = 77
TORCHES = (script_runs.ROOT / "bench/wheel/torches.txt").read_text().split("\n")
WHEELS = [line for line in TORCHES if re.fullmatch(r"\d+\.\d+\.\d+", line)]
OTHERS = WHEELS[1:]  # .venv's is the first


def minor(version):
    return tuple(int(part) for part in version.split(".")[:2])


def test_the_list_is_one_of_each_minor_in_order():
    assert len(WHEELS) > 1 and WHEELS == sorted(WHEELS, key=minor)
    assert len({minor(each) for each in WHEELS}) == len(WHEELS)
    wanted = re.search(r"^torch==(\S+)$",
                       (script_runs.ROOT / "bench/requirements.txt").read_text(), re.M)
    assert WHEELS[0] == wanted.group(1)


@pytest.mark.long
@pytest.mark.parametrize("version", OTHERS)
def test_with_another_torch(version):
    done = subprocess.run([str(script_runs.ROOT / "tests/torch/other_torch.sh"), version],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == NO_TORCH:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.long
def test_the_newest_release_is_among_them():
    """Says which one has appeared, and whether Firn builds against it as it is."""
    asked = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "index",
                            "versions", "torch"], capture_output=True, text=True)
    newest = re.search(r"^torch \((\d+\.\d+\.\d+)\)", asked.stdout, re.M)
    if not newest:
        pytest.skip("nobody says which releases of torch there are: " + asked.stderr[-200:])
    if newest.group(1) in WHEELS or minor(newest.group(1)) in map(minor, WHEELS):
        return
    built = subprocess.run([str(script_runs.ROOT / "tests/torch/other_torch.sh"), newest.group(1),
                            "tests/torch/plugin/test_startup.py"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    pytest.fail(f"torch {newest.group(1)} has appeared, which bench/wheel/torches.txt lacks; Firn "
                + ("builds and starts" if built.returncode == 0 else "does not build or start")
                + " with it:\n" + built.stdout[-5000:])
