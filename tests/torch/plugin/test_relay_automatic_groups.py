"""transformers' Trainer accumulates gradients: its micro-batches take turns at each layer, with the
bits of one after the other; or they run one by one, and a line says why."""

import contextlib
import pathlib
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from relay_models import Block, Words, firn

transformers = pytest.importorskip("transformers")
doors_of = __import__("firn.relay.doors", fromlist=["Doors"])
groups = __import__("firn.relay.groups", fromlist=["Groups"])

ORDER: list = []


class Ordered(Block):
    def forward(self, value, mask=None):
        ORDER.append((self.number, torch.is_grad_enabled()))
        value = super().forward(value)
        return value if mask is None else value * mask


class Model(Words):
    """Leaves a layer out for some rows, and gives later ones a mask, where `varies`."""

    def __init__(self, varies=False, block=Ordered, **options):
        super().__init__(block=block, **options)
        self.varies, self.scale = varies, 1.0
        for number, each in enumerate(self.blocks):
            each.number = number

    def forward(self, input_ids, labels):
        value = self.embedding(input_ids)
        for number, block in enumerate(self.blocks):
            kind = int(input_ids[0, 0]) % 4 if self.varies else 0
            if kind != 1 or number != 1:
                value = block(value) if kind != 2 else block(value, torch.ones(value.shape))
        words = self.head(value)
        return {"loss": self.scale * functional.cross_entropy(words.flatten(0, 1),
                                                              labels.flatten())}


class Rows(torch.utils.data.Dataset):
    """The first two groups' need no mask."""

    def __init__(self, count):
        self.words = torch.randint(41, (count, 8), generator=torch.Generator().manual_seed(1))
        self.words[:12, 0] = torch.arange(12) % 2
        self.words[16:18, 0] = 2

    def __len__(self):
        return len(self.words)

    def __getitem__(self, at):
        return {"input_ids": self.words[at, :-1], "labels": self.words[at, 1:]}


class Noting(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.noted.append(loss.detach().clone())
        return loss


@pytest.fixture
def joined(monkeypatch):
    """The sizes of the groups whose micro-batches took turns."""
    found, run = [], groups.Baton.run
    monkeypatch.setattr(groups, "pays", lambda: True)
    monkeypatch.setattr(groups.Baton, "run", lambda baton, body: (
        found.append(len(baton._gates)), run(baton, body))[1])
    return found


def train(folder, micro_batches, make=Model, kind=Noting, callbacks=(), steps=5, rows=26,
          use_cpu=True, **args):
    """Groups of three micro-batches of two rows; the last one of an epoch has one."""
    torch.manual_seed(0)
    model = make()
    doors = doors_of.Doors(micro_batches) if micro_batches else None
    with contextlib.closing(doors) if doors else contextlib.nullcontext():
        trainer = kind(model=model, train_dataset=Rows(rows), callbacks=list(callbacks),
                       args=transformers.TrainingArguments(
                           output_dir=str(folder), max_steps=steps, use_cpu=use_cpu, report_to=[],
                           per_device_train_batch_size=2, gradient_accumulation_steps=3,
                           save_strategy="no", disable_tqdm=True, learning_rate=1e-2, **args))
        trainer.noted = []
        trainer.train()
        assert "training_step" not in vars(trainer) and "backward" not in vars(trainer.accelerator)
        assert micro_batches == 0 or firn.relay.of(model) is not None
    assert not any(each.name.startswith("relay ") for each in threading.enumerate())
    # (A micro-batch that leaves a layer out has its loss sooner.)
    return [*sorted(trainer.noted), *(each.detach().clone() for each in model.parameters())]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("make, args", [
    (Model, {}), (lambda: Model(varies=True), {}), (lambda: Model(varies=True, tied=False), {}),
    (Model, {"bf16": True})], ids=["tied", "varies", "varies, not tied", "autocast"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_turns_have_the_bits_of_one_after_the_other(tmp_path, joined, monkeypatch, micro_batches,
                                                    make, args):
    turns = train(tmp_path, micro_batches, make, steps=9, **args)
    assert joined == [3, 3, 3, 3, 3, 3]  # behind the group that learns, and the one that is watched
    monkeypatch.setattr(groups, "pays", lambda: False)
    assert equal(turns, train(tmp_path, micro_batches, make, steps=9, **args))
    assert len(joined) == 6
    if micro_batches == 1:
        assert equal(turns, train(tmp_path, 0, make, steps=9, **args))


def test_each_layer_runs_over_all_micro_batches_before_the_next_one(tmp_path, joined):
    ORDER.clear()
    train(tmp_path, 1, steps=3)
    assert joined == [3]
    layers = [0, 1, 2]
    forward = [(layer, True) for layer in layers for _ in range(3)]
    assert ORDER[-18:-9] == forward and ORDER[-9:] == forward[::-1]


class Pausing(Model):
    gradient_checkpointing = True

    def forward(self, input_ids, labels):
        PAUSED.append(self.gradient_checkpointing)
        found = super().forward(input_ids, labels)
        PAUSED.append(self.gradient_checkpointing)
        return found


PAUSED: list = []


def test_checkpoints_pause_for_all_of_a_group(tmp_path, joined):
    """And not for as long as the first micro-batch's forward pass alone."""
    PAUSED.clear()
    made: list = []
    train(tmp_path, 1, lambda: made.append(Pausing()) or made[0], steps=4)
    assert joined == [3, 3] and made[0].gradient_checkpointing
    assert len(PAUSED) == 24 and not any(PAUSED[1:])


class Stepping(Noting):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Looping(Noting):
    def _inner_training_loop(self, *args, **kwargs):
        return super()._inner_training_loop(*args, **kwargs)


class Fetching(Noting):
    def get_batch_samples(self, *args, **kwargs):
        return super().get_batch_samples(*args, **kwargs)


class Remembering(Noting):
    """Another micro-batch would find its attribute behind the layers."""

    def compute_loss(self, model, inputs, **kwargs):
        self.rows = inputs["input_ids"]
        loss = super().compute_loss(model, inputs, **kwargs)
        return loss * (1 + self.rows.float().mean() / 40)


class Annealing(Noting):
    """The model has the attribute."""

    def compute_loss(self, model, inputs, **kwargs):
        model.scale = 1 + float(inputs["input_ids"].float().mean()) / 40
        return super().compute_loss(model, inputs, **kwargs)


class Augmenting(Noting):
    def compute_loss(self, model, inputs, **kwargs):
        import numpy
        loss = super().compute_loss(model, inputs, **kwargs)
        return loss * float(numpy.random.rand())


class Looking(transformers.TrainerCallback):
    def on_substep_end(self, *args, **kwargs):
        pass


@pytest.mark.parametrize("options, says", [
    ({"kind": Stepping}, "Stepping has a training_step of its own"),
    ({"kind": Looping}, "Looping has a _inner_training_loop of its own"),
    ({"kind": Fetching}, "Fetching has a get_batch_samples of its own"),
    ({"kind": Remembering}, "training_step changes 'rows' of the Trainer"),
    ({"kind": Annealing}, "training_step changes 'scale' of the model"),
    ({"kind": Augmenting}, "training_step draws random numbers of the CPU's, Python's or numpy's"),
    ({"make": lambda: Model(drop=0.2)}, "training_step draws random numbers of the CPU's"),
    ({"callbacks": [Looking()]}, "Looking has an on_substep_end")])
def test_what_may_look_between_micro_batches_runs_one_by_one(tmp_path, joined, capfd, options,
                                                              says):
    found = train(tmp_path, 1, **options)
    lines = [each for each in capfd.readouterr().err.splitlines() if "one by one" in each]
    assert len(lines) == 1 and says in lines[0] and not joined
    assert lines[0].startswith("firn: relay: the Trainer's micro-batches run one by one: ")
    assert equal(found, train(tmp_path, 0, **options))


class Failing(Noting):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if len(self.noted) == 11:  # the second one of a group
            raise KeyError("words")
        return loss


def test_an_exception_of_one_micro_batch(tmp_path, joined):
    with pytest.raises(KeyError, match="words"):
        train(tmp_path, 1, kind=Failing)
    assert joined == [3, 3]
    assert not any(each.name.startswith("relay ") for each in threading.enumerate())


class Dropping(transformers.Trainer):
    """Its own loop, by another name, drops a batch that it has fetched."""

    def training_steps(self, batches):
        return [self.training_step(self.model, each, None) for each in batches]


def test_batches_that_are_not_trained_with_are_an_error(tmp_path, joined):
    torch.manual_seed(0)
    with contextlib.closing(doors_of.Doors(1)):
        trainer = Dropping(model=Model(), train_dataset=Rows(24),
                           args=transformers.TrainingArguments(
                               output_dir=str(tmp_path), use_cpu=True, report_to=[],
                               per_device_train_batch_size=2, gradient_accumulation_steps=3,
                               max_steps=2, save_strategy="no", disable_tqdm=True))
        trainer.train()
        trainer.control.should_training_stop = False
        batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 3, "cpu")
        with pytest.raises(RuntimeError, match="has fetched other batches than it trains with"):
            trainer.training_steps([batches[0], batches[2]])
        assert joined == [3]
        batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 3, "cpu")
        trainer.training_steps([batches[1]])
        assert joined == [3] and "training_step" in vars(trainer)
        trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, "cpu")
        assert "training_step" not in vars(trainer)


def test_the_trainer_is_given_back(tmp_path, joined):
    before = transformers.Trainer.get_batch_samples
    doors = doors_of.Doors(1)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    nn.functional.cross_entropy(model(torch.ones(2, 3, dtype=torch.long)).flatten(0, 1),
                                torch.ones(6, dtype=torch.long)).backward()
    optimizer.step()
    assert transformers.Trainer.get_batch_samples is not before
    doors.close()
    assert transformers.Trainer.get_batch_samples is before


def test_nothing_is_joined_where_firn_moves_nothing(tmp_path, joined, monkeypatch):
    monkeypatch.undo()
    assert not groups.pays()


ON_THE_GPU = """
import sys
sys.path.insert(0, %r)
import torch
import test_relay_automatic_groups as groups
make = lambda: groups.Model(drop=0.2, width=64)
one, other = (groups.train(%r, parts, make, use_cpu=False) for parts in (1, 0))
assert groups.equal(one, other) and not torch.equal(one[0], one[-1])
"""


def test_dropout_on_the_device_draws_the_loops_numbers(run, tmp_path):
    done = run(ON_THE_GPU % (str(pathlib.Path(__file__).parent), str(tmp_path)))
    assert done.stderr.count("firn: relay: ") == 2
    assert "the Trainer's micro-batches, 3 a step, take turns at each layer\n" in done.stderr
