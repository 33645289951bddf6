"""Memory that something outside of PyTorch's operators uses: whose address was taken stays on the
device until it is freed, with the reason in the statistics; who only compares addresses pins
nothing."""

import pytest

# By age: lifetimes would bring back ahead of its use what the tests say has left.
ADVERSARIAL = "backend:firn,firn_host:1GiB,firn_test_adversarial:1,firn_policy:age"

HEAD = """
import ctypes, gc, sys, types, torch, firn
from firn import _autoload, _libraries
BIG = 1 << 18
def big(n=0.0):
    return torch.arange(BIG, device="cuda", dtype=torch.float32).add_(n)
def state(t):
    from firn._addresses import storage_address
    address = storage_address(t.untyped_storage())
    return _libraries.read_text(_autoload.plugin().firn_torch_state, address)
def pinned():
    return {p["reason"]: p["bytes"] for p in firn.stats()["devices"][0]["pinned"]
            if "small" not in p["reason"] and "not yet seen" not in p["reason"]}
def spill():
    _autoload.plugin().firn_torch_spill_all()
def numbers(address, count=4):
    # As a kernel of somebody's would read: by address, in no operator.
    torch.cuda.synchronize()
    return list((ctypes.c_float * count).from_address(address))
"""


@pytest.fixture
def run_code(run):
    import textwrap

    def run_with_head(code, conf=ADVERSARIAL, **options):
        return run(HEAD + textwrap.dedent(code), conf=conf, **options)
    return run_with_head


def test_an_address_that_was_asked_for_stays_good(run_code):
    run_code("""
        for take in (lambda t: t.data_ptr(), lambda t: t[100:].data_ptr() - 400,
                     lambda t: t.untyped_storage().data_ptr(), lambda t: t.storage().data_ptr(),
                     lambda t: list(map(torch.Tensor.data_ptr, [t]))[0]):
            x = big(3)
            assert state(x) != "resident"
            address = take(x)
            y = big() * 2  # everything that may leave does
            spill()
            assert state(x) == "resident" and state(y) != "resident"
            assert numbers(address) == [3, 4, 5, 6]
            assert pinned() == {"its address was asked for (data_ptr())": 1 << 20}, pinned()
            # Written there, nobody knows by whom; used by an operator; then by the former again.
            (ctypes.c_float * 2).from_address(address)[0] = 70
            assert x[0].item() == 70 and (x + 1)[0].item() == 71
            x.mul_(2)
            assert numbers(address, 2) == [140, 8]
            # As long as the storage lives, whatever tensors do.
            view = x[5:]
            del x
            gc.collect()
            spill()
            assert numbers(address, 2) == [140, 8] and pinned()
            del view
            assert pinned() == {}
            z = big(5)  # the same memory, another tensor
            assert state(z) != "resident"
            del y, z
    """)


def test_what_was_written_at_the_address_is_not_lost_when_it_is_taken_back(run_code):
    run_code("""
        x = big()
        spill()  # a copy elsewhere is valid
        address = x.data_ptr()
        torch.cuda.synchronize()
        (ctypes.c_float * 1).from_address(address)[0] = 70
        firn.pin(x)
        firn.unpin(x)
        assert pinned()  # only the pin was taken back
        firn.unpin(x)
        assert pinned() == {}
        try:
            firn.unpin(x)
        except RuntimeError as error:
            assert "not pinned" in str(error)
        else:
            assert False
        spill()
        assert state(x) != "resident"
        assert x[0].item() == 70
    """)


def test_exports_stay_good(run_code):
    run_code("""
        import torch.utils.dlpack
        ways = {
            "exported by DLPack": [
                lambda t: torch.from_dlpack(t).clone(), lambda t: t.__dlpack__(),
                lambda t: torch.utils.dlpack.to_dlpack(t), lambda t: torch.to_dlpack(t),
                lambda t: t.__dlpack__(max_version=(1, 0))],
            "exported by __cuda_array_interface__": [
                lambda t: t.__cuda_array_interface__,
                lambda t: torch.as_tensor(types.SimpleNamespace(
                    __cuda_array_interface__=t.__cuda_array_interface__), device="cuda")],
        }
        for reason, takes in ways.items():
            for take in takes:
                x = big(3)
                taken = take(x)
                big() * 2
                assert state(x) == "resident", reason
                assert pinned() == {reason: 1 << 20}, pinned()
                del taken, x
                gc.collect()
                assert pinned() == {}, (reason, pinned())
        # A tensor made of another's memory is seen as that memory.
        x = big(3)
        y = torch.from_dlpack(x)
        y.mul_(2)
        firn.unpin(x)
        spill()
        assert state(x) != "resident"
        assert y[0].item() == 6 and x.sum().item() == y.sum().item()
        del x
        assert y[1].item() == 8
        # Copies do not count, nor what has no memory of Firn's.
        x = big(3)
        x.__dlpack__(copy=True, max_version=(1, 0))
        torch.rand(5).data_ptr(), torch.rand(5).__dlpack__()
        torch.empty(0, device="cuda").data_ptr()
        torch.rand(BIG).pin_memory().data_ptr(), torch.empty(BIG, device="meta").data_ptr()
        assert state(x) != "resident"
        # The way that no wrapper sees is closed: consumers take __dlpack__.
        assert not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    """)


def test_who_only_compares_addresses_pins_nothing(run_code):
    run_code("""
        import io, copy
        net = torch.nn.LSTM(300, 300, 2).cuda()          # flatten_parameters() compares
        net(torch.rand(4, 2, 300, device="cuda"))
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        file.seek(0)
        net.load_state_dict(torch.load(file))
        copy.deepcopy(net)
        step = torch.compile(lambda t: t * 2, backend="aot_eager")
        step(big()), step(big())
        assert pinned() == {}, pinned()
        import safetensors.torch
        safetensors.torch.save({name: p for name, p in net.state_dict().items()})
        import transformers.pytorch_utils
        transformers.pytorch_utils.id_tensor_storage(big())
        assert pinned() == {}, pinned()
    """)


TRITON = """
        caller = types.ModuleType("MODULE")
        exec("def launch(t, bind): return t.data_ptr() + bind(t)", vars(caller))
        binder = {}  # Triton makes these in namespaces without a name
        exec("def dynamic_func(t): return t.data_ptr()", binder)
        x = big(3)
        for _ in range(3):
            caller.launch(x, binder["dynamic_func"])
        big() * 2
        spill()
"""


LAUNCHERS = ("triton.runtime.jit", "torch._inductor.runtime.triton_heuristics")


@pytest.mark.parametrize("module", LAUNCHERS)
def test_triton_pins_where_its_launches_go_unseen(run_code, module):
    run_code(TRITON.replace("MODULE", module) + """
        assert state(x) == "resident" and pinned()
    """)


@pytest.mark.parametrize("module", LAUNCHERS)
def test_triton_pins_nothing_where_its_launches_are_seen(run_code, libraries, module):
    run_code(TRITON.replace("MODULE", module) + """
        assert state(x) != "resident" and pinned() == {}, pinned()
        x.data_ptr()
        assert pinned()
    """, LD_PRELOAD=libraries["software/libcudart.so.13"])


def test_no_room_for_an_address_is_an_error(run_code):
    run_code("""
        xs = [torch.full((10 << 20,), float(i), device="cuda") for i in range(3)]
        addresses = [x.data_ptr() for x in xs[:2]]
        try:
            xs[2].data_ptr()
        except torch.cuda.OutOfMemoryError as error:
            words = str(error)
            assert "firn_budget" in words and "data_ptr()" in words, words
        else:
            assert False
        del addresses, xs[0]
        assert numbers(xs[1].data_ptr(), 1) == [2]
    """, conf="backend:firn,firn_budget:96MiB,firn_host:512MiB,firn_watch:0")


def test_an_object_that_keeps_tensors(run_code, libraries):
    """Packed weights, say: the object's tensors are used by whoever gets it."""
    run_code("""
        library = torch.library.Library("firn_test", "FRAGMENT")
        library.define("keep(Tensor x) -> __torch__.torch.classes.profiling._ScriptProfile")
        library.impl("keep", lambda x: torch.classes.profiling._ScriptProfile(), "CUDA")
        x, y = big(), big()
        kept = torch.ops.firn_test.keep(x)
        y.add_(1)
        assert state(x) == "resident" and state(y) != "resident"
        assert pinned() == {"kept by an object that an operator returned": 1 << 20}, pinned()
    """, LD_PRELOAD=libraries["software/libcudart.so.13"])


def test_subclasses_and_tracing_do_not_mind(run_code):
    run_code("""
        class Logged(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return super().__torch_function__(function, types, args, kwargs or {})
        x = big().as_subclass(Logged)
        assert x.data_ptr() == x.as_subclass(torch.Tensor).data_ptr() != 0
        assert torch.nn.Parameter(big()).data_ptr() % 512 == 0
        assert torch.Tensor.data_ptr.__name__ == "data_ptr" and torch.Tensor.data_ptr.__doc__
        def f(t):
            return t * 2 if t.data_ptr() % 8 == 0 else t
        for backend in ("eager", "aot_eager"):
            assert torch.compile(f, backend=backend)(big(1))[0].item() == 2
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode() as mode:
            t = torch.empty(BIG, device="cuda")
        try:
            t.__cuda_array_interface__
        except Exception as error:
            print(type(error))
    """)


def test_torchscript_fuses_nothing(run_code, run):
    """(Its fuser launches kernels that no operator announces. Natively it may.)"""
    run("import torch; assert torch._C._jit_can_fuse_on_gpu()", conf=None)
    run_code("assert not torch._C._jit_can_fuse_on_gpu()")
