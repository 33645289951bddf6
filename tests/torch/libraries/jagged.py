"""Sequences of several lengths as one jagged tensor: embeddings, layers, padded attention."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, width=256, sequences=24, longest=160, layers=3)
    embed = torch.nn.Embedding(4096, args.width).cuda()
    layers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.LayerNorm(args.width), torch.nn.Linear(args.width, args.width * 4),
                            torch.nn.GELU(), torch.nn.Linear(args.width * 4, args.width))
        for _ in range(args.layers)).cuda()
    attention = torch.nn.MultiheadAttention(args.width, 4, batch_first=True).cuda()
    parameters = [*embed.parameters(), *layers.parameters(), *attention.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for step in range(args.steps):
        lengths = torch.randint(8, args.longest, (args.sequences,)).tolist()
        tokens = torch.nested.nested_tensor(
            [torch.randint(4096, (length,), device="cuda") for length in lengths],
            layout=torch.jagged)
        x = embed(tokens)
        for layer in layers:
            x = x + layer(x)
        padded = torch.nested.to_padded_tensor(x, 0.)
        places = torch.arange(padded.shape[1], device="cuda")
        beyond = places >= torch.tensor(lengths, device="cuda")[:, None]
        mixed, _ = attention(padded, padded, padded, key_padding_mask=beyond, need_weights=False)
        loss = (mixed - padded.flip(1)).square().mean()
        job.step(step, loss, optimizer)
    report.finish(parameters)


if __name__ == "__main__":
    main()
