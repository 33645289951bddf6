"""What a program sees of the allocator: statistics, limits, errors, pools, refusals."""

import json

import pytest

STATISTICS = """
    import json, torch
    kept = [torch.ones(n, device="cuda") for n in (1, 1000, 300_000, 1 << 20, 5 << 20)]
    gone = torch.ones(2 << 20, device="cuda")
    del gone
    torch.cuda.synchronize()
    print(json.dumps(torch.cuda.memory_stats()))
"""


def test_statistics_are_those_of_the_native_allocator(run):
    native = json.loads(run(STATISTICS, conf=None).stdout)
    firn = json.loads(run(STATISTICS).stdout)
    assert set(firn) == set(native)
    same = [key for key in native if key.startswith(("allocation.", "allocated_bytes.",
                                                     "requested_bytes."))]
    assert len(same) == 36
    assert {key: firn[key] for key in same if ".all." in key} \
        == {key: native[key] for key in same if ".all." in key}
    for key in ("max_split_size", "num_ooms"):
        assert firn[key] == native[key]
    assert firn["reserved_bytes.all.current"] >= firn["allocated_bytes.all.current"]


def test_statistics_are_reset(run):
    run("""
        import torch
        a = torch.ones(8 << 20, device="cuda")
        del a
        b = torch.ones(1 << 20, device="cuda")
        assert torch.cuda.max_memory_allocated() == 32 << 20
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 4 << 20
        assert torch.cuda.memory_stats()["allocation.all.freed"] > 0
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.memory_stats()["allocation.all.freed"] == 0
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
        assert "allocated" in torch.cuda.memory_summary().lower()
    """)


def test_empty_cache_gives_memory_back(run):
    run("""
        import torch
        a = torch.ones(16 << 20, device="cuda")
        free = torch.cuda.mem_get_info()[0]
        del a
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert torch.cuda.mem_get_info()[0] >= free + (64 << 20)
    """)


def test_out_of_memory_is_torch_s(run):
    done = run("""
        import torch
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(
            lambda device, bytes, total, free: seen.append((device, bytes, total)))
        x = torch.ones(1 << 20, device="cuda")
        try:
            torch.empty(40 << 20, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            print(error)
        assert seen == [(0, 160 << 20, 1 << 30)]
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        assert x.sum().item() == 1 << 20  # and life goes on
        torch.empty(10 << 20, device="cuda")
        try:
            torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert "Tried to allocate" in str(error)
    """, conf="backend:firn,firn_budget:128MiB")
    assert done.stdout.startswith("CUDA out of memory. Tried to allocate 160.00 MiB. GPU 0 has a "
                                  "total capacity of 1024.00 MiB of which ")
    assert "128.00 MiB allowed" in done.stdout and "firn_budget" in done.stdout


def test_memory_fraction_is_of_the_device(run):
    run("""
        import torch, firn
        torch.cuda.init()
        budget = lambda: firn.stats()["devices"][0]["budget_bytes"]
        torch.cuda.set_per_process_memory_fraction(0.5)
        x = [torch.full((4 << 20,), float(i), device="cuda") for i in range(40)]  # 640 MiB
        assert budget() == 512 << 20
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert budget() == 256 << 20 and torch.cuda.get_per_process_memory_fraction() == 0.25
        assert [each[-1].item() for each in x] == list(range(40))
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert budget() > 900 << 20
        for bad in (-0.1, 1.1):
            try:
                torch.cuda.set_per_process_memory_fraction(bad)
            except ValueError:
                pass
            else:
                assert False
    """, conf="backend:firn,firn_host:1GiB,firn_watch:0.1")


def test_wrong_pointers_are_refused(run):
    run("""
        import torch
        torch.cuda.init()
        pointer = torch.cuda.caching_allocator_alloc(4 << 20)
        small = torch.cuda.caching_allocator_alloc(100)
        for wrong in (pointer + 512, 4096, small + 1):
            try:
                torch.cuda.caching_allocator_delete(wrong)
            except RuntimeError as error:
                assert "invalid device pointer" in str(error), error
            else:
                assert False, hex(wrong)
        for each in (pointer, small):
            torch.cuda.caching_allocator_delete(each)
            try:
                torch.cuda.caching_allocator_delete(each)  # again
            except RuntimeError as error:
                assert "invalid device pointer" in str(error), error
            else:
                assert False
        assert torch.cuda.memory_allocated() == 0
    """)


def test_snapshot_and_history(run):
    run("""
        import torch
        torch.cuda.memory._record_memory_history(max_entries=100)
        a = torch.ones(3 << 20, device="cuda")
        b = torch.ones(10, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        live = [block for segment in snapshot["segments"] for block in segment["blocks"]
                if block["state"] == "active_allocated"]
        assert sorted(block["requested_size"] for block in live) == [40, 12 << 20]
        for segment in snapshot["segments"]:
            assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
            (address,) = {block["address"] for block in segment["blocks"][:1]}
            assert address == segment["address"]
        assert a.data_ptr() in [block["address"] for block in live]
        assert all(block["frames"] for block in live)
        (trace,) = snapshot["device_traces"]
        assert [entry["action"] for entry in trace] == ["segment_alloc", "alloc"] * 2
        pointer = a.data_ptr()
        del a
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        assert [entry["action"] for entry in trace][4:] == ["snapshot", "free_requested",
                                                            "free_completed"]
        assert trace[-1]["addr"] == pointer and trace[-1]["size"] == 12 << 20
        torch.cuda.memory._record_memory_history(enabled=None)
        assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
        torch.cuda.memory_snapshot()
    """)


def test_record_stream(run):
    run("""
        import torch
        side = torch.cuda.Stream()
        for _ in range(20):
            x = torch.full((2 << 20,), 3.0, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(3_000_000)
                y = x * 2
            x.record_stream(side)
            del x
            z = torch.full((2 << 20,), 5.0, device="cuda")  # must not be where x was
            side.synchronize()
            assert y.min().item() == y.max().item() == 6
    """)


def test_fork(run):
    """The child of a fork leaves the parent's memory alone, whether it ends by exit or _exit."""
    done = run("""
        import os, sys, torch
        x = torch.full((4 << 20,), 7.0, device="cuda")
        for leave in (os._exit, sys.exit):
            pid = os.fork()
            if pid == 0:
                del x
                leave(0)
            assert os.waitpid(pid, 0)[1] == 0
        assert x.sum().item() == 7 * (4 << 20)
        print("parent")
    """)
    assert done.stdout.split() == ["parent"]


def test_exit_with_tensors_alive(run, libraries):
    """At exit memory is left to the operating system: no error, whoever holds it."""
    done = run("""
        import torch, builtins
        builtins.kept = torch.ones(8 << 20, device="cuda", requires_grad=True)
        builtins.also = (builtins.kept * 2).sum()
        torch._kept = [torch.ones(8 << 20, device="cuda") for _ in range(40)]
    """, conf="backend:firn,firn_budget:256MiB,firn_host:2GiB",
               LD_PRELOAD=libraries["software/libcudart.so.13"])
    assert done.stderr == ""


def test_mem_pool(run):
    run("""
        import torch
        pool = torch.cuda.MemPool()
        before = torch.ones(4 << 20, device="cuda")
        with torch.cuda.use_mem_pool(pool):
            a = torch.ones(4 << 20, device="cuda")
            address = a.data_ptr()
            del a
            b = torch.ones(4 << 20, device="cuda")
            assert b.data_ptr() == address  # reused within the pool
        del b
        c = torch.ones(4 << 20, device="cuda")
        assert c.data_ptr() != address  # and not outside
        assert pool.use_count() == 1
        owners = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot(pool.id)}
        assert owners == {tuple(pool.id)}
        del pool
        torch.cuda.synchronize()
    """)


GRAPH = """
    import torch
    x = torch.ones(2 << 20, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        z = (y + 1) * 3
    hoard = [torch.full((4 << 20,), float(i), device="cuda") for i in range(20)]  # 320 MiB
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert z.min().item() == z.max().item() == (2 * value + 1) * 3
    assert [each[0].item() for each in hoard] == list(range(20))
    del graph, y, z
"""


def test_graph(run):
    """A captured graph replays into the memory it was captured with, also when memory is short."""
    native = run(GRAPH, conf=None, status=None)
    if native.returncode != 0:
        pytest.skip("no capture on this software device: " + native.stderr.strip()[-200:])
    run(GRAPH, conf="backend:firn,firn_budget:192MiB,firn_host:1GiB,firn_watch:0")


def test_a_blocking_stream_is_captured_by_others(run, libraries):
    """The driver refuses to be asked about the default stream then: no error of the program's."""
    run("""
        import ctypes, torch
        gpu, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
        side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
        blocking, graph = ctypes.c_void_p(), ctypes.c_void_p()
        used = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        assert gpu.cuStreamCreate(ctypes.byref(blocking), 0) == 0
        with torch.cuda.use_mem_pool(pool):
            a = torch.ones(1 << 20, device="cuda")
            a.record_stream(side)
            assert gpu.cuStreamBeginCapture_v2(blocking, 2) == 0
            del a
            torch.empty(1 << 20, device="cuda")
            assert runtime.cudaPeekAtLastError() == 0
            with torch.cuda.stream(side):
                b = torch.empty(1 << 20, device="cuda")
            assert runtime.cudaPeekAtLastError() == 0
        assert gpu.cuStreamEndCapture(blocking, ctypes.byref(graph)) == 0
        torch.cuda.synchronize()
        with torch.cuda.use_mem_pool(pool):
            assert torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20
    """, conf="backend:firn,firn_budget:64MiB,firn_host:64MiB,firn_watch:0",
        LD_PRELOAD=libraries["software/libcudart.so.13"])


TREES = """
    import torch
    from torch._inductor.cudagraph_trees import cudagraphify_impl, reset_cudagraph_trees

    def work(inputs):
        x, y = inputs
        inputs.clear()
        return [x * 2 + y, (x + y) * 3]
    x = torch.ones(1 << 20, device="cuda")
    hoard = [torch.full((4 << 20,), float(i), device="cuda") for i in range(16)]  # 256 MiB
    with torch.no_grad():
        first, second = (cudagraphify_impl(
            work, [x, x], (), device_index=0, is_backward=False, is_inference=True,
            stack_traces=[None, None]) for _ in range(2))
        for turn in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            a, b = first([torch.full_like(x, float(turn)), torch.ones_like(x)])
            c, d = second([a, b])
            assert [t[-1].item() for t in (c, d)] == [
                2 * (2 * turn + 1) + 3 * (turn + 1), 3 * (2 * turn + 1 + 3 * (turn + 1))]
            del a, b, c, d
            assert [each[-1].item() for each in hoard] == list(range(16))
    reset_cudagraph_trees()
    del first, second
"""


def test_graph_trees(run):
    """What torch.compile does with CUDA graphs, without its compiler, also when memory is short."""
    run(TREES, conf=None)
    run(TREES, conf="backend:firn,firn_budget:128MiB,firn_host:1GiB,firn_watch:0")


def test_memory_spilled_when_it_is_copied_on_write(run):
    """torch copies outside its operators: the memory is brought back for that."""
    run("""
        import torch
        from firn import _autoload
        from firn import _libraries
        state = lambda address: _libraries.read_text(_autoload.plugin().firn_torch_state, address)
        from firn._addresses import storage_address
        x = torch.full((4 << 20,), 3.0, device="cuda")
        address = storage_address(x.untyped_storage())
        y = torch._lazy_clone(x)
        torch.cuda.synchronize()
        _autoload.plugin().firn_torch_spill_all()
        assert state(address) == "hosted"
        y.untyped_storage()  # copied here, outside any operator
        assert storage_address(y.untyped_storage()) != address
        y += 1
        assert (x + y)[-1].item() == 7
    """, conf="backend:firn,firn_budget:256MiB,firn_host:256MiB,firn_watch:0")


def test_needless_settings_say_so(run):
    done = run("""
        import torch
        torch.ones(1, device="cuda")
    """, conf="backend:firn,expandable_segments:True,max_split_size_mb:64,"
              "pinned_use_background_threads:True")
    assert "these settings have no effect with Firn: max_split_size_mb (" in done.stderr
    assert "expandable_segments (" in done.stderr and "pinned" not in done.stderr


def test_hints(run):
    run("""
        import torch, firn
        x = torch.full((4 << 20,), 3.0, device="cuda")
        y = x + 1
        from firn import _autoload, _libraries
        from firn._addresses import storage_address
        state = lambda t: _libraries.read_text(_autoload.plugin().firn_torch_state,
                                               storage_address(t.untyped_storage()))
        torch.cuda.synchronize()
        firn.cold(x)
        _autoload.plugin().firn_torch_spill_all()
        assert state(x) == "hosted", state(x)
        firn.pin(x)
        assert state(x) == "resident"
        _autoload.plugin().firn_torch_spill_all()
        assert state(x) == "resident"
        assert [p["reason"] for p in firn.stats()["devices"][0]["pinned"]].count("firn.pin()") == 1
        firn.unpin(x)
        _autoload.plugin().firn_torch_spill_all()
        assert state(x) == "hosted"
        firn.prefetch(x)
        while state(x) != "resident":
            pass
        assert x.sum().item() == 3 * (4 << 20)
        try:
            firn.unpin(x)
        except RuntimeError as error:
            assert "not pinned" in str(error)
        else:
            assert False
    """, conf="backend:firn,firn_budget:128MiB,firn_host:256MiB,firn_watch:0")
