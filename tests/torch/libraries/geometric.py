"""Graph convolutions and attention over a random graph, by torch_geometric, with Adam."""

import torch
import torch_geometric.nn

import job
import report


class Net(torch.nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.first = torch_geometric.nn.GCNConv(features, width)
        self.second = torch_geometric.nn.GATConv(width, width // 4, heads=4)
        self.last = torch_geometric.nn.GCNConv(width, classes)

    def forward(self, x, edges):
        x = torch.relu(self.first(x, edges))
        x = torch.nn.functional.elu(self.second(x, edges))
        return self.last(x, edges)


def main():
    args = job.arguments(__doc__, nodes=3000, edges=24000, features=256, width=128)
    x = torch.randn(args.nodes, args.features, device="cuda")
    edges = torch.randint(args.nodes, (2, args.edges), device="cuda")
    classes = torch.randint(16, (args.nodes,), device="cuda")
    net = Net(args.features, args.width, 16).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=.01, weight_decay=5e-4)
    for step in range(args.steps):
        loss = torch.nn.functional.cross_entropy(net(x, edges), classes)
        job.step(step, loss, optimizer)
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
