"""firn.relay(model, optimizer, micro_batches=...): training layer by layer over many micro-batches
(L2L's order of execution, Pudipeddi et al. 2020, arXiv:2002.05645).

Each repeated layer runs over all micro-batches before the next one does, forward and, with its
activations computed again, backward; the optimizer steps for a layer as soon as its gradients are
whole. So a layer's weights, gradients and states are used once in a row, and little else is alive:
where Firn is the allocator, the rest is in host memory or on NVMe meanwhile. The executor
contributes order only, and runs with any allocator, on any device.

This module is called like a function; see relay(). With FIRN_RELAY=8 (firn run --relay 8) programs
get the split form by themselves (doors.py).
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Literal, Sequence, overload

    from torch import dtype, nn
    from torch.optim import Optimizer

    from firn.relay.loop import LoopRelay
    from firn.relay.split import SplitRelay
    from firn.relay.trees import Refused

    Eager = bool | Literal["auto"]
    Keep = int | Literal["auto"]
    Where = Literal["device", "host", "auto"]
    States = Literal["pinned", "firn"]
    HostOptimizer = Callable[[list[dict[str, Any]]], Optimizer]

__all__ = ["Refused", "of", "relay"]


if TYPE_CHECKING:
    @overload
    def relay(model: nn.Module, optimizer: Optimizer, micro_batches: int, *,
              split: Literal[False] = False, layers: Sequence[nn.Module | str] | None = None,
              keep: Keep = "auto", clip: float | None = None, scaler: Any = None,
              eager: Eager = "auto", where: Where = "device",
              host_optimizer: HostOptimizer | None = None, states: States = "pinned",
              accumulate: dtype | None = None) -> LoopRelay: ...

    @overload
    def relay(model: nn.Module, optimizer: Optimizer, micro_batches: int, *,
              split: Literal[True], layers: Sequence[nn.Module | str] | None = None,
              keep: Keep = "auto", eager: Eager = "auto", where: Where = "device",
              host_optimizer: HostOptimizer | None = None, states: States = "pinned",
              accumulate: dtype | None = None) -> nn.Module: ...


def relay(model: nn.Module, optimizer: Optimizer, micro_batches: int, *,
          split: bool = False, layers: Sequence[nn.Module | str] | None = None,
          keep: Keep = "auto", clip: float | None = None, scaler: Any = None,
          eager: Eager = "auto", where: Where = "device",
          host_optimizer: HostOptimizer | None = None, states: States = "pinned",
          accumulate: dtype | None = None) -> Any:
    """Takes over the forward methods of the model's repeated layers, until close().

    Loop form, in the place of a loop that accumulates gradients:

        relay = firn.relay(model, optimizer, micro_batches=8)
        loss = relay.step(lambda part: model(**part).loss / 8, parts)   # and the optimizer's step

    Bits are the loop's: losses, gradients, parameters; so are draws of dropout where the generator
    counts them (CUDA's), from the second step on which parts of one shape are seen. The first step
    runs as the plain loop, and learns. `compute` runs in a thread for each micro-batch, one at a
    time, which changes at the layers; it has the caller's autocast, modes of gradients, device,
    streams and context variables. step() returns the sum of the losses, without a graph; gradients
    are None behind it.

    Split form, with the script as it is:

        model = firn.relay(model, optimizer, micro_batches=8, split=True)
        loss = model(batch).loss; loss.backward(); optimizer.step()

    Everything outside of the layers runs over the whole batch; a layer's arguments are cut along
    their first dimension. With one part bits are the plain program's; with several, sums over the
    batch are rounded in other places.

    micro_batches: the most parts of a step.
    layers: modules, or their names, in the place of those that are found: modules of a ModuleList
        or Sequential that have one class and agree in their parameters' shapes.
    keep: of so many last layers the graph is kept rather than computed again; they are stepped at
        the end. "auto": in the loop form, where Firn is the allocator, as many as the first two
        steps show to fit its budget; else of none. Bits are the same.
    clip: gradients are kept to the end of the step, and cut to this norm
        (torch.nn.utils.clip_grad_norm_ of the model's parameters). Loop form.
    scaler: a torch.amp.GradScaler, which the step uses as the plain loop does. Loop form.
    eager: step layer by layer. "auto": in the loop form without clip and scaler, where the
        optimizer's first step proves that this changes no bit. In the split form False, since the
        program may do something between backward() and step(); with True, step() has to follow each
        backward(), and steps only what is left.
    where: "host" keeps the optimizer's states in host memory, as tensors of the CPU, and makes the
        updates there, by the same class with its fused kernel where it has one, while the layers
        before run backward. Parameters of 16 bits have masters of 32 there, and are their casts.
        optimizer.state_dict() and load_state_dict() mean the host's states; close() gives them
        back. "auto": at the host where arithmetic with Firn's measured bandwidths and a timed
        update says that it is faster; on the device where Firn is not the allocator.
    host_optimizer: makes the optimizer at the host from groups as torch.optim takes them
        (DeepSpeedCPUAdam), in the place of one of the same class.
    states: where they are, with updates at the host. "pinned": in memory of the process. "firn": in
        Firn's, of which the SSD (firn_dir) has what host memory (firn_host) cannot hold. Masters
        and states of 1 MiB and more are tensors of the device then, which no kernel uses, and are
        stepped in the pieces in which Firn has them (firn.on_host()); smaller ones are pinned. Bits
        are the same. For torch's own optimizers that update each element by itself; one
        parameter's master and states have to fit firn_host together (MemoryError).
        state_dict() has those tensors, as a plain optimizer's has its own.
    accumulate: torch.float32 sums the gradients of a layer's own parameters of 16 bits in 32 bits
        over the micro-batches, and rounds them once: closer gradients than the plain loop's.

    ValueError, TypeError: for options that make no sense. Refused (a RuntimeError): for what cannot
    run twice, or not layer by layer; it names the module and what changes it. It comes from here,
    from the first step, or from a later one, where second runs show it or the program begins to do
    something else; a note names layers that were updated before it."""
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise ValueError(f"firn.relay: micro_batches={micro_batches!r}: a number from 1 on")
    if keep != "auto" and (isinstance(keep, bool) or not isinstance(keep, int)):
        raise ValueError(f"firn.relay: keep={keep!r}: a number of layers, or 'auto'")
    if not (isinstance(eager, bool) or (isinstance(eager, str) and eager == "auto")):
        raise ValueError(f"firn.relay: eager={eager!r}: True, False or 'auto'")
    if not isinstance(split, bool):
        raise ValueError(f"firn.relay: split={split!r}: True or False")
    if clip is not None and (isinstance(clip, (bool, str)) or not clip > 0):
        raise ValueError(f"firn.relay: clip={clip!r}: a norm above 0")
    if scaler is not None and not all(callable(getattr(scaler, name, None))
                                      for name in ("scale", "unscale_", "step", "update")):
        raise ValueError(f"firn.relay: scaler={scaler!r}: a torch.amp.GradScaler")
    if (split or eager is True) and (clip is not None or scaler is not None):
        raise ValueError("firn.relay: clip= and scaler= are the loop form's, and want all "
                         "gradients before the first update (eager=False); with split=True the "
                         "program clips and scales as always")
    if where not in ("device", "host", "auto"):
        raise ValueError(f"firn.relay: where={where!r}: 'device', 'host' or 'auto'")
    if host_optimizer is not None and (where == "device" or not callable(host_optimizer)):
        raise ValueError(f"firn.relay: host_optimizer={host_optimizer!r}: a function that makes an "
                         "optimizer of groups, for where='host' or 'auto'")
    if states not in ("pinned", "firn"):
        raise ValueError(f"firn.relay: states={states!r}: 'pinned' or 'firn'")
    if states == "firn" and (where == "device" or host_optimizer is not None):
        raise ValueError("firn.relay: states='firn' is for where='host' or 'auto', and for an "
                         "optimizer of the same class (no host_optimizer=)")
    if accumulate is not None and str(accumulate) != "torch.float32":
        raise ValueError(f"firn.relay: accumulate={accumulate!r}: None or torch.float32")
    options: dict[str, Any] = {"layers": layers, "keep": keep, "where": where,
                               "host_optimizer": host_optimizer, "states": states,
                               "accumulate": accumulate}
    if split:
        from firn.relay.split import SplitRelay
        return SplitRelay(model, optimizer, micro_batches, eager=eager is True, **options).model
    from firn.relay.loop import LoopRelay
    return LoopRelay(model, optimizer, micro_batches, clip=clip, scaler=scaler,
                     eager=eager is not False, **options)


def of(model: nn.Module) -> LoopRelay | SplitRelay | None:
    """The relay that has the model's layers, for its close(); None without one."""
    from firn.relay.layers import relay_of
    found: Any = relay_of(model)
    return found  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    if name == "Refused":  # (which imports torch)
        from firn.relay.trees import Refused
        return Refused
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Relay(types.ModuleType):
    """firn.relay is this module and the function: importing it would otherwise hide that."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return relay(*args, **kwargs)


_Relay.__call__.__wrapped__ = relay  # type: ignore[attr-defined]
_Relay.__call__.__doc__ = relay.__doc__
sys.modules[__name__].__class__ = _Relay
