"""A relay by itself beside all else that a program does with its model: copies, files, exceptions,
hooks, compilers, threads, other relays; and how it is asked for."""

import copy
import gc
import io
import re
import subprocess
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from conftest import PYTHON
from relay_models import Block, Words, firn, loss_of, quietly
from relay_programs import (Counting, automatic, close, equal, plain_steps,  # noqa: F401
                            run, words_of)


def test_the_model_as_a_value(automatic):
    """Copies and files of it have no relay, and the same bits."""
    automatic(2)
    torch.manual_seed(0)
    model = Words(drop=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plain_steps(model, optimizer)
    keys = list(model.state_dict())
    assert keys == list(Words(drop=0.1).state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    words, = words_of(1)
    with torch.no_grad():
        model.eval()
        expected = model(words)
        for other in (loaded, copy.deepcopy(model)):
            assert firn.relay.of(other) is None
            assert torch.equal(other.eval()(words), expected)
    state = copy.deepcopy(model.state_dict())
    model.train()
    plain_steps(model, optimizer)
    model.load_state_dict(state)
    copy.deepcopy(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    plain_steps(model, optimizer)
    assert firn.relay.of(model) is not None


class Failing(Block):
    error = None

    def forward(self, value):
        value = super().forward(value)
        if Failing.error is not None:
            raise Failing.error
        return value


@pytest.mark.parametrize("error", [KeyError("words"), KeyboardInterrupt(), MemoryError()])
def test_exceptions_in_the_layers(automatic, monkeypatch, error):
    def train(model, optimizer):
        losses = []
        for number in range(6):
            monkeypatch.setattr(Failing, "error", error if number % 2 else None)
            try:
                losses += plain_steps(model, optimizer, 1)
            except type(error):
                assert number % 2
        return losses
    make = lambda: Words(block=Failing)  # noqa: E731
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None


def test_hooks_on_layers_see_what_they_saw(automatic):
    def train(model, optimizer):
        seen = []
        model.blocks[2].register_forward_hook(lambda _, args, out: seen.append(out.detach()))
        model.blocks[2].register_full_backward_hook(lambda *gradients: seen.append(
            gradients[1][0].clone()))
        return plain_steps(model, optimizer) + seen
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None
    automatic(3)
    relayed, relay = run(train, make)
    assert relay is not None
    close(relayed, plain)


def test_functorch_and_compilers_find_the_plain_model(automatic):
    automatic(2)
    torch.manual_seed(0)
    model = Words(tied=False, block=Counting)
    plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    relay = firn.relay.of(model)
    reference = copy.deepcopy(model)
    words, = words_of(1)

    def grads(of):
        values = dict(of.named_parameters())
        return torch.func.grad(lambda given: functional.cross_entropy(
            torch.func.functional_call(of, given, (words[:, :-1],)).flatten(0, 1),
            words[:, 1:].flatten()))(values)
    assert equal(list(grads(model).values()), list(grads(reference).values()))
    for found in (torch.jit.trace(model, words), torch.fx.symbolic_trace(model),
                  torch.export.export(model, (words,)).module(),
                  torch.func.vmap(lambda row: model(row[None])[0])):
        assert torch.equal(found(words), reference(words))
    compiled = torch.compile(model, backend="eager")
    expected = loss_of(reference, words)
    expected.backward()
    model.zero_grad()
    loss = loss_of(compiled, words)
    loss.backward()
    assert torch.equal(loss, expected)
    assert equal([each.grad for each in model.parameters()],
                 [each.grad for each in reference.parameters()])
    assert firn.relay.of(model) is relay


def test_a_script_of_the_model(automatic, capfd):
    automatic(2)
    model = Words(tied=False)
    plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    words, = words_of(1)
    expected = model.eval()(words)
    capfd.readouterr()
    assert torch.equal(torch.jit.script(model)(words), expected)
    assert capfd.readouterr().err.startswith(
        "firn: relay: off for Words: torch.jit.script compiles its forward methods\n")
    assert firn.relay.of(model) is None and torch.jit.script.__wrapped__ is not None


def test_an_explicit_relay_goes_before(automatic, capfd):
    automatic(2)
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain_steps(model, optimizer)
    mine = quietly(firn.relay, model, optimizer, 3)
    assert firn.relay.of(model) is mine
    mine.step(lambda part: loss_of(model, part), list(words_of(1)[0].chunk(3)))
    mine.close()
    assert firn.relay.of(model) is None and not vars(model).get("forward")
    capfd.readouterr()
    other = Words()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    relay = firn.relay(other, optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # (the doors' hook is none that keeps layers from stepping)
        for words in words_of(3):
            relay.step(lambda part: loss_of(other, part), list(words.chunk(3)))
    assert firn.relay.of(other) is relay
    assert capfd.readouterr().err == ""


def test_the_optimizer_is_not_kept_alive(automatic):
    automatic(2)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    plain_steps(model, optimizer)
    optimizer.zero_grad()
    seen = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert seen() is None and firn.relay.of(model) is not None
    plain_steps(model, torch.optim.AdamW(model.parameters()))


def test_optimizers_from_before_the_model_moves(automatic):
    def train(model, optimizer):
        model.double()
        return plain_steps(model, optimizer)
    plain, _ = run(train, Words)
    automatic(1)
    relayed, relay = run(train, Words)
    assert equal(relayed, plain) and relay is not None


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(automatic, precision):
    accelerate = pytest.importorskip("accelerate")

    def train(model, optimizer):
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision,
                                             gradient_accumulation_steps=2)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        losses = []
        for words in words_of(6):
            with accelerator.accumulate(prepared):
                loss = loss_of(prepared, words)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
        assert accelerator.unwrap_model(prepared) is model
        return losses
    make = lambda: Words(tied=False, drop=0.1)  # noqa: E731
    plain, _ = run(train, make)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    automatic(1)
    relayed, relay = run(train, make)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert equal(relayed, plain) and relay is not None


def test_threads_that_train_models_of_their_own(automatic):
    expected, _ = run(plain_steps, lambda: Words(drop=0.0))
    automatic(2)
    torch.manual_seed(0)
    jobs = [Words() for _ in range(3)]
    for model in jobs[1:]:
        model.load_state_dict(jobs[0].state_dict())
    errors = []

    def body(model):
        try:
            plain_steps(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=body, args=(model,)) for model in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    for model in jobs:
        assert firn.relay.of(model) is not None
        close([each.detach() for each in model.parameters()],
              expected[4:4 + len(list(model.parameters()))])


def test_no_door_is_left_open(automatic):
    """The hook in front of all modules is gone once the model has a relay."""
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    automatic(2)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert len(hooks) == 1
    with torch.no_grad():
        model(words_of(1)[0])
    assert len(hooks) == 1 and firn.relay.of(model) is None
    loss_of(model, words_of(1)[0])
    assert not hooks and firn.relay.of(model) is not None
    automatic(0)
    assert firn.relay.of(model) is None


SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
import firn
print(firn.relay.of(model))
"""


@pytest.mark.parametrize("value, says, found", [
    ("2", r"firn: relay: 4 layers of Sequential, 2 micro-batches, from SGD's second step on\n",
     "firn.relay of Sequential"), ("0", "", "None"),
    ("many", r'(?s).*RuntimeWarning: firn: FIRN_RELAY: "many" is not a whole number from 0 to '
     r"65536\n.*", "None")])
def test_the_variable(firn_environment, value, says, found):
    done = subprocess.run([PYTHON, "-c", SCRIPT], env={**firn_environment, "FIRN_RELAY": value},
                          cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(says, done.stderr), done.stderr
    assert done.stdout.startswith(found), done.stdout


def test_a_bad_number_ends_a_strict_process(firn_environment):
    done = subprocess.run([PYTHON, "-c", "import torch; print('on')"], cwd="/", text=True,
                          env={**firn_environment, "FIRN_RELAY": "-1", "FIRN_STRICT": "1"},
                          capture_output=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == 'firn: FIRN_RELAY: "-1" is not a whole number from 0 to 65536\n'


class Scaled(Block):
    scale = 1.0

    def forward(self, value):
        return super().forward(value * self.scale)


class Outer(Words):
    """Sets an attribute of its layers before it calls them."""

    def forward(self, words, scale):
        for block in self.blocks:
            block.scale = scale
        return super().forward(words)


@pytest.mark.parametrize("scales", [(1., 2.), (1., 2., 1.)], ids=str)
def test_attributes_that_the_model_sets_between_its_passes(automatic, capfd, scales):
    """The second runs would have the last ones."""
    def gradients():
        torch.manual_seed(0)
        model = Outer(block=Scaled)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.)
        for _ in range(3):
            optimizer.zero_grad()
            sum(model(words, scale).square().mean()
                for words, scale in zip(words_of(len(scales)), scales)).backward()
            optimizer.step()
        return [each.grad.clone() for each in model.parameters()]
    plain = gradients()
    automatic(1)
    assert all(map(torch.equal, gradients(), plain))
    assert "other values of 'scale' of it" in capfd.readouterr().err


def test_a_layer_that_fails_over_parts_runs_plainly(automatic, capfd):
    class Alibi(Block):
        def forward(self, value):
            assert value.size(0) == 4, "made for this batch"
            return super().forward(value)

    def parameters():
        torch.manual_seed(0)
        model = Words(block=Alibi)
        optimizer = torch.optim.SGD(model.parameters(), lr=.1)
        for seed in range(3):
            words = torch.randint(41, (4, 7), generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            loss_of(model, words).backward()
            optimizer.step()
        return [each.detach().clone() for each in model.parameters()]
    plain = parameters()
    automatic(2)
    assert all(map(torch.equal, parameters(), plain))
    assert "cannot run over 2 parts of a batch of 4" in capfd.readouterr().err


def test_scripted_classes_find_the_names_of_their_module(automatic):
    automatic(2)

    @torch.jit.script
    class Counter:
        def __init__(self) -> None:
            self.count = torch.zeros(1)

        def add(self, value: torch.Tensor) -> torch.Tensor:
            self.count += _doubled(value)
            return self.count
    assert float(Counter().add(torch.ones(1))) == 2


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return 2 * value


def test_another_optimizer_of_a_model_with_a_relay(automatic, capfd):
    """It comes later, and no line says that the relay is off."""
    automatic(1)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    plain_steps(model, optimizer)
    late = torch.optim.Adam(model.blocks.parameters())
    loss_of(model, *words_of(1)).backward()
    late.step()
    assert firn.relay.of(model) is not None
    assert len(capfd.readouterr().err.splitlines()) == 1


def of_all(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def of_the_blocks(model):
    return torch.optim.SGD(model.blocks.parameters(), lr=0.1)


class Scaling(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.scale = model, nn.Parameter(torch.ones(41))

    def forward(self, words):
        return self.model(words) * self.scale


@pytest.mark.parametrize("passes, outer, replaced, counts", [
    (0, lambda model: model, of_the_blocks, [6, 21, 12]),
    (1, lambda model: model, of_all, [3, 21, 12]),  # (3 layers are looked at in the pass before)
    (3, lambda model: model, of_all, [6, 21, 12]),
    (3, Scaling, of_all, [6, 21, 12])], ids=["at once", "after a pass", "thaws", "has more"])
def test_an_optimizer_that_is_replaced(automatic, passes, outer, replaced, counts):
    """Layers run in parts from the second step on of the one that steps: 3 layers of 2 parts run
    forward, and again backward, and in its second step over all, for comparison."""
    automatic(2)
    torch.manual_seed(0)
    model = Words(tied=False, block=Counting)
    first = of_all(model)
    if passes == 1:
        loss_of(model, *words_of(1)).backward()
    elif passes:
        model.blocks.requires_grad_(False)
        plain_steps(model, first, passes)
        model.requires_grad_(True)
    whole = outer(model)
    second = replaced(whole)
    found = []
    for _ in counts:
        Counting.runs.clear()
        plain_steps(whole, second, 1)
        found.append(len(Counting.runs))
    assert found == counts and firn.relay.of(model) is not None
