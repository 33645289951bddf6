"""A small training job as anybody writes one: a few layers, AdamW, losses that fall."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(6)
                              for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(256, 1024, device="cuda")
y = x.roll(1, 1)
losses = []
for step in range(6):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print("step", step, "loss", losses[-1], flush=True)
print("peak", torch.cuda.max_memory_allocated())
assert losses[-1] < losses[0]
