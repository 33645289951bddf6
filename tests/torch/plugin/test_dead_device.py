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
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        words = str(error)
    assert time.monotonic() - begin < 10, time.monotonic() - begin
    assert "EXPECTED" in words, words
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
    assert done.stderr.count("the device has failed: Firn stops moving blocks") == 1, done.stderr


def test_natively_it_is_the_same(run):
    """Without memory being short the error comes with the first synchronisation."""
    code = FAILING.replace("FAIL", ASSERTION[0]).replace("EXPECTED", ASSERTION[1])
    code = code.split("    begin = ")[0] + """
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "EXPECTED" in str(error), error
    else:
        raise AssertionError("nothing failed")
    """.replace("EXPECTED", ASSERTION[1])
    run(code, conf=None)


def test_nothing_is_left(run, tmp_path):
    spill = tmp_path / "spill"
    spill.mkdir()
    run(FAILING.replace("FAIL", ASSERTION[0]).replace("EXPECTED", ASSERTION[1]),
        conf=f"backend:firn,firn_budget:64MiB,firn_host:16MiB,firn_dir:{spill}")
    assert not list(spill.iterdir())
