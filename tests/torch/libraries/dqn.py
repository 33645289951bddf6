"""Deep Q-learning: a memory of steps on the device, a network, and the target that follows it."""

import copy

import torch

import job
import report


def main():
    args = job.arguments(__doc__, steps=12, memory=3000, observations=2048, width=1024, batch=256)
    net = torch.nn.Sequential(
        torch.nn.Linear(args.observations, args.width), torch.nn.ReLU(),
        torch.nn.Linear(args.width, args.width), torch.nn.ReLU(),
        torch.nn.Linear(args.width, 6)).cuda()
    target = copy.deepcopy(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4, momentum=.9)
    seen = torch.zeros(args.memory, args.observations, device="cuda")
    done = torch.zeros(args.memory, dtype=torch.long, device="cuda")
    rewards = torch.zeros(args.memory, device="cuda")
    state = torch.randn(1, args.observations, device="cuda")
    for step in range(args.steps):
        for number in range(step * 64, step * 64 + 64):
            with torch.no_grad():
                action = net(state).argmax() if torch.rand(()) > .2 else torch.randint(6, ())
            seen[number % args.memory] = state[0]
            done[number % args.memory] = action
            rewards[number % args.memory] = state.mean() * (action + 1)
            state = torch.roll(state, 1, 1) + .1 * torch.randn_like(state)
        rows = torch.randint(step * 64 + 63, (args.batch,), device="cuda")
        chosen = net(seen[rows]).gather(1, done[rows, None])[:, 0]
        with torch.no_grad():
            hoped = rewards[rows] + .99 * target(seen[rows + 1]).max(1).values
        loss = torch.nn.functional.smooth_l1_loss(chosen, hoped)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            target.load_state_dict(net.state_dict())
        else:
            for ours, theirs in zip(target.parameters(), net.parameters()):
                ours.data.lerp_(theirs.data, .05)
        report.loss(step, loss)
    report.finish([*net.parameters(), *target.parameters(), seen])


if __name__ == "__main__":
    main()
