"""Firn's recipes as a program's own Python reaches them, for tests: which operator can make a
tensor's storage again, and making it."""

import ctypes

import torch
from firn import _autoload, _libraries
from firn._addresses import storage_address

WRITTEN = "an input was written or has ended"
RESULT = "the result was written or has ended"
UNSEEN = "work was enqueued outside of PyTorch's operators"
SETTING = "a setting that its bits depend on was changed"


def library():
    return _autoload.plugin()


def keep(least_bytes=1, products=True):
    torch.cuda.init()
    library().firn_torch_observe()
    return library().firn_torch_keep_recipes(least_bytes, int(products)) == 0


def address(tensor):
    return storage_address(tensor.untyped_storage())


def recipe(tensor):
    """The operator's name; "NAME: why it no longer can"; "" where none is kept."""
    return _libraries.read_text(library().firn_torch_recipe, address(tensor))


def make_again(tensor, stream=None, spoil=True):
    """The error, or "". `spoil`: the bytes are others before that."""
    error = ctypes.create_string_buffer(4096)
    stream = torch.cuda.current_stream(tensor.device) if stream is None else stream
    failed = library().firn_torch_make_again(address(tensor), stream.cuda_stream, int(spoil), error,
                                             len(error))
    assert bool(failed) == bool(error.value), error.value
    return error.value.decode()


def storage_bytes(tensor):
    """All bytes of the tensor's storage."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage()).cpu()


def listed():
    """{name: ("always", "products" or why it is absent, has an out= overload, kept, made again)}"""
    found = {}
    for line in _libraries.read_text(library().firn_torch_remade).splitlines():
        name, when, *counts = line.split("\t")
        found[name] = (when, *map(int, counts)) if counts else (when, 0, 0, 0)
    return found


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def check_again(result, given, name=None):
    """Makes each result again that has memory of its own, and compares all its bytes. Returns how
    many; AssertionError where a recipe is missing (`name`: each has one, of that operator) or bytes
    differ."""
    made, taken = 0, {address(each) for each in tensors_in(given) if each.is_cuda}
    for each in tensors_in(result):
        if not each.is_cuda or each.layout != torch.strided or address(each) in taken or \
                each.untyped_storage().nbytes() == 0:
            continue
        found = recipe(each)
        if name is None and (not found or ": " in found):
            continue
        assert name is None or found == name, (name, found)
        before = storage_bytes(each)
        error = make_again(each)
        assert error == "", error
        after = storage_bytes(each)
        if not torch.equal(after, before):
            at = int((after != before).nonzero()[0]) // 8 * 8
            raise AssertionError(f"other bytes by {found}, from {at} of {len(before)}: "
                                 f"{after[at:at + 8].tolist()} for {before[at:at + 8].tolist()}")
        made += 1
    return made
