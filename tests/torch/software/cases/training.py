"""Training on the device, equal to the CPU's in every bit."""

import copy
import io
import os
import tempfile

import torch
import torch.utils.checkpoint
from _common import Verified, assert_same, both
from _models import GPT, ConvNet, Recurrent, gpt_batches
from torch import nn


def train_gpt(optimizer):
    def train(model, device, steps):
        chosen = optimizer(model.parameters())
        losses = []
        for tokens, targets in gpt_batches(steps):
            loss = model(tokens.to(device), targets.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
            chosen.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses
    return train


def case_gpt_adamw():
    both(GPT, train_gpt(lambda p: torch.optim.AdamW(p, lr=3e-3)), steps=10)


def case_gpt_adamw_foreach():
    both(GPT, train_gpt(lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True, amsgrad=True)))


def case_gpt_adamw_fused():
    both(GPT, train_gpt(lambda p: torch.optim.AdamW(p, lr=3e-3, fused=True)))


def case_gpt_sgd_fused():
    both(GPT, train_gpt(lambda p: torch.optim.SGD(p, lr=3e-2, momentum=0.9, fused=True)))


def case_gpt_other_optimizers():
    for kind in (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adamax, torch.optim.NAdam,
                 torch.optim.Adadelta, torch.optim.RAdam, torch.optim.Rprop, torch.optim.ASGD):
        for foreach in (False, True):  # torch's default depends on the device
            both(GPT, train_gpt(lambda p: kind(p, lr=1e-3, foreach=foreach)), steps=3)


def train_convnet(checkpoint):
    def train(model, device, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True,
                                    weight_decay=1e-4)
        generator = torch.Generator().manual_seed(5)
        losses = []
        for _ in range(steps):
            images = torch.randn(8, 3, 16, 16, generator=generator)
            labels = torch.randint(10, (8,), generator=generator)
            loss = nn.functional.cross_entropy(model(images.to(device), checkpoint),
                                               labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
    return train


def case_convnet_bn_sgd():
    both(ConvNet, train_convnet(False))


def case_convnet_checkpoint():
    both(ConvNet, train_convnet(True))


def case_convnet_channels_last():
    both(lambda: ConvNet().to(memory_format=torch.channels_last), train_convnet(False))


def train_recurrent(model, device, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for tokens, targets in gpt_batches(steps, vocabulary=32, time=12):
        loss = model(tokens.to(device), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class CellByCell(nn.Module):
    """What torch does for a recurrent layer on a GPU: no step's input is transformed ahead of time
    (as it is on the CPU, in another order of sums), and a cell's gates are added biases first."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        kind = type(self.rnn)
        for layer in range(self.rnn.num_layers):
            w_ih, w_hh, b_ih, b_hh = (getattr(self.rnn, "%s_l%d" % (name, layer)) for name in
                                      ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            h = c = x.new_zeros(x.shape[0], self.rnn.hidden_size)
            out = []
            for step in x.transpose(0, 1).unbind(0):
                inputs, hidden = step @ w_ih.t(), h @ w_hh.t()
                if kind is nn.LSTM:
                    gates = (hidden + b_hh) + (inputs + b_ih)
                    i, f, g, o = gates.chunk(4, 1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                else:
                    ir, iz, inew = (inputs + b_ih).chunk(3, 1)
                    hr, hz, hnew = (hidden + b_hh).chunk(3, 1)
                    r, z = torch.sigmoid(hr + ir), torch.sigmoid(hz + iz)
                    new = torch.tanh(inew + hnew * r)
                    h = (h - new) * z + new
                out.append(h)
            x = torch.stack(out, 1)
        return x, None


def recurrent_equals(kind):
    """Forward: the CPU's bits. Training: torch's own CPU layer to rounding, and again the same."""
    torch.manual_seed(7)
    model = Recurrent(kind)
    plain = copy.deepcopy(model)
    plain.rnn = CellByCell(plain.rnn)
    twin = copy.deepcopy(model).cuda()
    tokens, targets = next(gpt_batches(1, vocabulary=32, time=12))
    loss = twin(tokens.cuda(), targets.cuda())
    assert_same(loss, plain(tokens, targets), "loss")
    with Verified() as mode:
        losses = train_recurrent(twin, "cuda", 4)
    assert mode.compared > 500 and any("fused" in name or "addmm" in name or "mm" in name
                                       for name in mode.names)
    again = train_recurrent(copy.deepcopy(model).cuda(), "cuda", 4)
    assert losses == again
    with torch.backends.mkldnn.flags(enabled=False):
        cpu = train_recurrent(model, "cpu", 4)
    assert torch.allclose(torch.tensor(losses), torch.tensor(cpu), rtol=1e-5, atol=1e-6)


def case_lstm():
    recurrent_equals(nn.LSTM)


def case_gru():
    recurrent_equals(nn.GRU)


def case_rnn_tanh():
    torch.manual_seed(7)
    twin = Recurrent(nn.RNN).cuda()
    with Verified() as mode:
        train_recurrent(twin, "cuda", 3)
    assert mode.compared > 300


def case_bidirectional_packed_lstm():
    torch.manual_seed(7)
    lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True)
    twin = copy.deepcopy(lstm).cuda()
    x = torch.randn(9, 3, 6)
    lengths = torch.tensor([9, 6, 2])
    results = []
    for module, device in ((lstm, "cpu"), (twin, "cuda")):
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), lengths)
        out, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0])
        out.square().sum().backward()
        results.append([out] + [p.grad for p in module.parameters()])
    for cuda, cpu in zip(results[1], results[0]):
        assert cuda.is_cuda and torch.allclose(cuda.cpu(), cpu, rtol=1e-4, atol=1e-5)


def case_cells_alone():
    for kind in (nn.LSTMCell, nn.GRUCell):
        torch.manual_seed(1)
        cell = kind(6, 5)
        twin = copy.deepcopy(cell).cuda()
        x, h, c = torch.randn(3, 6), torch.randn(3, 5), torch.randn(3, 5)
        results = []
        for module, device in ((cell, "cpu"), (twin, "cuda")):
            leaves = [t.clone().to(device).requires_grad_() for t in (x, h, c)]
            out = module(leaves[0], tuple(leaves[1:]) if kind is nn.LSTMCell else leaves[1])
            total = sum((o * (i + 1.5)).sum() for i, o in enumerate(out)) \
                if isinstance(out, tuple) else (out * 1.5).sum()
            total.backward()
            used = leaves if kind is nn.LSTMCell else leaves[:2]
            results.append([total] + [t.grad for t in used] +
                           [p.grad for p in module.parameters()])
        for at, (cuda, cpu) in enumerate(zip(results[1], results[0])):
            assert_same(cuda, cpu, "%s %d" % (kind.__name__, at))


def case_rms_norm():
    torch.manual_seed(2)
    weight = torch.randn(24)
    x = torch.randn(4, 7, 24)
    for dtype in (torch.float32, torch.bfloat16):
        grads = []
        for device in ("cpu", "cuda"):
            inputs = x.to(device, dtype, copy=True).requires_grad_()
            scale = weight.to(device, dtype, copy=True).requires_grad_()
            out = nn.functional.rms_norm(inputs, (24,), scale, 1e-5)
            (out.float() ** 2).sum().backward()
            grads.append((out, inputs.grad, scale.grad))
        assert_same(grads[1][0], grads[0][0], "forward")
        tolerance = 1e-5 if dtype == torch.float32 else 0.1
        for cuda, cpu in zip(grads[1][1:], grads[0][1:]):
            assert torch.allclose(cuda.cpu().float(), cpu.float(), rtol=tolerance, atol=tolerance)


def case_dropout():
    def train(model, device, steps):
        torch.manual_seed(11)  # both devices' generators
        return train_gpt(lambda p: torch.optim.AdamW(p, lr=1e-3))(model, device, steps)
    both(lambda: GPT(dropout=0.3), train)


def case_dropout_with_checkpoint():
    def train(model, device, steps):
        torch.manual_seed(11)
        losses = []
        for tokens, targets in gpt_batches(steps):
            x = model.tokens(tokens.to(device))
            for block in model.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            loss = nn.functional.cross_entropy(model.head(x).flatten(0, 1),
                                               targets.to(device).flatten())
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.05 * parameter.grad
                        parameter.grad = None
            losses.append(loss.item())
        return losses
    both(lambda: GPT(dropout=0.3), train)


def autocast_run(kind):
    torch.manual_seed(7)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=kind == torch.float16)
    losses = []
    for step, (tokens, targets) in enumerate(gpt_batches(8)):
        with torch.autocast("cuda", dtype=kind):
            loss = model(tokens.cuda(), targets.cuda()) / 2
        scaler.scale(loss).backward()
        if step % 2 == 1:  # accumulated over two
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()], scaler.get_scale()


def case_autocast_bf16():
    losses, parameters, _ = autocast_run(torch.bfloat16)
    again, same, _ = autocast_run(torch.bfloat16)
    assert losses == again
    for a, b in zip(parameters, same):
        assert torch.equal(a, b)
    assert all(torch.isfinite(torch.tensor(losses))) and len(set(losses)) == len(losses)


def case_autocast_bf16_operator_by_operator():
    with Verified() as mode:
        autocast_run(torch.bfloat16)
    assert mode.compared > 1000 and "aten.addmm.default" in mode.names


def case_autocast_fp16_grad_scaler():
    losses, _, scale = autocast_run(torch.float16)
    assert losses == autocast_run(torch.float16)[0]
    assert all(torch.isfinite(torch.tensor(losses))) and scale > 0


def case_grad_scaler_skips_infinite_steps():
    parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=1)
    scaler.scale(parameter.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter.detach().cpu(), torch.ones(4)) and scaler.get_scale() == 2.0
    optimizer.zero_grad()
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter.detach().cpu(), torch.zeros(4)) and scaler.get_scale() == 4.0


def case_state_dict_round_trip():
    torch.manual_seed(7)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = train_gpt(lambda p: optimizer)
    step(model, "cuda", 3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "random": torch.cuda.get_rng_state()}, path)
        saved = torch.load(path)
        on_cpu = torch.load(path, map_location="cpu")
    assert all(value.is_cuda for value in saved["model"].values())
    twin = GPT().cuda()
    twin.load_state_dict(saved["model"])
    other = torch.optim.AdamW(twin.parameters(), lr=3e-3)
    other.load_state_dict(saved["optimizer"])
    for name, value in twin.state_dict().items():
        assert_same(value, on_cpu["model"][name], name)
    assert step(model, "cuda", 3) == train_gpt(lambda p: other)(twin, "cuda", 3)
    buffer = io.BytesIO()
    torch.save(twin, buffer)
    buffer.seek(0)
    assert next(torch.load(buffer, weights_only=False).parameters()).is_cuda


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % 10


def case_dataloader_workers_and_pinned_memory():
    def train(model, device, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2,
                                             pin_memory=device == "cuda")
        losses = []
        for images, labels in loader:
            assert images.is_pinned() == (device == "cuda")
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[:steps]
    both(ConvNet, train, steps=6)


def case_transformer_encoder():
    def build():
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(32, 1))

    def train(model, device, steps):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(5)
        losses = []
        for _ in range(steps):
            x = torch.randn(4, 10, 32, generator=generator).to(device)
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
    both(build, train)


def case_higher_order_gradients():
    for device in ("cpu", "cuda"):
        x = torch.linspace(-1, 1, 7).to(device).requires_grad_()
        first, = torch.autograd.grad((x.sin() ** 3).sum(), x, create_graph=True)
        second, = torch.autograd.grad(first.sum(), x)
        if device == "cpu":
            expected = second
    assert_same(second, expected)


def case_half_numbers_with_a_scaler():
    """As on a GPU: the scale grows while gradients are finite, and a step with one that is not is
    left out. (The CPU's own products of half numbers round otherwise: no bits are compared.)"""
    torch.manual_seed(7)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024., growth_interval=2)
    losses = []
    for number, (tokens, targets) in enumerate(gpt_batches(8)):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(tokens.cuda(), targets.cuda())
        scaler.scale(loss).backward()
        if number == 4:
            next(model.parameters()).grad[0] = float("inf")
            before = [each.clone() for each in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        if number == 4:
            assert all(map(torch.equal, before, model.parameters())), "the step was made"
        optimizer.zero_grad()
        losses.append(loss.item())
    assert scaler.get_scale() == 1024. * 2 ** 2 / 2 * 2, scaler.get_scale()
    assert all(4 < loss < 5 for loss in losses), losses  # (of 64 letters by chance)
    a, b = torch.randn(64, 96, device="cuda").half(), torch.randn(96, 32, device="cuda").half()
    assert torch.equal(a @ b, (a.float() @ b.float()).half())
    wide = a.float() @ b.float()
    assert torch.equal(torch.mm(a, b, out_dtype=torch.float32), wide)
    out = torch.empty(64, 32, device="cuda")
    assert torch.mm(a, b, out_dtype=torch.float32, out=out) is out and torch.equal(out, wide)
    added = torch.addmm(wide, a, b, out_dtype=torch.float32, beta=.5)
    assert torch.equal(added, torch.addmm(wide, a.float(), b.float(), beta=.5))
    try:
        torch.mm(a, b.float())
    except RuntimeError as error:
        assert "dtype" in str(error), error
    else:
        raise AssertionError("a product of half and single numbers was not refused")
