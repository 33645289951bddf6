"""Run by test_compiled.py: training steps of small models in program order and in the planned one.
Prints JSON, by model (gpt: with dropout) and way (step: firn.compiled.training_step; backend:
torch.compile(model, backend="firn")): are the results equal to the last bit, and the peaks, planned
and measured.
"""

import json

import torch
from torch import nn
from torch.nn import functional

from firn import compiled


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, value):
        query, key, content = self.qkv(self.norms[0](value)).chunk(3, -1)
        scores = (query @ key.transpose(-2, -1) * value.shape[-1] ** -0.5).softmax(-1)
        value = value + self.out(scores @ content)
        return value + self.drop(self.outer(functional.gelu(self.inner(self.norms[1](value)))))


class Gpt(nn.Module):
    def __init__(self, width=192, layers=4, drop=0.1):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*[Block(width, drop) for _ in range(layers)])
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        return self.head(self.blocks(self.embedding(ids))).flatten(0, -2)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels))

    def forward(self, value):
        return functional.relu(value + self.layers(value))


def resnet(channels=96, classes=2000):
    """The most is alive when the last layer's weight is updated: what a convolution's kernel takes
    for itself, which no graph says, does not reach that."""
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
                         *[Residual(channels) for _ in range(3)], nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(channels, classes))


def make(name):
    torch.manual_seed(1)
    if name == "resnet":
        return resnet(), torch.randn(2, 3, 4, 4), torch.randint(0, 2000, (2,))
    ids = torch.randint(0, 256, (1, 16))
    return Gpt(), ids, ids.flatten()


def step_of(model):
    """Forward, loss, backward, and Adam with m and v made in the step: much to be ordered."""
    def step(parameters, buffers, value, target):
        output = torch.func.functional_call(model, {**parameters, **buffers}, (value,))
        loss = functional.cross_entropy(output, target)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients):
                m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
                m.mul_(0.9).add_(gradient, alpha=0.1)
                v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                parameter.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)
        return loss.detach()
    return step


def measured(call, held):
    """Bytes alive at most on the CPU while it runs, by the allocator's own reports."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    alive = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak + sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes()
                       for each in held}.values())


def run_step(name, program_order):
    model, value, target = make(name)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    step = compiled.training_step(step_of(model), program_order=program_order)
    torch.manual_seed(2)
    losses = [step(parameters, buffers, value, target).item() for _ in range(3)]
    state = [each.detach().clone() for each in (*parameters.values(), *buffers.values())]
    peak = measured(lambda: step(parameters, buffers, value, target),
                    (*parameters.values(), *buffers.values(), value, target))
    return losses, state, peak, step.found


def run_backend(name, backend):
    model, value, target = make(name)
    run = torch.compile(model, backend=backend)
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(2)
    losses = []
    for _ in range(3):
        loss = functional.cross_entropy(run(value), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [each.detach().clone() for each in model.state_dict().values()]


def case(name, way):
    if way == "step":
        one, two = run_step(name, True), run_step(name, False)
        found = {"program_order_measured": one[2], "measured": two[2], **two[3]}
    else:
        graphs = []
        kept = compiled.reorder
        compiled.reorder = lambda *args, **options: graphs.append(kept(*args, **options))
        one, two = run_backend(name, "aot_eager"), run_backend(name, "firn")
        compiled.reorder = kept
        found = {"graphs": graphs}
    equal = one[0] == two[0] and all(torch.equal(a, b) for a, b in zip(one[1], two[1]))
    return {"equal": equal, "losses": two[0], **found}


def draws():
    """Two draws, the second of which had better come first."""
    def step(scale):
        few = torch.rand(1_000) * scale
        return few + torch.rand(100_000).sum()

    results = []
    for program_order in (True, False):
        torch.manual_seed(3)
        results.append(compiled.training_step(step, program_order=program_order)(torch.ones(1)))
    return {"equal": torch.equal(*results)}


def main():
    torch.set_num_threads(1)
    print(json.dumps({"draws": draws(), **{f"{name} {way}": case(name, way)
                                           for name in ("gpt", "resnet")
                                           for way in ("step", "backend")}}))


if __name__ == "__main__":
    main()
