"""Memory that is shared with another process stays on the device, with the reason in the statistics,
until it is freed; a handle that is none is refused. (Two processes: tests/torch/calls.)"""

# By age: lifetimes would bring back ahead of its use what the tests say has left.
ADVERSARIAL = "backend:firn,firn_host:1GiB,firn_test_adversarial:1,firn_policy:age"

HEAD = """
import gc, torch, firn
from firn import _autoload, _libraries
from firn._addresses import storage_address
def state(t):
    return _libraries.read_text(_autoload.plugin().firn_torch_state,
                                storage_address(t.untyped_storage()))
def reasons():
    return {p["reason"]: p["bytes"] for p in firn.stats()["devices"][0]["pinned"]}
SHARED = "shared with another process"
"""


def test_what_is_shared_stays_until_it_is_freed(run):
    run(HEAD + """
x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
y = x * 2
assert state(x) != "resident"
shared = x.untyped_storage()._share_cuda_()
z = y + 1
assert state(x) == "resident" and state(y) != "resident"
assert reasons()[SHARED] == 4 << 20, reasons()
again = x[1000:].untyped_storage()._share_cuda_()
assert again[1] == shared[1]  # one handle for one block
assert x[5].item() == 5
del x
torch.cuda.ipc_collect()
# Nobody else ever opened it: the reference that was sent is the last.
for each in (shared, again):
    torch.UntypedStorage._release_ipc_counter_cuda(each[4], each[5])
gc.collect()
torch.cuda.ipc_collect()
assert SHARED not in reasons(), reasons()
assert torch.cuda.memory_allocated() == 8 << 20, torch.cuda.memory_allocated()
""", conf=ADVERSARIAL)


def test_a_handle_of_another_allocator_is_refused(run):
    run(HEAD + """
x = torch.ones(1 << 20, device="cuda")
shared = list(x.untyped_storage()._share_cuda_())
for wrong in (b"e" + bytes(100), b"c" + bytes(64), shared[1][:-1]):
    shared[1] = wrong
    try:
        torch.UntypedStorage._new_shared_cuda(*shared)
    except RuntimeError as error:
        assert "both processes need the same allocator (backend:firn)" in str(error), error
    else:
        raise AssertionError(wrong)
assert (x + 1).sum().item() == 2 << 20
""")
