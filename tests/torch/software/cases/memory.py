"""Streams, events, copies, pinned memory, statistics, running out of memory."""

import gc
import os

import torch
from _common import assert_same

MIB = 1 << 20


def settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def case_device_is_described():
    assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    assert properties.total_memory == total >= free > 0
    assert properties.name and properties.multi_processor_count > 0 and properties.warp_size == 32
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor)
    assert torch.cuda.get_device_name() == properties.name
    assert torch.cuda.current_device() == 0 and torch.version.cuda.startswith("13")


def case_copies_between_host_and_device():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = (torch.randn(33, 65) * 9).to(dtype)
        y = x.cuda()
        assert_same(y, x)
        assert_same(y.t().contiguous(), x.t().contiguous())
        assert torch.equal(y[3:, ::7].cpu(), x[3:, ::7])
        assert torch.equal(y.t().cpu(), x.t())
        z = torch.zeros(65, 33, dtype=dtype, device="cuda")
        z.copy_(x.t())
        assert_same(z, x.t().contiguous())
        z.t()[2:5].copy_(x[7:10])
        assert torch.equal(z.t()[2:5].cpu(), x[7:10])
    wide = torch.empty(33, 65, dtype=torch.float64, device="cuda")
    wide.copy_(x.real)  # converts on the way
    assert_same(wide, x.real.double())
    narrow = torch.empty(33, 65, dtype=torch.float16)
    narrow.copy_(wide)
    assert torch.equal(narrow, x.real.double().half())
    assert_same(y.conj(), x.conj())
    assert_same(torch.ones(3, device="cuda").expand(5, 3), torch.ones(5, 3))
    assert y[0, 0].item() == x[0, 0].item()
    assert torch.empty(0, 3).cuda().cpu().shape == (0, 3)
    a = torch.zeros(4, device="cuda")
    a.copy_(torch.tensor(3.0))
    assert_same(a, torch.full((4,), 3.0))


def case_foreach_copy_between_devices():
    cpu = [torch.randn(5), torch.randn(2, 3)]
    cuda = [torch.zeros(5, device="cuda"), torch.zeros(2, 3, device="cuda")]
    torch._foreach_copy_(cuda, cpu)
    for a, b in zip(cuda, cpu):
        assert_same(a, b)
    back = [torch.zeros(5), torch.zeros(2, 3)]
    torch._foreach_copy_(back, cuda)
    for a, b in zip(back, cpu):
        assert torch.equal(a, b)


def case_pinned_memory():
    x = torch.randn(1000).pin_memory()
    assert x.is_pinned() and not torch.randn(10).is_pinned()
    y = torch.empty(1000, pin_memory=True)
    assert y.is_pinned()
    device = x.to("cuda", non_blocking=True)
    y.copy_(device * 2, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert torch.equal(y, x * 2)


def case_pinned_memory_waits_for_its_copy():
    """A pinned block freed under a copy in flight is not handed out again before it is done."""
    size = 4 * MIB
    stream = torch.cuda.Stream()
    source = torch.full((size,), 7, dtype=torch.uint8).pin_memory()
    pointer = source.data_ptr()
    target = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        target.copy_(source, non_blocking=True)
    done = torch.cuda.Event()
    done.record(stream)
    assert not done.query()
    del source
    other = torch.full((size,), 9, dtype=torch.uint8).pin_memory()
    if not done.query():
        assert other.data_ptr() != pointer
    stream.synchronize()
    assert_same(target, torch.full((size,), 7, dtype=torch.uint8))


def case_sleep_and_event_times():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    assert not end.query()
    end.synchronize()
    assert end.query() and 20 < begin.elapsed_time(end) < 10_000


def case_streams_are_ordered_by_events():
    torch.manual_seed(0)
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    for turn in range(20):
        with torch.cuda.stream(a):
            torch.cuda._sleep(2_000_000)
            x += 1
        b.wait_stream(a)
        with torch.cuda.stream(b):
            x *= 2
        a.wait_stream(b)
    torch.cuda.synchronize()
    expected = torch.zeros(1000)
    for turn in range(20):
        expected = (expected + 1) * 2
    assert_same(x, expected)


def case_results_on_a_side_stream_are_in_order():
    side = torch.cuda.Stream()
    total = 0
    with torch.cuda.stream(side):
        x = torch.arange(10000, device="cuda")
        for _ in range(50):
            x = x + 1
        y = x.sum()
        total = y.item()
    assert total == sum(range(10000)) + 50 * 10000


def case_record_stream():
    side = torch.cuda.Stream()
    settle()
    x = torch.ones(2 * MIB, device="cuda")
    pointer = x.data_ptr()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        y = torch.empty_like(x)
        y.copy_(x)
    x.record_stream(side)
    done = torch.cuda.Event()
    done.record(side)
    assert not done.query()
    del x
    z = torch.zeros(2 * MIB, device="cuda")
    if not done.query():
        assert z.data_ptr() != pointer, "memory in use on another stream was handed out"
    side.synchronize()
    assert_same(y, torch.ones(2 * MIB))


def case_statistics():
    settle()
    before = torch.cuda.memory_allocated()
    x = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 8 * MIB
    assert torch.cuda.max_memory_allocated() - before == 8 * MIB
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 8 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert "allocated_bytes.all.current" in torch.cuda.memory_stats()
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert isinstance(torch.cuda.memory_snapshot(), list)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB + torch.cuda.memory_allocated()


def case_an_operators_result_is_allocated_once():
    settle()
    x = torch.randn(4 * MIB, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = x * 2 + 1
    del y
    assert torch.cuda.max_memory_allocated() - before == 2 * 16 * MIB


def case_out_of_memory():
    settle()
    _, total = torch.cuda.mem_get_info()
    kept = torch.arange(1000, device="cuda")
    retries = torch.cuda.memory_stats()["num_ooms"]
    held = []
    try:
        while True:
            held.append(torch.empty(total // 8, dtype=torch.uint8, device="cuda"))
            assert len(held) <= 8
    except torch.cuda.OutOfMemoryError as error:
        text = str(error)
    assert "CUDA out of memory. Tried to allocate" in text, text
    assert "GPU 0 has a total capacity of" in text, text
    assert torch.cuda.memory_stats()["num_ooms"] == retries + 1
    assert 6 <= len(held) <= 8
    held.clear()
    torch.cuda.empty_cache()
    again = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    del again
    assert_same(kept + 1, torch.arange(1000) + 1)
    settle()


def case_memory_fraction():
    settle()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("more than the fraction was allocated")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def case_resized_results():
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, 4, device="cuda"), 1, out=out)
    assert_same(out, torch.full((3, 4), 2.0))
    index = torch.empty(0, dtype=torch.long, device="cuda")
    values = torch.empty(0, device="cuda")
    x = torch.randn(5, 6)
    torch.sort(x.cuda(), dim=1, out=(values, index))
    assert_same(values, x.sort(dim=1).values)
    assert_same(index, x.sort(dim=1).indices)
    grown = torch.ones(2, device="cuda")
    grown.resize_(4)
    assert torch.equal(grown[:2].cpu(), torch.ones(2)) and grown.shape == (4,)
    view = torch.zeros(4, 4, device="cuda")
    torch.add(torch.ones(2, device="cuda"), 1, out=view[1, :2])
    assert view.sum().item() == 4 and view[1, 1].item() == 2


def case_views_share_memory():
    x = torch.zeros(4, 6, device="cuda")
    x.view(24)[5] = 1
    x.t()[2] = 3
    x.as_strided((2,), (1,), 20).fill_(9)
    x.unfold(0, 2, 2)[1, 0, 1] = 4
    y = torch.zeros(4, 6)
    y.view(24)[5] = 1
    y.t()[2] = 3
    y.as_strided((2,), (1,), 20).fill_(9)
    y.unfold(0, 2, 2)[1, 0, 1] = 4
    assert_same(x, y)
    z = torch.view_as_real(torch.zeros(3, dtype=torch.complex64, device="cuda"))
    z[1, 1] = 2
    assert torch._C._is_alias_of(z, z[1]) and z[1, 1].item() == 2


def case_threads():
    import threading
    errors = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.randn(200, 200, generator=generator)
                y = x.cuda()
                for _ in range(30):
                    x = torch.tanh(x @ x.t() / 200)
                    y = torch.tanh(y @ y.t() / 200)
                assert_same(y, x)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def case_python_modes_and_hooks():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))
    with Count() as mode:
        y = torch.ones(3, device="cuda").add(2).var(0)
    assert y.item() == 0
    assert "aten.add.Tensor" in mode.seen and not any("native" in name for name in mode.seen)


def case_inference_mode():
    with torch.inference_mode():
        x = torch.arange(6.0, device="cuda").view(2, 3)
        y = torch.softmax(x @ x.t(), 1)
    with torch.inference_mode():
        c = torch.arange(6.0).view(2, 3)
        assert_same(y, torch.softmax(c @ c.t(), 1))


def case_indices_from_the_cpu():
    x = torch.arange(12.0).view(3, 4)
    y = x.cuda()
    index = torch.tensor([2, 0])
    assert_same(y[index], x[index])
    assert_same(y[:, index.cuda()], x[:, index])
    y[index] = torch.tensor(5.0)
    x[index] = torch.tensor(5.0)
    assert_same(y, x)
    assert_same(y[y > 4], x[x > 4])
    assert_same(torch.nonzero(y), torch.nonzero(x))


def case_empty_cache_and_capacity():
    settle()
    free, total = torch.cuda.mem_get_info()
    asked = os.environ.get("FIRN_GPU_MEMORY")
    if asked == "2GiB":
        assert total == 2 << 30
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] <= free - 64 * MIB
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free


def case_every_thread_uses_as_many_threads():
    """A count set elsewhere (as DataLoader's pinning thread does) must not change sums."""
    import threading
    x = torch.randn(1000, 1000)
    expected = x.sum()
    device = x.cuda()
    found = []

    def work():
        torch.set_num_threads(1)
        found.append(device.sum())
    count = torch.get_num_threads()
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    y = device.clone().requires_grad_()
    (y * y).sum().backward()  # on autograd's thread
    assert torch.get_num_threads() == count
    for value in found:
        assert_same(value, expected)
    assert_same(y.grad, 2 * x)
