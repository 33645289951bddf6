"""The plugin's tests with a build that ends where a lock, the GIL among them, is taken in the wrong
order."""

import subprocess

import pytest

import script_runs


@pytest.mark.long
def test_the_plugin_takes_its_locks_in_order():
    done = subprocess.run([str(script_runs.ROOT / "tests/torch/lock_ranks.sh")], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-20_000:]
