"""Nothing stays on the device for having been allocated early: tensors made before anybody watches
leave as others do, whichever of torch's ways made them, and what a library keeps for itself does
not."""

import pytest

CONF = "backend:firn,firn_budget:96MiB,firn_host:512MiB"


@pytest.fixture
def goes_on(run, libraries):
    """Runs a program to its end, with Firn in front of the driver."""
    def go(program):
        done = run(program, conf=CONF, LD_PRELOAD=libraries["software/libcudart.so.13"])
        assert "went on" in done.stdout, done.stdout + done.stderr
    return go


# 40 MiB that no operator was given after it was made, then more than is left beside them.
EARLY = """
    import torch, firn
    from firn import _addresses, _autoload, _libraries
    def state(tensor):
        address = _addresses.storage_address(tensor.untyped_storage())
        return _libraries.read_text(_autoload.plugin().firn_torch_state, address)
    MIB = 1 << 20
    early = [make(i) for i in range(10)]                       # 4 MiB each
    assert not _autoload.plugin().firn_torch_observing()
    large = torch.full((80 * MIB,), 7, dtype=torch.uint8, device="cuda")
    assert _autoload.plugin().firn_torch_observing()
    assert "resident" not in [state(each) for each in early[:5]], [state(each) for each in early]
    for i, each in enumerate(early):
        assert bool((each.view(torch.uint8) == i).all()), i
    assert large.sum().item() == 7 * 80 * MIB
    print("went on")
"""

SAVED = """
import io, torch
def saved(i):
    file = io.BytesIO()
    torch.save(torch.full((4 << 20,), i, dtype=torch.uint8), file)
    file.seek(0)
    return file
"""

MAKES = {
    "full": "lambda i: torch.full((4 << 20,), i, dtype=torch.uint8, device='cuda')",
    "strided": """lambda i: torch.empty_strided((2 << 10, 2 << 10), (1, 2 << 10),
                                       dtype=torch.uint8, device='cuda').fill_(i)""",
    "of a kernel": """lambda i: torch.full((2 << 20,), i, dtype=torch.uint8,
                                         device='cuda').repeat(2).add(0)""",
    "copied": "lambda i: torch.full((4 << 20,), i, dtype=torch.uint8).to('cuda')",
    "resized": """lambda i: torch.empty(0, dtype=torch.uint8,
                                     device='cuda').resize_(4 << 20).fill_(i)""",
    "a storage": """lambda i: torch.empty(0, dtype=torch.uint8, device='cuda').set_(
        torch.UntypedStorage(4 << 20, device='cuda')).fill_(i)""",
    "loaded": """lambda i: __import__('torch').load(saved(i), map_location='cuda')""",
    "cloned": "lambda i: torch.full((4 << 20,), i, dtype=torch.uint8, device='cuda').clone()",
}


@pytest.mark.parametrize("way", MAKES)
def test_what_was_made_before_watching_leaves(goes_on, way):
    goes_on(SAVED + f"make = {MAKES[way]}\n" + EARLY.replace("\n    ", "\n"))


def test_what_a_library_keeps_stays(goes_on):
    """Memory that was asked for by its bare address is not a tensor's: its owner may use it at any
    time, and nobody is told."""
    goes_on("""
        import torch, firn
        MIB = 1 << 20
        kept = torch.cuda.caching_allocator_alloc(16 * MIB)
        early = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
        large = torch.ones(72 * MIB, dtype=torch.uint8, device="cuda")  # only `early` can leave
        assert firn.stats()["devices"][0]["spilled_bytes"] == 16 * MIB
        try:
            torch.ones(90 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "16MiB not yet seen in an operator" in str(error), error
        else:
            raise AssertionError("there was room")
        torch.cuda.caching_allocator_delete(kept)
        assert early.sum().item() == 16 * MIB and large.sum().item() == 72 * MIB
        print("went on")
    """)


def test_one_tensor_nearly_as_large_as_the_budget(goes_on):
    goes_on("""
        import torch
        MIB = 1 << 20
        first = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        large = torch.ones(94 * MIB, dtype=torch.uint8, device="cuda")
        first.fill_(3)
        assert first.sum().item() == 60 * MIB and large.sum().item() == 94 * MIB
        print("went on")
    """)


def test_two_threads_that_lack_room_at_once(goes_on):
    """One makes watching begin, which takes milliseconds; the other waits for it."""
    goes_on("""
        import threading, torch
        MIB = 1 << 20
        early = [torch.full((4 * MIB,), i, dtype=torch.uint8, device="cuda") for i in range(10)]
        barrier, made, wrong = threading.Barrier(2), [None, None], []
        def work(n):
            try:
                barrier.wait()
                made[n] = torch.empty((34 + 24 * n) * MIB, dtype=torch.uint8, device="cuda")
                made[n].fill_(n + 1)
                assert made[n].sum().item() == (n + 1) * made[n].numel()
            except BaseException as error:
                wrong.append(error)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        [each.start() for each in threads]
        [each.join() for each in threads]
        assert not wrong, wrong
        for i, each in enumerate(early):
            assert each.sum().item() == i * 4 * MIB, i
        print("went on")
    """)
