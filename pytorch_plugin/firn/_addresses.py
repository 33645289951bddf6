"""Memory that is used without PyTorch's operators.

Code that takes a tensor's bare address (data_ptr(), DLPack, __cuda_array_interface__) uses it
unseen: the block stays on the device until it is freed, and the statistics' "pinned" says why.
Callers that are known only to compare addresses do not count, nor does Triton where its launches
are seen. Some functions of torch's own use memory without operators while they run: it is held
meanwhile.

install() wraps these in Python. A program that runs without Firn pays nothing for it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

DATA_PTR, DLPACK, ARRAY_INTERFACE, DIRECT_STORAGE = range(4)  # firn_torch_give_address()'s `how`
OUT_OF_MEMORY = 2  # firn::Code
DLPACK_CPU = 1     # kDLCPU: a copy there

# Modules that take addresses as names of tensors: which are the same, which are views, is it 0, is
# it aligned. A name that ends with a dot covers the modules below it, too.
ONLY_COMPARE = (
    "accelerate.accelerator", "accelerate.big_modeling", "accelerate.hooks",
    "accelerate.utils.modeling", "safetensors.torch",
    "torch._dynamo.", "torch._functorch.", "torch._inductor.compile_fx",
    "torch._inductor.cudagraph_trees", "torch._inductor.cudagraph_utils", "torch._inductor.utils",
    "torch._subclasses.", "torch._tensor", "torch.autograd.graph", "torch.cuda._sanitizer",
    "torch.cuda.graphs", "torch.distributed.", "torch.export.", "torch.fx.",
    "torch.multiprocessing.reductions", "torch.nn.modules.rnn", "torch.nn.utils.",
    "torch.serialization", "torch.sparse._triton_ops", "torch.storage", "torch.utils.",
    "transformers.integrations.moe", "transformers.modeling_utils", "transformers.pytorch_utils",
    "transformers.trainer",
)
# Modules of the packages above that hand addresses on.
HAND_ON = ("torch.distributed._symmetric_memory.",)
# These hand addresses to launches alone: nothing is pinned where launches are seen. (Inductor
# launches some of its kernels through Triton's own launcher.)
ONLY_LAUNCH = ("torch._inductor.runtime.", "triton.")
# torch's own functions that use memory outside of operators: NCCL and cuFile are called directly.
WITHOUT_OPERATORS = (
    "_broadcast", "_broadcast_coalesced", "_broadcast_out", "_nccl_all_gather", "_nccl_all_reduce",
    "_nccl_broadcast", "_nccl_reduce", "_nccl_reduce_scatter", "_gds_load_storage",
    "_gds_save_storage",
)

Function = Callable[..., Any]

_library: ctypes.CDLL | None = None
_known: dict[str, bool] = {}  # module: does it only compare


def _plugin() -> ctypes.CDLL:
    assert _library is not None  # install() was called
    return _library


def _below(module: str, names: Iterable[str]) -> bool:
    return any(module == name.rstrip(".") or (name.endswith(".") and module.startswith(name))
               for name in names)


def _only_compares(frame: FrameType) -> bool:
    """Whether the caller of data_ptr() takes the address as a name."""
    # A storage's data_ptr() calls another storage's: the caller of that counts. Code that was made
    # without a module (Triton's binders) counts as the code that runs it.
    while frame.f_back is not None and (frame.f_code.co_name in ("data_ptr", "_data_ptr")
                                        or "__name__" not in frame.f_globals):
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "")
    known = _known.get(module)
    if known is None:
        known = _known[module] = (
            _below(module, ONLY_COMPARE) and not _below(module, HAND_ON)
            or _below(module, ONLY_LAUNCH) and bool(_plugin().firn_torch_sees_launches()))
    return known


def give(address: int, how: int) -> None:
    """Raises where the block cannot be brought to the device."""
    code = _plugin().firn_torch_give_address(address, how)
    if code:
        import torch
        from firn._libraries import read_text
        words = read_text(_plugin().firn_torch_address_error)
        raise (torch.cuda.OutOfMemoryError if code == OUT_OF_MEMORY else RuntimeError)(
            "firn: " + words)


def _data_ptr(original: Function) -> Function:
    @functools.wraps(original)
    def data_ptr(self: Any) -> int:
        address: int = original(self)
        if address and not _only_compares(sys._getframe(1)):
            give(address, DATA_PTR)
        return address
    return data_ptr


def _array_interface(original: property) -> property:
    get = original.fget
    assert get is not None

    @functools.wraps(get)
    def __cuda_array_interface__(self: Any) -> Any:
        answer = get(self)
        if isinstance(answer, dict) and answer.get("data", (0,))[0]:
            give(answer["data"][0], ARRAY_INTERFACE)
        return answer
    return property(__cuda_array_interface__)


def _dlpack(original: Function, address_of: Function) -> Function:
    @functools.wraps(original)
    def to_dlpack(tensor: Any, *arguments: Any, **options: Any) -> Any:
        capsule = original(tensor, *arguments, **options)
        device = options.get("dl_device")
        if not options.get("copy") and (device is None or device[0] != DLPACK_CPU):
            address = address_of(tensor)
            if address:
                give(address, DLPACK)
        return capsule
    return to_dlpack


def _storages(values: Iterable[Any], torch: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _storages(value, torch)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()
        elif isinstance(value, torch.UntypedStorage):
            yield value


def _held(original: Function, torch: Any, address_of: Function) -> Function:
    """`original`, with its arguments' memory, and what it allocates, held meanwhile."""
    @functools.wraps(original)
    def function(*arguments: Any, **options: Any) -> Any:
        if not _plugin().firn_torch_observing():
            return original(*arguments, **options)
        from firn._libraries import read_text
        _plugin().firn_torch_begin_use()
        try:
            for storage in _storages((*arguments, *options.values()), torch):
                address = address_of(storage) if storage.is_cuda else 0
                if address and _plugin().firn_torch_use(address):
                    raise RuntimeError("firn: " + read_text(_plugin().firn_torch_address_error))
            return original(*arguments, **options)
        finally:
            _plugin().firn_torch_end_use()
    return function


def _not_compiled(wrapper: Any, torch: Any) -> Any:
    """`wrapper`, which Dynamo then leaves as it is, and all that it calls: compiled (by torch 2.14)
    it would call the method of that name, itself, instead of the one that it wraps."""
    dynamo = torch._C._dynamo.eval_frame
    function: Any = wrapper.fget if isinstance(wrapper, property) else wrapper
    if hasattr(dynamo, "set_code_exec_strategy"):  # 2.11 to 2.15 have it
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    return wrapper


def install(library: ctypes.CDLL) -> None:
    global _library
    import torch as loaded
    torch: Any = loaded  # its stubs do not foresee that anybody wraps its methods
    if _library is not None:
        return
    _library = library
    tensor, storage = torch.Tensor, torch.UntypedStorage
    tensor_address, storage_address = tensor.data_ptr, storage.data_ptr
    tensor.data_ptr = _not_compiled(_data_ptr(tensor_address), torch)
    storage.data_ptr = _not_compiled(_data_ptr(storage_address), torch)
    tensor.__cuda_array_interface__ = _not_compiled(
        _array_interface(tensor.__cuda_array_interface__), torch)
    # Consumers that know it fall back to __dlpack__.
    if "__dlpack_c_exchange_api__" in vars(tensor):
        del tensor.__dlpack_c_exchange_api__
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, _not_compiled(
                _dlpack(getattr(torch._C, name), tensor_address), torch))
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = torch._C._to_dlpack
    # TorchScript's fuser launches kernels of its own.
    torch._C._jit_override_can_fuse_on_gpu(False)
    # The bytes that a storage keeps are copied without an operator.
    storage.resize_ = _not_compiled(_held(storage.resize_, torch, storage_address), torch)
    for name in WITHOUT_OPERATORS:
        if hasattr(torch._C, name):
            setattr(torch._C, name, _not_compiled(
                _held(getattr(torch._C, name), torch, storage_address), torch))


def storage_address(storage: Any) -> int:
    """The address of a CUDA storage, which is not taken as given away."""
    import torch
    wrapped: Any = torch.UntypedStorage.data_ptr
    address: int = wrapped.__wrapped__(storage)
    return address
