"""The plugin's tests with another release of torch than .venv's: minutes, and a network."""

import subprocess

import pytest

import script_runs

OTHER = "2.12.1"
NO_TORCH = 77


@pytest.mark.long
def test_with_another_torch():
    done = subprocess.run([str(script_runs.ROOT / "tests/torch/other_torch.sh"), OTHER], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == NO_TORCH:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:]
