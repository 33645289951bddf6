"""An FX graph of ATen operators as `firn order` takes it: which storages each operator reads, makes
and writes, and how large they are. Views are not operators: using one reads the storage behind."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Iterable, Sequence

import torch

# Operators that write their running statistics without declaring it.
WRITES_UNSAID = {"native_batch_norm": (3, 4)}


def storages_of(value: Any) -> list[torch.UntypedStorage]:
    """The storages of tensors in a node's value, however nested."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage()]
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in storages_of(item)]
    return []


def storages_in(node: Any) -> list[torch.UntypedStorage]:
    return storages_of(node.meta.get("val")) if isinstance(node, torch.fx.Node) else []


def written_by(node: torch.fx.Node) -> list[torch.UntypedStorage]:
    """The storages written in place, by the schema or by the list above."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    schema = node.target._schema
    written: list[Any] = []
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            written += value if isinstance(value, (list, tuple)) else [value]
    name = schema.name.split("::")[1]
    if name in WRITES_UNSAID and node.args[5]:
        written += [node.args[at] for at in WRITES_UNSAID[name]]
    return [storage for each in written for storage in storages_in(each)]


def keeps_its_order(node: torch.fx.Node) -> bool:
    """Whether it draws random numbers or has side effects: such operators stay in their order."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags or not target._schema.returns
    return target in torch.fx.node._side_effectful_functions


class Recorder:
    """Takes storages that are there from the start first, then nodes in their order. `steady`:
    operators that draw random numbers, or have side effects, stay in their order."""

    def __init__(self, steady: bool = True) -> None:
        self._steady = steady
        self.rows: list[tuple[int, int, str]] = []
        self.ops: list[tuple[str, list[int], list[int], list[int]]] = []
        self.nodes: list[torch.fx.Node | None] = []  # of each of ops
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []  # their addresses are used again
        self._beside: int | None = None              # a storage that those in order all write

    def number(self, storage: torch.UntypedStorage, kind: str) -> int:
        key = storage._cdata
        if key not in self._numbers:
            self._kept.append(storage)
            self._numbers[key] = self._add(storage.nbytes(), kind)
        return self._numbers[key]

    def _add(self, size: int, kind: str) -> int:
        self.rows.append((len(self.rows), size, kind))
        return len(self.rows) - 1

    def _numbers_of(self, storages: Iterable[torch.UntypedStorage], kind: str) -> list[int]:
        return list(dict.fromkeys(self.number(each, kind) for each in storages))

    def node(self, node: torch.fx.Node) -> None:
        inputs = self._numbers_of((storage for each in node.all_input_nodes
                                   for storage in storages_in(each)), "const")
        made = [each for each in storages_in(node) if each._cdata not in self._numbers]
        outputs = self._numbers_of(made, "temporary")
        mutates = self._numbers_of(written_by(node), "const")
        if self._steady and keeps_its_order(node):
            if self._beside is None:
                self._beside = self._add(0, "const")
            mutates.append(self._beside)
        if outputs or mutates:
            self.ops.append((node.name, inputs, outputs, mutates))
            self.nodes.append(node)

    def end(self, nodes: Iterable[Any]) -> None:
        """Storages that are alive until after the last operator."""
        storages = [storage for each in nodes for storage in storages_in(each)]
        self.ops.append(("output", self._numbers_of(storages, "const"), [],
                         self._everything_written()))
        self.nodes.append(None)

    def _everything_written(self) -> list[int]:
        """Storages that operators update in place: those come before the end, too."""
        return sorted({each for _, _, outputs, mutates in self.ops for each in mutates
                       if self.rows[each][2] != "temporary"})

    def write(self, prefix: str) -> None:
        with open(f"{prefix}.storages.csv", "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("storage", "bytes", "kind"))
            out.writerows(self.rows)
        with open(f"{prefix}.ops.csv", "w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("op", "name", "inputs", "outputs", "mutates"))
            for number, (name, *lists) in enumerate(self.ops):
                out.writerow((number, name, *(" ".join(map(str, each)) for each in lists)))


def command() -> str:
    """The `firn` that came with this package, or that of the build folder in use."""
    paths = [os.path.join(os.environ["FIRN_BUILD"], "allocator/command/firn")] \
        if os.environ.get("FIRN_BUILD") else []
    paths += [os.path.join(sysconfig.get_path("scripts"), "firn"),
              os.path.join(os.path.dirname(sys.executable), "firn")]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("firn")
    if found is None:
        raise RuntimeError("firn: cannot find the command `firn` at %s or on PATH" %
                           ", ".join(paths))
    return found


def order(recorder: Recorder, deadline: str) -> tuple[list[torch.fx.Node], dict[str, Any]]:
    """The operators' nodes in `firn order`'s order, and its findings."""
    import json

    with tempfile.TemporaryDirectory(prefix="firn-order-") as folder:
        prefix = os.path.join(folder, "graph")
        recorder.write(prefix)
        words: Sequence[str] = (command(), "order", prefix, "-o", prefix, "--json", "--deadline",
                                deadline)
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("firn: firn order ended with status %d: %s" %
                               (done.returncode, done.stderr.strip()))
        with open(prefix + ".order.csv", encoding="utf-8") as file:
            numbers = [int(line) for line in file.read().split()[1:]]
    nodes = (recorder.nodes[number] for number in numbers)
    return [node for node in nodes if node is not None], json.loads(done.stdout)
