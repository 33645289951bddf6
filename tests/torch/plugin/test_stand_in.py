"""PyTorch and the library in front of the driver: whoever comes first, one engine is in charge."""

import json

import pytest

USED = """
    import os, sys, torch
    x = torch.arange(1 << 20, device="cuda")
    assert x.sum().item() == (1 << 19) * ((1 << 20) - 1)
    mapped = {line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps")
              if "/" in line}
"""
IN_FRONT = USED + """
    import firn
    assert firn.enabled() and torch.cuda.get_allocator_backend() == "firn"
    stats = firn.stats()
    (device,) = stats["devices"]  # one engine
    assert device["peak_allocated_bytes"] >= 8 << 20
    assert stats["coverage"]["driver"].endswith("/software/libcuda.so.1")
    assert "cuMemAlloc_v2" in stats["coverage"]["hooked"]
    assert stats["coverage"]["calls"].get("cuMemAlloc_v2", 0) == 0
    assert not any("Triton" in words for words in device["unseen"])
    assert {"libfirn_preload.so", "libfirn_behind.so", "libfirn_torch.so"} <= mapped \\
        or any(name.startswith("libfirn_torch-") for name in mapped)
"""


@pytest.fixture
def runtime_only(libraries):
    """The software GPU's runtime is there and no driver: nobody has opened one yet."""
    return {"LD_PRELOAD": libraries["software/libcudart.so.13"]}


@pytest.fixture
def preloaded(libraries):
    return {"LD_PRELOAD": "%s:%s" % (libraries["libfirn_preload.so"],
                                     libraries["software/libcudart.so.13"])}


def test_it_is_loaded_before_torch_opens_the_driver(run, runtime_only):
    assert run(IN_FRONT, **runtime_only).stderr == ""


def test_children_have_it_too(run, runtime_only):
    code = "import subprocess, sys\n" \
           "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    # (The code of the child is an argument of run's own Python.)
    done = run("import sys; sys.argv[1:] = [%r]\n%s" % (IN_FRONT.replace("\n    ", "\n"), code),
               **runtime_only)
    assert done.stderr == ""


def test_processes_without_torch_do_not_have_it(run, runtime_only):
    run("""
        import sys
        assert "firn._startup" in sys.modules and "ctypes" not in sys.modules
        assert "libfirn" not in open("/proc/self/maps").read()
        import json, subprocess, multiprocessing
        assert "libfirn" not in open("/proc/self/maps").read()
    """, **runtime_only)


def test_a_module_that_is_not_there_stays_so(run, runtime_only):
    run("""
        import sys
        sys.path[:] = [each for each in sys.path if "site-packages" not in each]
        try:
            import torch
        except ModuleNotFoundError as error:
            assert error.name == "torch"
        else:
            raise SystemExit("torch was found")
        assert not any("firn" in str(each) for each in sys.meta_path)
    """, **runtime_only)


def test_where_the_driver_was_opened_before_it_is_said(run):
    """(The software driver is preloaded, as somebody's earlier import would have loaded it.)"""
    run(USED + """
    import firn
    assert firn.enabled() and "libfirn_behind.so" not in mapped
    (device,) = firn.stats()["devices"]
    assert any("Triton" in words for words in device["unseen"])
    assert "coverage" not in firn.stats()
    """)


@pytest.mark.parametrize("in_front", [True, False])
def test_where_launches_go_unseen_nothing_is_made_again_and_it_is_said(run, runtime_only, in_front):
    done = run(USED, FIRN_REMAKE="1", **(runtime_only if in_front else {}))
    assert ("firn_remake: nothing is made again here" in done.stderr) != in_front, done.stderr


def test_where_launches_go_unseen_and_nobody_asked_nothing_is_said(run):
    assert "firn_remake" not in run(USED).stderr


def test_preloaded_with_the_package_asked_for(run, preloaded):
    assert run(IN_FRONT, **preloaded).stderr == ""


def test_preloaded_alone_it_switches_the_plugin_on(run, preloaded):
    done = run(IN_FRONT, conf=None, **preloaded)
    assert done.stderr == "firn: preloaded: PyTorch uses Firn's allocator (backend:firn)\n"
    # The words for Firn are taken as they are with backend:firn, and torch's are torch's.
    done = run(IN_FRONT + """
    assert device["budget_bytes"] == 64 << 20
    """, conf="max_split_size_mb:64,firn_budget:64MiB", **preloaded)
    assert "backend:firn" in done.stderr


def test_preloaded_a_backend_that_was_chosen_stays(run, preloaded):
    done = run(USED + """
    import firn
    assert not firn.enabled() and torch.cuda.get_allocator_backend() == "native"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "backend:native"
    """, conf="backend:native", **preloaded)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in done.stderr and done.stderr.count("\n") == 1


NATIVE = """
    import ctypes, sys
    import torch
    operators = ctypes.CDLL(%r)
    assert operators.firn_torch_ops_start() == 0
    blocks = [torch.full((1 << 18,), float(i), device="cuda") for i in range(40)]
    assert [int(block[-1].item()) for block in blocks] == list(range(40))
    front = ctypes.CDLL("libcuda.so.1")
    assert torch.cuda.get_allocator_backend() == "native" and "firn" not in sys.modules
"""


def test_preloaded_without_the_package_torch_asks_block_by_block(run, preloaded, libraries,
                                                                  tmp_path):
    stats = tmp_path / "stats.json"
    done = run(NATIVE % libraries["libfirn_torch_ops.so"], conf=None, FIRN_STATS=str(stats),
               TORCH_DEVICE_BACKEND_AUTOLOAD="0", **preloaded)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in done.stderr and done.stderr.count("\n") == 1
    document = json.loads(stats.read_text())
    assert document["coverage"]["calls"]["cuMemAlloc_v2"] >= 40  # 20 MiB pools would be two
    assert document["devices"][0]["peak_allocated_bytes"] >= 40 << 20


def test_words_for_the_package_that_is_not_there_are_taken(run, preloaded, libraries, tmp_path):
    """As a C++ program under `firn run` has them: PyTorch would refuse backend:firn."""
    stats = tmp_path / "stats.json"
    code = """
    import ctypes
    ctypes.CDLL(None).setenv(b"PYTORCH_CUDA_ALLOC_CONF",
                             b"max_split_size_mb:64,backend:firn,firn_budget:64MiB", 1)
    """ + NATIVE % libraries["libfirn_torch_ops.so"]
    done = run(code, conf=None, TORCH_DEVICE_BACKEND_AUTOLOAD="0", FIRN_STATS=str(stats),
               **preloaded)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in done.stderr and done.stderr.count("\n") == 1
    assert json.loads(stats.read_text())["devices"][0]["budget_bytes"] == 64 << 20


def test_what_the_user_said_of_caching_stays(run, preloaded, libraries):
    done = run(NATIVE % libraries["libfirn_torch_ops.so"], conf=None,
               TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTORCH_NO_CUDA_MEMORY_CACHING="1", **preloaded)
    assert done.stderr == ""


def test_who_came_first_is_in_charge_of_one_engine(run, preloaded):
    """Memory of another library's, asked of the driver before torch was there."""
    done = run("""
        import ctypes
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert driver.cuCtxSetCurrent(context) == 0
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 << 20)) == 0
        import torch, firn
        x = torch.ones(2 << 20, device="cuda")
        assert x.sum().item() == 2 << 20 and firn.enabled()
        (counted,) = firn.stats()["devices"]
        assert counted["peak_allocated_bytes"] >= 16 << 20 and counted["budget_bytes"] == 64 << 20
        assert firn.stats()["coverage"]["calls"]["cuMemAlloc_v2"] == 1
        assert driver.cuMemFree_v2(address) == 0
        (counted,) = firn.stats()["devices"]
        assert 8 << 20 <= counted["allocated_bytes"] < 16 << 20
    """, conf="backend:firn,firn_budget:64MiB", **preloaded)
    assert done.stderr == ""


LAUNCH = """
    import ctypes, json, os, torch
    import firn
    from firn import _autoload, _addresses
    plugin = _autoload.plugin()
    driver = ctypes.CDLL("libcuda.so.1")
    # Of 4 MiB: with more it would take seconds on a busy machine, and be told that it thrashes.
    xs = [torch.full((1 << 20,), float(i), device="cuda") for i in range(12)]
    torch.cuda.synchronize()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoad(ctypes.byref(module), os.environ["KERNEL"].encode()) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"add_one") == 0

    def state(x):
        text = ctypes.create_string_buffer(64)
        plugin.firn_torch_state(_addresses.storage_address(x.untyped_storage()), text, 64)
        return text.value.decode()

    def launch(x):
        address = ctypes.c_uint64(_addresses.storage_address(x.untyped_storage()))
        count = ctypes.c_int(x.numel())
        words = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(count))
        assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, words, None) == 0

    for _ in range(2):
        for x in xs:
            x.add_(0)
        plugin.firn_torch_spill_all()
        left = [state(x) for x in xs]
        assert "spilled" in str(left) or "hosted" in str(left), left
        for x in xs:
            launch(x)
    assert [x[0].item() for x in xs] == [i + 2.0 for i in range(12)]
    assert all((x == i + 2.0).all().item() for i, x in enumerate(xs))
"""


CONF = "backend:firn,firn_budget:32MiB,firn_host:128MiB,firn_watch:0,firn_policy:age"


@pytest.mark.parametrize("way", ["runtime_only", "preloaded"])
def test_kernels_that_no_operator_launches_are_seen(run, kernel, request, way):
    """(Its memory is not on the device when the kernel is launched, nor was its address asked for
    by a way that pins it.)"""
    done = run(LAUNCH, conf=CONF, **kernel, **request.getfixturevalue(way))
    assert done.stderr == ""


def test_without_it_such_a_kernel_touches_memory_that_is_not_there(run, kernel):
    done = run(LAUNCH, conf=CONF, status=None, **kernel)
    assert done.returncode != 0


BY_NAME = """
    import ctypes, os, torch
    import firn
    from firn import _addresses
    driver = ctypes.CDLL("libcuda.so.1")
    kept = torch.full((2 << 20,), 5.0, device="cuda")
    given = torch.full((2 << 20,), 1.0, device="cuda")
    torch.cuda.synchronize()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoad(ctypes.byref(module), os.environ["KERNEL"].encode()) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"add_one") == 0

    def by_name(x):
        # Its kernel uses what it was given, and a tensor that it has by another way.
        for tensor in (x, kept):
            address = ctypes.c_uint64(_addresses.storage_address(tensor.untyped_storage()))
            count = ctypes.c_int(tensor.numel())
            words = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(count))
            assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, words, None) == 0

    library = torch.library.Library("firn_test", "FRAGMENT")
    library.define("by_name(Tensor(a!) x) -> ()")
    library.impl("by_name", by_name, "CUDA")
    for _ in range(5):
        kept.mul_(1)
        torch.ops.firn_test.by_name(given)
        given.mul_(1)
    assert (kept == 10).all().item() and (given == 6).all().item(), (kept[0], given[0])
"""


@pytest.mark.parametrize("way", ["runtime_only", "preloaded"])
def test_an_operator_of_others_may_use_what_it_was_not_given(run, kernel, request, way):
    """A tensor that its kernel has from a closure: everything leaves after every operator."""
    done = run(BY_NAME, conf="backend:firn,firn_host:256MiB,firn_test_adversarial:1", **kernel,
               **request.getfixturevalue(way))
    assert done.stderr == ""


@pytest.mark.parametrize("veneers", ["all", "cuLaunchKernel,cuMemcpyAsync,cuMemAlloc"])
def test_kernels_are_seen_whatever_address_the_driver_answers(run, kernel, runtime_only, veneers):
    """cuGetProcAddress answers others than dlsym does."""
    ask = LAUNCH.replace("driver.cuLaunchKernel(", "asked(")
    ask = ask.replace('    xs = [', """
    asked = ctypes.c_void_p()
    status = ctypes.c_int()
    assert driver.cuGetProcAddress_v2(b"cuLaunchKernel", ctypes.byref(asked), 13000,
                                      ctypes.c_uint64(1), ctypes.byref(status)) == 0
    asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p,
                             ctypes.c_void_p, ctypes.c_void_p)(asked.value)
    xs = [""", 1)
    assert ask.count("asked") > 3
    done = run(ask, conf=CONF, FIRN_GPU_VENEERS=veneers, **kernel, **runtime_only)
    assert done.stderr == ""


def test_nothing_leaves_where_the_drivers_answers_cannot_be_placed(run, runtime_only):
    done = run("""
        import torch, firn
        xs = []
        try:
            for i in range(12):
                xs.append(torch.full((2 << 20,), float(i), device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            assert False
        (device,) = firn.stats()["devices"]
        assert device["spilled_bytes"] == 0, device
        assert any("cuGetProcAddress" in words for words in device["unseen"]), device["unseen"]
    """, conf=CONF, FIRN_GPU_VENEERS="each", **runtime_only)
    (line,) = done.stderr.splitlines()
    assert line.startswith("firn: cuGetProcAddress(") and "nothing leaves the GPU" in line


def test_who_opened_the_driver_first_is_told(run):
    """(The software GPU is preloaded here, so that Firn comes too late to stand in front of it.)"""
    done = run("""
        import torch, firn
        library = torch.library.Library("firn_test", "FRAGMENT")
        library.define("others(Tensor(a!) x) -> ()")
        library.impl("others", lambda x: None, "CUDA")
        x, y = (torch.full((2 << 20,), 1.0, device="cuda") for _ in range(2))
        torch.ops.firn_test.others(x), y.add_(1)
        (device,) = firn.stats()["devices"]
        pinned = {each["reason"]: each["bytes"] for each in device["pinned"]}
        words = "given to an operator that is not PyTorch's own, whose launches go unseen"
        assert pinned[words] == 8 << 20, pinned
    """, conf=CONF)
    (line,) = done.stderr.splitlines()
    assert "before Firn could stand in front of it" in line
