"""The runner tells how a test ended, of a file with one test of each kind."""

import os
import textwrap

import pytest

import run_upstream

TESTS = """
    import os, time, unittest
    import torch

    class TestCuda(unittest.TestCase):
        def test_dies(self):
            os.kill(os.getpid(), 9)

        def test_fails(self):
            self.assertEqual(torch.ones(3, device="cuda").sum().item(), 4)

        def test_is_late(self):
            time.sleep(1000)

        def test_is_skipped(self):
            self.skipTest("no reason")

        def test_passes(self):
            self.assertEqual(torch.ones(3 << 20, device="cuda").sum().item(), 3 << 20)

        def test_who_allocates(self):
            self.assertIn(torch.cuda.get_allocator_backend(), ("native", "firn"))
            self.assertEqual(os.environ.get("FIRN_BUDGET"), None)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tests")
    (folder / "test_cuda.py").write_text(textwrap.dedent(TESTS))
    options = run_upstream.parse(["--tests", str(folder), "--modes", "native,firn,pressure"])
    options.build = os.environ.get("FIRN_TEST_BUILD")
    options.seconds = 15  # all of which test_is_late takes
    return run_upstream.run_all(folder, options)


def test_every_end_is_told(found):
    ends = {test.split(".")[1]: said["end"] for test, said in found["native"].items()}
    assert ends == {"test_dies": "died", "test_fails": "failed", "test_is_late": "late",
                    "test_is_skipped": "skipped", "test_passes": "passed",
                    "test_who_allocates": "passed"}
    assert "Scalars" in found["native"]["TestCuda.test_fails"]["said"] or \
        "3.0 != 4" in found["native"]["TestCuda.test_fails"]["said"]
    assert found["native"]["TestCuda.test_is_skipped"]["said"] == "no reason"
    assert found["native"]["TestCuda.test_passes"]["peak"] >= 12 << 20


def test_only_what_passes_natively_is_asked_of_firn(found):
    assert set(found["firn"]) == {"TestCuda.test_passes", "TestCuda.test_who_allocates"}


def test_what_differs_is_unexpected(found):
    # Under pressure a test has a budget, which this one does not like.
    assert list(run_upstream.unexpected(found)) == [("pressure", "TestCuda.test_who_allocates")]
    assert found["pressure"]["TestCuda.test_passes"]["end"] == "passed"
