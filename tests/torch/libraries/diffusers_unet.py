"""A UNet of diffusers', trained to take noise away, with an average of its weights, then sampled."""

import diffusers
import diffusers.training_utils
import torch

import job
import report


def main():
    args = job.arguments(__doc__, batch=4, size=32, width=64)
    net = diffusers.UNet2DModel(
        sample_size=args.size, in_channels=3, out_channels=3, layers_per_block=2,
        block_out_channels=(args.width, args.width * 2, args.width * 3),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")).cuda()
    average = diffusers.training_utils.EMAModel(net.parameters(), decay=.99)
    average.to("cuda")
    noises = diffusers.DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(args.steps):
        x = torch.rand(args.batch, 3, args.size, args.size, device="cuda") * 2 - 1
        noise = torch.randn_like(x)
        times = torch.randint(100, (args.batch,), device="cuda")
        predicted = net(noises.add_noise(x, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.)
        optimizer.step()
        average.step(net.parameters())
        report.loss(step, loss)
    average.copy_to(net.parameters())
    noises.set_timesteps(4)
    image = torch.randn(2, 3, args.size, args.size, device="cuda")
    with torch.no_grad():
        for time in noises.timesteps:
            image = noises.step(net(image, time).sample, time, image).prev_sample
    report.finish([*net.parameters(), image])


if __name__ == "__main__":
    main()
