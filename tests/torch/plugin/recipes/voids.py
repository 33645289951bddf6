"""What voids a recipe: pieces of a program, each of which says
what it expects of its tensors. A program of its own, for the software GPU and for real ones:

    PYTORCH_CUDA_ALLOC_CONF=backend:firn python voids.py [NAME...]

prints a line for each case, "NAME ok" or "NAME: what is wrong", and ends with 1 where one is.
"""

import ctypes
import os
import sys
from typing import List

import torch
from cases import alone, big, case, gelu, keep, main, none_of, stands, void
from firn_recipes import RESULT, UNSEEN, WRITTEN, address, recipe, storage_bytes


@case
def a_recipe_stands_while_nothing_is_written():
    x = big()
    y = gelu(x)
    for _ in range(3):
        other = x * 2 + y   # reads
        other.add_(1)
        stands(y)
    z = gelu(y)
    stands(z)
    stands(y)


@case
def an_input_written_in_place():
    writes = {
        "add_": lambda x: x.add_(1), "item": lambda x: x.__setitem__(3, 0.),
        "data": lambda x: x.data.mul_(2), "detached": lambda x: x.detach().zero_(),
        "out": lambda x: torch.sin(x, out=x), "out of a view": lambda x: torch.add(
            x[0], 1, out=x[1]), "copy_": lambda x: x.copy_(big(2)),
        "from the host": lambda x: x.copy_(torch.ones(64, 48)),
        "a view": lambda x: x[2:4, 5].fill_(1), "a view's view": lambda x: x.t()[1:][:, 2].neg_(),
        "other type": lambda x: x.view(torch.int32).add_(1),
        "foreach": lambda x: torch._foreach_mul_([x], 2), "index_put_": lambda x: x.index_put_(
            (torch.tensor([1], device="cuda"),), torch.zeros(48, device="cuda")),
        "random": lambda x: x.normal_(), "dropout_": lambda x: torch.dropout_(x, .5, True),
        "storage": lambda x: x.untyped_storage().copy_(big(3).untyped_storage()),
        "fill of the storage": lambda x: x.untyped_storage().fill_(0),
    }
    for name, write in writes.items():
        x = big()
        y = gelu(x)
        stands(y)
        write(x)
        try:
            void(y, WRITTEN)
        except AssertionError as error:
            raise AssertionError(name) from error


@case
def an_optimizer_writes_parameters():
    for keywords in ({}, {"foreach": True}, {"fused": True}):
        weight = torch.nn.Parameter(big())
        y = gelu(weight)
        y.sum().backward()
        stands(y)
        torch.optim.AdamW([weight], **keywords).step()
        void(y, WRITTEN)


@case
def an_input_that_has_ended():
    x = big()
    y = gelu(x)
    stands(y)
    del x
    void(y, WRITTEN)
    again = big()  # at the same address or not
    void(y, WRITTEN)
    del again


@case
def an_input_set_to_other_memory():
    x, other = big(), big(2)
    y = gelu(x)
    kept = x.untyped_storage()
    x.set_(other)             # the bytes that were read are still there
    stands(y)
    del kept                  # now they are not
    void(y, WRITTEN)


@case
def an_input_resized():
    x = big()
    y = gelu(x)
    x.resize_(64, 480)
    void(y, WRITTEN)
    x = big()
    y = gelu(x)
    x.untyped_storage().resize_(0)
    void(y, WRITTEN)


@case
def data_that_is_exchanged():
    x, other = big(), big(2)
    y = gelu(x)
    x.data = other
    void(y, WRITTEN)


@case
def a_result_written_in_place():
    for write in (lambda y: y.relu_(), lambda y: y.data.add_(1), lambda y: y[3:5].zero_(),
                  lambda y: torch.neg(y, out=y), lambda y: y.view(-1)[7:].fill_(2)):
        x = big()
        y = gelu(x)
        stands(y)
        write(y)
        void(y, RESULT)


@case
def a_result_that_has_ended_and_its_memory_is_anothers():
    x = big()
    y = gelu(x)
    where = address(y)
    del y
    z = torch.empty_like(x)
    assert address(z) == where
    void(z, RESULT)


@case
def a_part_of_a_sparse_tensor():
    values = big()
    count = values.numel()
    rows = torch.arange(0, count + 1, 48, device="cuda")
    columns = torch.arange(count, device="cuda") % 48
    sparse = torch.sparse_csr_tensor(rows, columns, values.view(-1), (64, 48))
    y = gelu(sparse.values())
    stands(y)
    sparse.neg_()
    void(y, WRITTEN)


@case
def a_result_of_several():
    """Each is made without the others, which may have been written meanwhile."""
    x = torch.randn(2, 4, 16, 16, device="cuda")
    y, where = torch.nn.functional.max_pool2d(x, 3, return_indices=True)
    name = "aten::max_pool2d_with_indices"
    y.add_(1)
    before = storage_bytes(y)
    stands(where, name)
    assert torch.equal(storage_bytes(y), before)
    void(y, RESULT)


@case
def results_that_are_views_or_arguments():
    x = big()
    assert recipe(x.view(-1)) == recipe(x)
    none_of(x.float())                                   # itself
    none_of(torch.nn.functional.dropout(x, 0.))          # ... or random
    none_of(torch.nn.functional.dropout(x, .5))
    y = torch.empty_like(x)
    torch.ops.aten.gelu.out(x, out=y)
    none_of(y)                                           # its memory is the program's
    z = torch.relu_(big())
    none_of(z)


@case
def a_graph_under_capture():
    x = big()
    static = torch.zeros_like(x)
    y = gelu(x)
    z = gelu(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.nn.functional.gelu(x)
        static.add_(1)
    none_of(inside)
    void(z, WRITTEN)
    after = torch.nn.functional.gelu(static)   # each replay writes its input
    assert recipe(after) == "" or recipe(after).endswith(WRITTEN), recipe(after)
    w = torch.nn.functional.gelu(inside)
    assert recipe(w) == "" or recipe(w).endswith(WRITTEN), recipe(w)
    fresh = gelu(x)
    graph.replay()
    stands(fresh)                              # nothing that it needs was written
    torch.cuda.synchronize()


def clear(tensor, stream):
    """By the driver, as a library would."""
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemsetD8Async(ctypes.c_void_p(address(tensor)), ctypes.c_ubyte(0),
                                  ctypes.c_size_t(4096),
                                  ctypes.c_void_p(stream.cuda_stream)) == 0


@case
def work_outside_of_operators():
    x = big()
    y = gelu(x)
    clear(x, torch.cuda.current_stream())
    void(y, UNSEEN)
    stands(gelu(x))


@case
def an_alias_that_begins_within_an_input():
    x = big()
    alias = torch.from_dlpack(x[8:])   # a storage of its own, 1.5 KiB from x's
    y = gelu(x)
    alias.add_(1)
    void(y, UNSEEN)
    del alias
    stands(gelu(x))


@torch.jit.script
def summed(x, dims: List[int]):
    y = torch.sum(x, dims)
    dims[0] = 0
    return y


@case
def a_list_that_the_program_changes_after_the_call():
    x = big(shape=(4096, 48))
    stands(summed(x, [1]), "aten::sum.dim_IntList")


@case
def memory_of_another_process():
    import torch.multiprocessing.reductions as reductions
    x = big(1, (1 << 18,))
    y = gelu(x)
    reductions.reduce_tensor(x)     # another process may write it from here on
    void(y, WRITTEN)
    z = torch.nn.functional.gelu(x)
    assert recipe(z) == "" or recipe(z).endswith(WRITTEN)


@alone
def a_graph_with_work_outside_of_operators():
    """Each replay may write anything."""
    x = big()
    y = gelu(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = x + 1
        clear(x, torch.cuda.current_stream())
    void(y, UNSEEN)
    none_of(torch.nn.functional.gelu(x))
    del inside


@alone
def a_graph_of_before_recipes_were_kept():
    x = big()
    keep(0)                                    # none
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        clear(x, torch.cuda.current_stream())
    keep()
    none_of(torch.nn.functional.gelu(x))       # each replay may write its input


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # (torch's exit calls CUDA for memory that was shared and that nobody took)
