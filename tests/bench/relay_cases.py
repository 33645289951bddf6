"""Run by test_jobs_relay.py: small jobs. Prints JSON: by job, how a relay's gradients differ from
those of a loop that accumulates them, in what order layers ran, and what the ways are recorded to
do."""

import collections
import copy
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/jobs"))
import gpus  # noqa: E402
import models  # noqa: E402
import record  # noqa: E402
import relay_way  # noqa: E402
import updates  # noqa: E402

SMALL = {"vocabulary": 500, "hidden": 64, "inner": 100, "heads": 4, "kv_heads": 2}
JOBS = {"llama": models.Job("llama", models.llama, 12, 32, 3, options=SMALL),
        **{name: models.Job(name, getattr(models, name), 12, 32, 3,
                            options={"hidden": 64, "heads": 4}) for name in ("bert", "t5", "gpt")},
        "llama-shards": models.Job("llama", models.llama, 12, 32, 3, shards=2, options=SMALL)}


def without_cache(model):
    for each in model.modules():
        if hasattr(each, "config"):
            each.config.use_cache = False


def losses_of(model, parts):
    """Of so many different micro-batches."""
    ids = torch.arange(4 * parts * 16).reshape(4 * parts, 16) * 7 % 400
    return [lambda of=of: model(input_ids=of, labels=of).loss / parts for of in ids.chunk(parts)]


def gradients(job, parts):
    """(the largest difference, of layers' parameters alone) between a relay's and a loop's."""
    torch.manual_seed(parts)
    model, _ = job.build(job)
    model.double().eval()          # without dropout, whose draws would come in another order
    without_cache(model)
    again = copy.deepcopy(model)
    record.one_after_the_other(losses_of(model, parts))
    layers = record.layers_of(again)
    relay_way.Relay(layers).step(losses_of(again, parts))
    in_layers = {id(each) for layer in layers for each in layer.parameters()}
    worst = {"all": 0.0, "layers": 0.0, "least": float("inf")}
    for one, other in zip(model.parameters(), again.parameters()):
        if one.grad is None and other.grad is None:
            continue
        by = (one.grad - other.grad).abs().max().item()
        worst["all"] = max(worst["all"], by)
        worst["least"] = min(worst["least"], one.grad.abs().max().item())
        if id(other) in in_layers:
            worst["layers"] = max(worst["layers"], by)
    return worst


def order(job, parts):
    """(layer, forward or recomputed) as they ran, and the parameters that were updated."""
    model, _ = job.build(job)
    model.eval()
    without_cache(model)
    layers, ran = record.layers_of(model), []
    numbers = {id(each): at for at, layer in enumerate(layers) for each in layer.parameters()}
    for at, layer in enumerate(layers):
        forward = layer.forward
        layer.forward = lambda *args, _at=at, _forward=forward, **kwargs: (
            ran.append(("run", _at)), _forward(*args, **kwargs))[1]

    class Noted(torch.optim.SGD):
        def step(self, closure=None):
            ran.append(("update", numbers.get(id(self.param_groups[0]["params"][0]))))
            return super().step(closure)

    update = updates.Eager(model, lambda parameters: Noted(parameters, lr=1e-3))
    relay = relay_way.Relay(layers)
    for _ in range(2):
        ran.clear()
        relay.step(losses_of(model, parts))
        held = sum(each.grad is not None for each in model.parameters())
        update.finish()
    return {"ran": ran, "gradients_left": held}


def failing():
    """An error in one micro-batch ends all of them."""
    job = JOBS["llama"]
    model, _ = job.build(job)
    without_cache(model)
    losses = losses_of(model, 3)

    def wrong():
        losses[1]()
        raise KeyError("in the second micro-batch")

    relay = relay_way.Relay(record.layers_of(model))
    try:
        relay.step([losses[0], wrong, losses[2]])
    except KeyError as error:
        return str(error)
    return "no error"


def summary(job, way, parts):
    found = record.record(job, way, parts)
    return {**found.summary(gpus.GPUS["a100"]),
            "flops": sum(cost.flops for _, cost, _, _ in found.kernels),
            "names": collections.Counter(name for name, _, _, _ in found.kernels)}


def main():
    torch.set_num_threads(1)
    found = {"order": order(JOBS["llama"], 3), "failing": failing(),
             "gradients": {name: gradients(job, 3) for name, job in JOBS.items()
                           if job.shards == 1},
             "one": {way: summary(JOBS["llama"], way, 1) for way in record.WAYS},
             "three": {way: summary(JOBS["llama"], way, 3) for way in record.WAYS}}
    for name in ("bert", "t5", "llama-shards"):
        found[name] = {way: summary(JOBS[name], way, 2) for way in ("recompute", "relay")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
