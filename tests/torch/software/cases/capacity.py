"""A device of 48 MiB: what does not fit is torch's own out-of-memory error."""

import torch
from _models import GPT, gpt_batches


def train(batch):
    torch.manual_seed(0)
    model = GPT(vocabulary=128, width=128, layers=2, time=64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for tokens, targets in gpt_batches(2, vocabulary=128, batch=batch, time=64):
        loss = model(tokens.cuda(), targets.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def case_out_of_memory_while_training():
    assert torch.cuda.mem_get_info()[1] == 48 << 20
    try:
        train(64)
    except torch.cuda.OutOfMemoryError as error:
        assert "total capacity of 48.00 MiB" in str(error), error
    else:
        raise AssertionError("it fitted")
    torch.cuda.empty_cache()
    assert train(2) == train(2)
    assert torch.cuda.max_memory_reserved() <= 48 << 20
