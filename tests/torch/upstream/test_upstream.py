"""What of PyTorch's own tests passes with the native allocator passes with Firn's. Needs PyTorch's
test files, of which none is here: FIRN_TORCH_TESTS names their folder (see run_upstream.py)."""

import os

import pytest

import run_upstream


@pytest.fixture(scope="module")
def found():
    folder = os.environ.get("FIRN_TORCH_TESTS")
    if not folder:
        pytest.skip("FIRN_TORCH_TESTS does not name the folder of PyTorch's tests")
    options = run_upstream.parse(["--tests", folder])
    options.build = os.environ.get("FIRN_TEST_BUILD")
    return run_upstream.run_all(folder, options)


@pytest.mark.long
@pytest.mark.parametrize("mode", [mode for mode in run_upstream.MODES if mode != "native"])
def test_what_passes_natively_passes_with_firn(found, mode):
    passed = [test for test, said in found["native"].items() if said["end"] == "passed"]
    assert len(passed) > 100  # else this compares nothing
    assert set(found[mode]) == set(passed)
    assert {test: said for (of, test), said in run_upstream.unexpected(found).items()
            if of == mode} == {}
