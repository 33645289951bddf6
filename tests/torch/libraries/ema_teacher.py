"""A student that follows its own average: two networks, one optimizer, half of it in bfloat16."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, width=768, layers=4, batch=256)
    blocks = [torch.nn.TransformerEncoderLayer(args.width, 8, args.width * 2, dropout=.1,
                                               batch_first=True, norm_first=True)
              for _ in range(args.layers)]
    student = torch.nn.Sequential(*blocks).cuda()
    teacher = torch.optim.swa_utils.AveragedModel(
        student, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(.99))
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4, amsgrad=True)
    for step in range(args.steps):
        x = torch.randn(args.batch // 32, 32, args.width, device="cuda")
        with torch.no_grad():
            wanted = teacher(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            seen = student(x * (torch.rand_like(x) > .3))
            loss = 1 - torch.nn.functional.cosine_similarity(seen, wanted, dim=-1).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        teacher.update_parameters(student)
        report.loss(step, loss)
    report.finish([*student.parameters(), *teacher.parameters()])


if __name__ == "__main__":
    main()
