"""A kernel of the program's own fails while memory is short: the error is the program's own, at
once, and what a program does in an except clause works."""

import pytest

# A kernel that is the C library's abort(), as a failed assertion; or one that stores to an address
# that nothing is mapped at.
FAILING = """
    import ctypes, time, torch
    gpu = ctypes.CDLL("libcuda.so.1")
    layout = (ctypes.c_uint * 4)(0, 8, 0, 0)

    def launch(name, address):
        function = ctypes.c_void_p()
        assert gpu.firnGpuKernelCreate(name.encode(), address, layout,
                                       ctypes.byref(function)) == 0
        value = ctypes.c_uint64(0)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert gpu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, None) == 0

    def address_of(name):
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p)

    kept = [torch.full((1 << 20,), float(i), device="cuda") for i in range(24)]
    torch.cuda.synchronize()
    FAIL
    begin = time.monotonic()
    try:
        while True:
            kept.append(torch.empty(3 << 20, device="cuda"))
            kept[len(kept) % 24].add_(1)
    except RuntimeError as error:
        words = str(error)
    assert time.monotonic() - begin < 10, time.monotonic() - begin
    assert "EXPECTED" in words, words
    assert not isinstance(words, torch.OutOfMemoryError)
    torch.cuda.empty_cache()
    del kept
    torch.cuda.empty_cache()
    begin = time.monotonic()
    try:
        torch.empty(40 << 20, device="cuda")
    except RuntimeError as error:
        assert "EXPECTED" in str(error), error
    else:
        raise AssertionError("memory of a dead device")
    assert time.monotonic() - begin < 1
    print("went on")
"""

CONF = "backend:firn,firn_budget:64MiB,firn_host:256MiB"
ASSERTION = ('launch("assertion", address_of("abort"))', "device-side assert triggered")
ADDRESS = ('gpu.firnGpuDie(700, ctypes.c_uint64(0))', "an illegal memory access was encountered")
LAUNCH = ('gpu.firnGpuDie(719, ctypes.c_uint64(40))', "unspecified launch failure")


@pytest.mark.parametrize("fail, expected", [ASSERTION, ADDRESS, LAUNCH],
                         ids=["assertion", "address", "launch"])
@pytest.mark.parametrize("policy", ["lifetime", "age"])
def test_the_error_is_the_program_s_own(run, fail, expected, policy):
    done = run(FAILING.replace("FAIL", fail).replace("EXPECTED", expected),
               conf=f"{CONF},firn_policy:{policy}")
    assert "went on" in done.stdout
    assert done.stderr.count("the device answers no more") == 1, done.stderr


def test_natively_the_words_are_the_same(run):
    code = FAILING.replace("FAIL", ASSERTION[0]).replace("EXPECTED", ASSERTION[1])
    done = run(code.split("    torch.cuda.empty_cache()")[0], conf=None)
    assert "failed an assertion" in done.stderr


def test_nothing_is_left_and_the_end_is_quick(run, tmp_path):
    spill = tmp_path / "spill"
    spill.mkdir()
    run(FAILING.replace("FAIL", ASSERTION[0]).replace("EXPECTED", ASSERTION[1]) + """
    import os
    os._exit = None
    """, conf=f"{CONF},firn_host:16MiB,firn_dir:{spill}".replace("firn_host:256MiB,", ""))
    assert not list(spill.iterdir())
