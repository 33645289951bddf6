"""A ConvNeXt of timm's with its LAMB, its average of the weights and its schedule."""

import timm
import timm.optim
import timm.scheduler
import timm.utils
import torch

import job
import report


def main():
    args = job.arguments(__doc__, batch=6, size=96)
    net = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=.1).cuda()
    average = timm.utils.ModelEmaV3(net, decay=.99)
    optimizer = timm.optim.create_optimizer_v2(net, opt="lamb", lr=1e-3, weight_decay=.05)
    schedule = timm.scheduler.CosineLRScheduler(optimizer, t_initial=args.steps, warmup_t=1)
    for step in range(args.steps):
        x = torch.randn(args.batch, 3, args.size, args.size, device="cuda")
        y = torch.randint(10, (args.batch,), device="cuda")
        loss = torch.nn.functional.cross_entropy(net(x), y, label_smoothing=.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.)
        optimizer.step()
        schedule.step(step + 1)
        average.update(net)
        report.loss(step, loss)
    report.finish([*net.parameters(), *average.module.parameters()])


if __name__ == "__main__":
    main()
