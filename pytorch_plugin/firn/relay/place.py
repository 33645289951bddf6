"""Where the optimizer's updates are made, on the device or at the host: by arithmetic.

In a step of the relay, of what is beyond the budget, the link carries (W, S, G: bytes of weights,
states, gradients):

    | updates | in              | out           | beside it                        |
    | device  | f (2 W + S)     | f (W + S)     | -                                |
    | host    | h 2 W, and W    | G, and h W    | the parameters at the host's rate |

f is the part of W + S that is beyond the budget, h that of W. Each weight comes in for the forward
pass and for the backward pass; new weights of the host come in too, and leave again. Directions run
beside each other, and so does the host: the largest of the three is the time. It is hidden where
computing takes longer.
"""

from __future__ import annotations

import enum
import time
from typing import NamedTuple, Sequence

import torch
from torch import nn

import firn
from firn.relay.link import Link
from firn.relay.subset import step_of
from firn.relay.twin import Make, Twin

_REPEATS = 3


class Place(enum.Enum):
    undecided = "auto"
    device = "device"
    host = "host"


class Loads(NamedTuple):
    """Of one step."""

    weights_bytes: int
    states_bytes: int     # with updates on the device
    gradients_bytes: int
    parameters: int
    budget_bytes: int     # of device memory


class Rates(NamedTuple):
    in_bytes_s: float
    out_bytes_s: float
    parameters_s: float   # at the host


def seconds(loads: Loads, rates: Rates) -> tuple[float, float]:
    """Of a step, beside computing: with updates on the device, and at the host."""
    weights, states, gradients, parameters, budget = loads
    beyond = _beyond(weights + states, budget)
    beyond_at_host = _beyond(weights, budget)
    device = max(beyond * (2 * weights + states) / rates.in_bytes_s,
                 beyond * (weights + states) / rates.out_bytes_s)
    host = max((2 * beyond_at_host + 1) * weights / rates.in_bytes_s,
               (gradients + beyond_at_host * weights) / rates.out_bytes_s,
               parameters / rates.parameters_s)
    return device, host


def _beyond(size: int, budget: int) -> float:
    return max(0.0, 1 - budget / size) if size else 0.0


def choose(optimizer: torch.optim.Optimizer, smallest: Sequence[nn.Parameter], link: Link,
           make: Make | None) -> tuple[Place, str]:
    """The place, and what is to be said of it: the device where Firn is not the allocator; none yet
    where it has not measured the link. Times updates of `smallest` at the host."""
    found = [each for each in firn.stats().get("devices", [])
             if link.device.type == "cuda" and each["device"] == link.device.index]
    if not found:
        return Place.device, ""
    (device,) = found
    link_in, link_out = (float(device[f"measured_host_{way}_bytes_s"]) for way in ("in", "out"))
    if not link_in and not link_out:
        return Place.undecided, ""
    link_in, link_out = link_in or link_out, link_out or link_in  # (one way alone was measured)
    rate, states_each = update_rate(optimizer, smallest, link, make)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    loads = Loads(
        weights_bytes=sum(each.numel() * each.element_size() for each in parameters),
        states_bytes=int(states_each * sum(each.numel() * each.element_size()
                                           for each in parameters)),
        # (Layers that were updated already have no gradients any more.)
        gradients_bytes=sum(each.numel() * each.element_size() for each in parameters
                            if each.requires_grad),
        parameters=sum(each.numel() for each in parameters if each.requires_grad),
        budget_bytes=int(device["budget_bytes"]))
    on_device, at_host = seconds(loads, Rates(link_in, link_out, rate))
    place = Place.host if at_host < on_device else Place.device
    words = "at the host" if place is Place.host else "on the device"
    return place, (f"where='auto': updates {words}: a step moves and updates in "
                   f"{on_device:.3g} s on the device, in {at_host:.3g} s at the host "
                   f"({link_in / 1e9:.3g} and {link_out / 1e9:.3g} GB/s in and out, "
                   f"{rate / 1e9:.3g} G parameters/s at the host)")


def update_rate(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], link: Link,
                make: Make | None) -> tuple[float, float]:
    """Parameters/s of a step at the host of `parameters` alone, the best of some, and the states'
    numbers for each parameter's. The optimizer stays as it is."""
    twin = Twin(optimizer, link, make, parameters)
    masters = [twin.of(each) for each in parameters]
    gradients = [torch.full_like(master, 1e-3, dtype=each.dtype)
                 for each, master in zip(parameters, masters)]
    best = float("inf")
    for _ in range(1 + _REPEATS):  # (the first one makes the states)
        begin = time.perf_counter()
        twin.put_gradients(parameters, gradients)
        step_of(twin.optimizer, set(masters))
        best = min(best, time.perf_counter() - begin)
    count = sum(each.numel() for each in masters)
    states = sum(value.numel() for each in masters
                 for value in twin.optimizer.state.get(each, {}).values()
                 if isinstance(value, torch.Tensor) and value.dim() > 0)
    return count / best, states / count
