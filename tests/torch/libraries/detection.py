"""Faster R-CNN of torchvision's over a MobileNet: images of several sizes, boxes by chance."""

import torch
import torchvision

import job
import report


def main():
    args = job.arguments(__doc__, size=256, images=2)
    net = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=args.size,
        max_size=args.size * 2).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=.9, weight_decay=1e-4)
    for step in range(args.steps):
        images, targets = [], []
        for number in range(args.images):
            height, width = args.size, args.size + 32 * (step + number)
            images.append(torch.rand(3, height, width, device="cuda"))
            corners = torch.rand(4 + step, 2, device="cuda") * args.size / 2
            sizes = torch.rand(4 + step, 2, device="cuda") * args.size / 3 + 8
            targets.append({"boxes": torch.cat([corners, corners + sizes], 1),
                            "labels": torch.randint(1, 5, (4 + step,), device="cuda")})
        losses = net(images, targets)
        loss = sum(losses.values())
        job.step(step, loss, optimizer)
    net.eval()
    with torch.no_grad():
        found = net(images)
    report.finish([*net.state_dict().values(), *(each["boxes"] for each in found)])


if __name__ == "__main__":
    main()
