"""Every call that works with the native allocator gives the same answer with Firn's, or is listed
below with the reason. compare.py prints both answers."""

import os

import compare
import pytest

DIFFERENT = {
    "call_sizes_are_rounded_alike":
        "small blocks come in eight sizes to a doubling; what a block takes is counted",
    "call_segments_add_up": "likewise",
    "call_out_of_memory_is_counted":
        "what exceeds the whole budget is refused without giving anything back first: no retry",
    "call_an_allocator_of_its_own":
        "natively, what waited for other streams is not looked at while a pool is in use, and "
        "more memory is taken",
    "call_roundup": "roundup_power2_divisions is needless, and says so",
    "call_roundup_by_size": "likewise",
    "call_negative_sizes": "natively -1 bytes are 0",
}


@pytest.fixture(scope="module")
def settings():
    found = compare.environment(os.environ.get("FIRN_TEST_BUILD"))
    if "None" in found["LD_PRELOAD"] or not found["LD_PRELOAD"]:
        pytest.skip("Firn's libraries are not built or not installed")
    return found


# While memory is spilled: what the device holds of it is less, and says so.
DIFFERENT_WHEN_SPILLED = {
}


@pytest.fixture(scope="module")
def native():
    return {}


@pytest.mark.parametrize("state", compare.STATES, ids=lambda state: state or "nothing")
@pytest.mark.parametrize("path", compare.files(), ids=lambda path: path.stem)
def test_calls_answer_as_natively(path, state, settings, native):
    if path not in native:
        native[path] = compare.answers(path, settings)
    answers = compare.compare(path, settings, state=state, native=native[path])
    assert answers
    # Without examples nothing is compared.
    assert [name for name, found, _ in answers if "error" in found] == []
    different = DIFFERENT if state == "" else {**DIFFERENT, **DIFFERENT_WHEN_SPILLED}
    assert {name: (found, firn) for name, found, firn in answers
            if not compare.agrees(found, firn) and
            (name not in different or "error" in firn)} == {}
