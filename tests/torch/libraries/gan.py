"""A generator and a discriminator, one after the other, with a penalty on the gradient's norm."""

import torch

import job
import report


def deconvolutions(width):
    layers = [torch.nn.ConvTranspose2d(64, width * 4, 4)]
    for part in (4, 2):
        layers += [torch.nn.BatchNorm2d(width * part), torch.nn.ReLU(),
                   torch.nn.ConvTranspose2d(width * part, width * part // 2, 4, 2, 1)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(),
                               torch.nn.ConvTranspose2d(width, 3, 4, 2, 1), torch.nn.Tanh())


def convolutions(width):
    layers = [torch.nn.utils.spectral_norm(torch.nn.Conv2d(3, width, 4, 2, 1))]
    for part in (1, 2):
        layers += [torch.nn.LeakyReLU(.2),
                   torch.nn.utils.spectral_norm(
                       torch.nn.Conv2d(width * part, width * part * 2, 4, 2, 1))]
    return torch.nn.Sequential(*layers, torch.nn.LeakyReLU(.2),
                               torch.nn.Conv2d(width * 4, 1, 4), torch.nn.Flatten(0))


def main():
    args = job.arguments(__doc__, width=48, batch=32)
    generator, critic = deconvolutions(args.width).cuda(), convolutions(args.width).cuda()
    generates = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(.5, .999))
    judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(.5, .999))
    for step in range(args.steps):
        real = torch.rand(args.batch, 3, 32, 32, device="cuda") * 2 - 1
        for _ in range(2):
            fake = generator(torch.randn(args.batch, 64, 1, 1, device="cuda")).detach()
            part = torch.rand(args.batch, 1, 1, 1, device="cuda")
            between = (real * part + fake * (1 - part)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
            job.step(step, loss, judges)
        loss = -critic(generator(torch.randn(args.batch, 64, 1, 1, device="cuda"))).mean()
        job.step(step, loss, generates)
    report.finish([*generator.parameters(), *critic.parameters()])


if __name__ == "__main__":
    main()
