"""The twin of an optimizer in host memory: a master of each parameter, and an optimizer of the same
class over them, with the states.

The user's optimizer stays the one with the hyperparameters, which are copied from its groups before
each step, and is left without states. Masters have 32 bits (64 where the parameter has), so that a
parameter of 16 bits is the cast of its master. A parameter that the program has changed since it
was written here is read again.
"""

from __future__ import annotations

import collections
import copy
import sys
import warnings
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from firn.relay import kinds
from firn.relay import states as in_firn
from firn.relay.link import Down, Link
from firn.relay.sameness import equal
from firn.relay.subset import step_of
from firn.relay.trees import Refused

MASTER = "firn_master"  # in the states of a checkpoint: the master of a parameter of 16 bits
_WIDE = {torch.float32: torch.float32, torch.bfloat16: torch.float32,
         torch.float16: torch.float32, torch.float64: torch.float64}
_WAYS = ("fused", "foreach", "capturable", "differentiable")  # of a group: how steps are computed
_TORCHS = ("defaults", "state", "param_groups", "step", "_opt_called",
           "_step_supports_amp_scaling", "__getstate__")

Groups = list[dict[str, Any]]
Make = Callable[[Groups], torch.optim.Optimizer]


def check_host(optimizer: torch.optim.Optimizer) -> torch.device:
    """The device of the parameters. Refused is an optimizer that has no twin in host memory."""
    kind = type(optimizer).__name__
    check_hooks()
    for way in ("capturable", "differentiable"):
        if any(group.get(way) for group in optimizer.param_groups):
            raise Refused(f"firn.relay: {kind} with {way}=True cannot step at the host: "
                          f"{way}=False, or where='device'")
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    devices = {each.device for each in parameters}
    if len(devices) != 1 or not {each.type for each in devices} <= {"cuda", "cpu"}:
        raise Refused(f"firn.relay: parameters on {sorted(map(str, devices))}: where='host' "
                      "updates those of one CUDA device; where='device'")
    for each in parameters:
        if each.dtype not in _WIDE:
            raise Refused(f"firn.relay: a parameter of {each.dtype} (shape {tuple(each.shape)}) "
                          "cannot be updated at the host: where='device'")
    others = [key for key in optimizer.state if not isinstance(key, torch.Tensor)]
    if others:
        raise Refused(f"firn.relay: the state of {kind} has {others[0]!r}, which is no "
                      "parameter's: where='device'")
    (device,) = devices
    return torch.device(device)


def check_hooks() -> None:
    """Refused are hooks of all optimizers, which would see the host's steps too."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    if module._global_optimizer_pre_hooks or module._global_optimizer_post_hooks:
        raise Refused("firn.relay: hooks on the steps of all optimizers "
                      "(register_optimizer_step_pre_hook, ..._post_hook) would see the steps of "
                      "the host too: where='device'")


class Twin:
    """Of `optimizer`'s parameters, or of those in `only`. Owns masters and states. `make` makes its
    optimizer from the groups; without it, the class is the same, and its kernel the fused one
    where it has one (fused=False keeps another). `states`: "firn" has large masters and their
    states in Firn's memory (states.py), as tensors of the device.

    One thread at a time; the user's groups may not change meanwhile."""

    def __init__(self, optimizer: torch.optim.Optimizer, link: Link, make: Make | None = None,
                 only: Iterable[nn.Parameter] | None = None, states: str = "pinned") -> None:
        self._user, self._link = optimizer, link
        self.in_firn = states == "firn"
        self._chosen = None if only is None else set(only)
        self._of: dict[torch.Tensor, nn.Parameter] = {}
        self._seen: dict[torch.Tensor, tuple[int, StorageWeakRef]] = {}
        with torch.no_grad():
            for each in self._wanted():
                master = self._memory(each, _WIDE[each.dtype])
                master.copy_(each)
                self._of[each] = nn.Parameter(master)
                self._seen[each] = _state_of(each)
        of_all = list(self._of)
        self._marks = dict(zip(of_all, link.marks(of_all)))
        self._begun = self._members()
        self._is_alike = make is None
        self._fused = self._is_alike and "fused" in optimizer.defaults
        groups: Groups = [{"params": [self._of[each] for each in group["params"]
                                      if each in self._of]} for group in optimizer.param_groups]
        self._fill(groups)
        self.optimizer = self._alike(groups) if make is None else _made(make, groups)
        self._kinds, self._kinds_of_user = (None, None) if make is None else self._try_kinds()
        group_of = _groups_of(self.optimizer)
        for parameter, master in self._of.items():
            found = dict(optimizer.state.get(parameter, {}))
            if found.pop(MASTER, None) is not None:
                warnings.warn("firn.relay: the optimizer has loaded a checkpoint of updates at the "
                              "host, whose masters it has rounded: load it after firn.relay(), and "
                              "bits go on as they were", RuntimeWarning, stacklevel=2)
            if found:
                self.optimizer.state[master] = _states_for(
                    master, kinds.cast(found, self._kinds), group_of[id(master)], steps_on="cpu")

    def _memory(self, parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """For a master."""
        if self.in_firn and in_firn.belongs_there(parameter, dtype):
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        if parameter.dtype == dtype:
            return self._link.empty(parameter, dtype)
        return torch.empty_like(parameter, dtype=dtype, device="cpu", requires_grad=False)

    def take_over(self) -> None:
        """The user's optimizer is without states from now on. (Empty ones, for who would make the
        missing ones by a step: torch.distributed.checkpoint.)"""
        self._empty: dict[torch.Tensor, dict[str, Any]] = {each: {} for each in self._of}
        self._user.state.update(self._empty)

    def give_back(self) -> None:
        """The user's optimizer has the states, on the parameters' device and in their type."""
        given = self.given(copies=False)
        for parameter in self._of:
            if not self._user.state.get(parameter, True) or parameter in given:
                del self._user.state[parameter]
        self._user.state.update(given)

    def given(self, copies: bool = True) -> dict[torch.Tensor, dict[str, Any]]:
        """The states as give_back() gives them, of the parameters that the user's groups have.
        Without `copies`, what is in Firn's memory is handed on."""
        group_of = _groups_of(self._user)
        return {parameter: _states_for(parameter, kinds.cast(self.optimizer.state[master],
                                                             self._kinds_of_user),
                                       group_of[id(parameter)], copies=copies)
                for parameter, master in self._of.items()
                if master in self.optimizer.state and id(parameter) in group_of}

    def check_states(self) -> None:
        """Refused is a program that has thrown the states away, which it does not have."""
        if any(self._user.state.get(each) is not empty for each, empty in self._empty.items()):
            raise Refused("firn.relay: the optimizer's state was cleared or replaced, and its "
                          "states are at the host until close(): load_state_dict() of an empty "
                          "\"state\" clears them there")

    def of(self, parameter: torch.Tensor) -> nn.Parameter:
        return self._of[parameter]

    def check_groups(self) -> None:
        """Refused are parameters that the user's optimizer has got, or lost, since."""
        if self._members() != self._begun:
            raise Refused("firn.relay: the optimizer's groups have other parameters than when "
                          "firn.relay() was called: close() the relay and make a new one")

    def changed(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those that the program has written since."""
        return [each for each in parameters if self._seen.get(each) != _state_of(each)]

    def differ(self, parameters: Sequence[torch.Tensor]) -> Down:
        """Begins to find out which of them the program has written where no version tells it."""
        return self._link.differ(parameters, [self._marks[each] for each in parameters])

    def read(self, parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """`values`, in host memory, are now those of `parameters`. A master whose cast is the value
        stays."""
        with torch.no_grad():
            for parameter, value in zip(parameters, values):
                master = self._of[parameter]
                if in_firn.is_there(master):
                    in_firn.read(master, value)
                elif not equal(master.to(value.dtype), value):
                    master.copy_(value)

    def copy_groups(self) -> None:
        """The user's hyperparameters, as of now."""
        self._fill(self.optimizer.param_groups)

    def put_gradients(self, parameters: Sequence[torch.Tensor],
                      gradients: Sequence[torch.Tensor]) -> list[nn.Parameter]:
        """The masters, with `gradients` of `parameters` (in host memory, in any type)."""
        masters = [self._of[each] for each in parameters]
        for master, gradient in zip(masters, gradients):
            master.grad = gradient.to(master.dtype)
        return masters

    def step(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """One step of the masters of `parameters`, and the way up of their values."""
        self.copy_groups()
        there = [in_firn.is_there(self._of[each]) for each in parameters]
        self._step_here([each for each, away in zip(parameters, there) if not away],
                        [each for each, away in zip(gradients, there) if not away])
        with in_firn.Ahead(self.optimizer, [self._of[each] for each, away
                                            in zip(parameters, there) if away]) as ahead:
            for parameter, gradient, away in zip(parameters, gradients, there):
                if away:
                    self._step_there(parameter, gradient, ahead.take())
        for each in parameters:
            self._seen[each] = _state_of(each)

    def _step_here(self, parameters: Sequence[torch.Tensor],
                   gradients: Sequence[torch.Tensor]) -> None:
        masters = self.put_gradients(parameters, gradients)
        try:
            step_of(self.optimizer, set(masters))
        finally:
            for master in masters:
                master.grad = None
        with torch.no_grad():
            marks = self._link.up([master if master.dtype == each.dtype else
                                   self._link.empty(master, each.dtype).copy_(master)
                                   for each, master in zip(parameters, masters)], parameters)
        self._marks.update(zip(parameters, marks))

    def _step_there(self, parameter: torch.Tensor, gradient: torch.Tensor,
                    used: in_firn.Used) -> None:
        try:
            value = self._link.empty(used.parameter, parameter.dtype)
        except BaseException:
            used.close()
            raise
        in_firn.step(self.optimizer, used, gradient, value)
        (self._marks[parameter],) = self._link.up([value], [parameter])

    def saved_states(self) -> dict[Any, Any]:
        """As state_dict()["state"]: tensors in host memory, or in Firn's. Masters are added to the
        states of parameters that have fewer bits, so that training goes on with the same bits."""
        saved: dict[Any, Any] = {number: kinds.cast(states, self._kinds_of_user) for number, states
                                 in self.optimizer.state_dict()["state"].items()}
        for number, (parameter, master) in enumerate(self._in_order()):
            if parameter.dtype != master.dtype:
                saved[number] = {**saved.get(number, {}), MASTER: master.detach()}
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """A checkpoint of this, or of a plain run, which is copied. ValueError: as
        load_state_dict()'s."""
        names = [key for group in saved["param_groups"] for key in group["params"]]
        there = {key: master for key, (_, master) in zip(names, self._in_order())
                 if in_firn.is_there(master)}
        states = {key: dict(state) if key in there else _copied(state)
                  for key, state in saved["state"].items()}
        masters = {}
        for key, state in states.items():
            if isinstance(state, dict):
                if MASTER in state:
                    masters[key] = state.pop(MASTER)
                states[key] = kinds.cast(state, self._kinds)
        wide = {key: states.pop(key) for key in there if key in states}
        before = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict({**saved, "state": states})
        for group, theirs, mine in zip(self.optimizer.param_groups, self._user.param_groups,
                                       before):  # its own ways of stepping stay
            group.update((name, value) for name, value in mine.items()
                         if name in _WAYS or name not in theirs)
        group_of = _groups_of(self.optimizer)
        with torch.no_grad():
            for key, state in wide.items():
                self.optimizer.state[there[key]] = _states_for(
                    there[key], state, group_of[id(there[key])], steps_on="cpu")
            for key, (parameter, master) in zip(names, self._in_order()):
                if key in masters:
                    master.copy_(masters[key])
                    self._seen.pop(parameter, None)  # the model may be loaded before or after

    def _try_kinds(self) -> tuple[kinds.Kinds | None, kinds.Kinds | None]:
        """Of the states of the host's optimizer, which has none yet, and of the user's class."""
        chosen = kinds.samples(self._of.values())
        mine = kinds.tried(self.optimizer, chosen)
        theirs: kinds.Kinds | None = kinds.kinds_of(
            {name: value for name, value in states.items() if name != MASTER}
            for key, states in self._user.state.items() if key in self._of)
        if not theirs:
            groups = [{**{name: _on_host(value) for name, value in group.items()
                          if name != "params"},
                       "params": [self._of[each] for each in group["params"] if each in self._of]}
                      for group in self._user.param_groups]
            try:
                theirs = kinds.tried(self._alike(groups), chosen)
            except Refused:
                theirs = None
        kinds.check(mine, theirs, type(self._user).__name__)
        return mine, theirs

    def _in_order(self) -> list[tuple[torch.Tensor, nn.Parameter]]:
        """In the order of the groups, which is that of a checkpoint's numbers."""
        return [(each, self._of[each]) for each in self._wanted()]

    def _wanted(self) -> list[torch.Tensor]:
        return [each for group in self._user.param_groups for each in group["params"]
                if self._chosen is None or each in self._chosen]

    def _members(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in self._user.param_groups]

    def _alike(self, groups: Groups) -> torch.optim.Optimizer:
        """An optimizer of the user's class, without its __init__; what else it holds is copied,
        with masters in the place of parameters."""
        user, kind = self._user, type(self._user)
        memo: dict[int, Any] = {id(each): master for each, master in self._of.items()}
        memo[id(user.param_groups)] = groups
        memo.update((id(theirs), mine) for theirs, mine in zip(user.param_groups, groups))
        made: torch.optim.Optimizer = kind.__new__(kind)
        for name, value in vars(user).items():
            if name in _TORCHS or name.endswith("_hooks"):
                continue
            try:
                vars(made)[name] = copy.deepcopy(value, memo)
            except Exception as error:
                raise Refused(f"firn.relay: {kind.__name__} holds {name!r}, of which the host "
                              f"cannot have a copy ({error}): where='device'") from error
        made.__setstate__({"defaults": dict(user.defaults), "param_groups": groups,
                           "state": collections.defaultdict(dict)})
        return made

    def _fill(self, groups: Groups) -> None:
        """With the user's hyperparameters."""
        for mine, theirs in zip(groups, self._user.param_groups):
            for name, value in theirs.items():
                if name not in ("params", "param_names", *_WAYS):
                    mine[name] = _on_host(value)
            if self._fused and theirs.get("fused") is not False:
                mine.update(fused=True, foreach=None)
            elif self._is_alike:
                mine.update((way, theirs[way]) for way in _WAYS if way in theirs)


def _groups_of(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    return {id(each): group for group in optimizer.param_groups for each in group["params"]}


def _states_for(parameter: torch.Tensor, states: dict[str, Any], group: dict[str, Any],
                steps_on: str | None = None, copies: bool = True) -> dict[str, Any]:
    """Copies for `parameter`, as load_state_dict() makes them: in its type, on its device; "step"
    is a number of 32 bits, in host memory (on `steps_on`) but for the fused optimizers. Without
    `copies`, what is so already is handed on."""
    def cast(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cast(key, each) for key, each in value.items()}
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        value = value.detach()
        if name == "step":
            return value.to(steps_on or (parameter.device if group.get("fused") else "cpu"),
                            copy=True)
        return value.to(parameter.device, parameter.dtype if value.is_floating_point()
                        else value.dtype, copy=copies or not value.is_cuda)
    return {name: cast(name, value) for name, value in states.items()}


def _made(make: Make, groups: Groups) -> torch.optim.Optimizer:
    made = make(groups)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"firn.relay: host_optimizer= returned a {type(made).__name__}: it has to "
                        "make a torch.optim.Optimizer of the groups that it is given")
    mine = [list(map(id, group["params"])) for group in groups]
    if [list(map(id, group["params"])) for group in made.param_groups] != mine:
        raise ValueError("firn.relay: host_optimizer= made an optimizer of other groups than it "
                         "was given: give them on as they are")
    return made


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if type(value) in (tuple, list):
        return type(value)(map(_on_host, value))
    return value


def _copied(value: Any) -> Any:
    """In host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return copy.deepcopy(value)


def _state_of(parameter: torch.Tensor) -> tuple[int, StorageWeakRef]:
    """Another one once the program has written it, or put other memory in its place. (While it is
    kept, no other storage has that one's number.)"""
    storage = StorageWeakRef(parameter.untyped_storage())  # type: ignore[no-untyped-call]
    return parameter._version, storage
