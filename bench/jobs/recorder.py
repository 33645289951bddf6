"""A training step on fake tensors, operator by operator, as `firn simulate` takes it: which
storages each reads and makes, how large they are, and how long the operator takes by a roofline
(gpus.py).

Nothing is computed and no memory is taken: storages come and go by the program's own references, as
they would on a GPU. Views, and tensors that are only allocated, are no kernels. Operators over
lists of tensors are one kernel per tensor: so a fused optimizer runs under Firn where it must.
"""

from __future__ import annotations

import csv
from typing import Any, Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import gpus
from job_traces import Trace, summary

aten = torch.ops.aten

# In training these change their running statistics, which their schemas do not say.
NORMALIZING = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
# These read nothing of what they overwrite.
FILLING = {"bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_",
           "normal_", "random_", "uniform_", "zero_"}


def _attention_flops(query, key, causal) -> float:
    batch, heads, length, width = query.shape
    return 4.0 * batch * heads * length * key.shape[2] * width / (2 if causal else 1)


def flops_of(func, args, kwargs, out) -> float:
    packet = func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return _attention_flops(args[0], args[1], len(args) > 4 and args[4])
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return 2.5 * _attention_flops(args[1], args[2], args[7])
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0.0


def _whole(tensor: torch.Tensor) -> bool:
    """Is it all of its storage?"""
    return tensor.is_contiguous() and \
        tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


class Recorder(TorchDispatchMode):
    """Records what runs between begin() and end(). Enter it inside a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[str, gpus.Cost, list[int], list[int]]] = []
        self.bytes: list[int] = []
        self.persistent: set[int] = set()
        self._known: dict[int, tuple[int, StorageWeakRef]] = {}
        self._recording = False

    def begin(self, persistent: Iterable[torch.Tensor]) -> None:
        """What is alive across iterations comes with it."""
        self._recording = True
        self.persistent = {self._number(each) for each in persistent}

    def end(self) -> None:
        self._recording = False

    def _number(self, tensor: torch.Tensor) -> int:
        # (A weak reference keeps the storage's address from being used again.)
        reference = StorageWeakRef(tensor.untyped_storage())
        known = self._known.get(reference.cdata)
        if known is None:
            known = (len(self.bytes), reference)
            self.bytes.append(tensor.untyped_storage().nbytes())
            self._known[reference.cdata] = known
        return known[0]

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        return list(dict.fromkeys(self._number(each) for each in tensors if each.numel()))

    def kernel(self, name: str, cost: gpus.Cost, inputs: Iterable[torch.Tensor],
               outputs: Iterable[torch.Tensor]) -> None:
        if self._recording:
            self.kernels.append((name, cost, self._numbers(inputs), self._numbers(outputs)))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._recording:
            self._operator(func, args, kwargs, out)
        return out

    def _operator(self, func, args, kwargs, out) -> None:
        name = func._schema.name.split("::")[1]
        given = tensors_in((args, kwargs))
        before = {each.untyped_storage()._cdata for each in given}
        made = [each for each in tensors_in(out) if each.untyped_storage()._cdata not in before]
        written = self._written(func, args, kwargs)
        if "empty" in name or not (made or written):
            return
        if isinstance(args[0] if args else None, (list, tuple)) and \
                name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
            return self._list_operator(name, args, kwargs, written, out)
        self._one(func, name, args, kwargs, given, written, made, out)

    def _one(self, func, name, args, kwargs, given, written, made, out) -> None:
        moved = sum(each.numel() * each.element_size() for each in (*given, *written, *made))
        itemsize = min([each.element_size() for each in given if each.is_floating_point()] or [4])
        cost = gpus.Cost(flops_of(func, args, kwargs, out), moved, itemsize)
        filled = {id(each) for each in written if name in FILLING and _whole(each)}
        self.kernel(name, cost, [each for each in given if id(each) not in filled],
                    (*written, *made))

    def _list_operator(self, name, args, kwargs, written, out) -> None:
        lists = [each for each in (*args, *kwargs.values())
                 if isinstance(each, (list, tuple)) and each and
                 isinstance(each[0], torch.Tensor)]
        changed = {id(each) for each in written}
        results = out if isinstance(out, (list, tuple)) else []
        for at in range(len(lists[0])):
            given = [each[at] for each in lists if len(each) == len(lists[0])]
            made = [results[at]] if at < len(results) and results[at] is not given[0] else []
            out_of = [each for each in given if id(each) in changed]
            moved = sum(each.numel() * each.element_size() for each in (*given, *out_of, *made))
            self.kernel(name, gpus.Cost(moved=moved), given, (*out_of, *made))

    @staticmethod
    def _written(func, args, kwargs) -> list[torch.Tensor]:
        written: list[torch.Tensor] = []
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[at] if at < len(args) else kwargs.get(argument.name)
                written += tensors_in(value)
        if func._schema.name.removeprefix("aten::") in NORMALIZING:
            named = {argument.name: args[at] if at < len(args) else kwargs.get(argument.name)
                     for at, argument in enumerate(func._schema.arguments)}
            if named["training"]:
                written += tensors_in((named["running_mean"], named["running_var"]))
        return written

    def write(self, prefix: str, gpu: gpus.Gpu, cpu: gpus.Cpu = gpus.CPUS["1g"]) -> None:
        """PREFIX.tensors.csv and PREFIX.kernels.csv."""
        named = sorted({each for _, _, ins, outs in self.kernels for each in (*ins, *outs)} |
                       self.persistent)
        with open(prefix + ".tensors.csv", "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("tensor", "bytes", "kind"))
            rows.writerows((each, self.bytes[each], "persistent" if each in self.persistent
                            else "transient") for each in named if self.bytes[each])
        with open(prefix + ".kernels.csv", "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            where = any(cost.stepped for _, cost, _, _ in self.kernels)
            rows.writerow(("kernel", "name", "duration_ns", "inputs", "outputs",
                           *(("where",) if where else ())))
            rows.writerows((at, name, cost.ns(gpu, cpu), " ".join(map(str, ins)),
                            " ".join(map(str, outs)),
                            *(("host" if cost.stepped else "gpu",) if where else ()))
                           for at, (name, cost, ins, outs) in enumerate(self.kernels))

    def summary(self, gpu: gpus.Gpu, cpu: gpus.Cpu = gpus.CPUS["1g"]) -> dict[str, Any]:
        return summary(Trace(
            [(cost.ns(gpu, cpu), ins, outs) for _, cost, ins, outs in self.kernels],
            dict(enumerate(self.bytes)), self.persistent,
            at_host={at for at, (_, cost, _, _) in enumerate(self.kernels) if cost.stepped}))
