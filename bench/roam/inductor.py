"""What Inductor's reordering for peak memory makes of a graph: its own three sorts (torch._inductor
.memory), on objects that look to them like its scheduler's nodes and buffers. It keeps the best."""

import sys

from torch._inductor import memory


class Buffer:
    def __init__(self, name, size):
        self.name = name
        self.mpi_buffer = memory.MemoryPlanningInfoForBuffer(size_alloc=size, size_free=size)

    def get_name(self):
        return self.name


class Need:
    def __init__(self, name):
        self.name = name


class Node:
    def __init__(self, op, index):
        self.op = op
        self.mpi_node = memory.MemoryPlanningInfoForNode(index=index)
        self.outputs, self.unmet_dependencies = [], []

    def get_outputs(self):
        return self.outputs

    def get_buffer_names(self):
        return [self.op]


def needs(graph):
    """Of each operator: those that must run before it."""
    before = {op: set() for op in graph.program}
    writer, readers = {}, {}
    for op in graph.program:
        for storage in graph.named(op):
            if storage in writer:
                before[op].add(writer[storage])
        for storage in graph.writes[op]:
            before[op] |= readers.pop(storage, set())
            writer[storage] = op
        for storage in graph.reads[op] - graph.writes[op]:
            readers.setdefault(storage, set()).add(op)
        before[op].discard(op)
    return before


def scheduler_nodes(graph):
    nodes = {op: Node(op, index) for index, op in enumerate(graph.program)}
    for op, before in needs(graph).items():
        mpi = nodes[op].mpi_node
        for other in sorted(before, key=lambda each: nodes[each].mpi_node.index):
            mpi.pred_nodes.add(nodes[other])
            nodes[other].mpi_node.succ_nodes.add(nodes[op])
            nodes[op].unmet_dependencies.append(Need(other))
    buffers, inputs = {}, {}
    for op in graph.program:
        for storage in sorted(graph.named(op)):
            size, kind = graph.storages[storage]
            if kind not in ("temporary", "batch"):
                continue
            if storage not in buffers and storage not in inputs:
                made = kind == "temporary"
                (buffers if made else inputs)[storage] = Buffer(storage, size)
                if made:
                    nodes[op].outputs.append(buffers[storage])
                    nodes[op].mpi_node.size += size
                    continue
            buffer = buffers.get(storage) or inputs[storage]
            buffer.mpi_buffer.succ_nodes.add(nodes[op])
            nodes[op].mpi_node.pred_buffers.add(buffer)
    return list(nodes.values()), inputs, buffers


def reordered(graph):
    """The order that Inductor would keep, of its three and the program's."""
    sys.setrecursionlimit(100_000)
    nodes, inputs, buffers = scheduler_nodes(graph)
    orders = [graph.program]
    for sort in (lambda: memory.topological_sort_lpmf(nodes, inputs, buffers, set()),
                 lambda: memory.topological_sort_bfs(nodes),
                 lambda: memory.topological_sort_dfs(nodes)):
        order = [node.op for node in sort()]
        graph.check_order(order)
        orders.append(order)
    return min(orders, key=lambda order: max(graph.profile(order)))
