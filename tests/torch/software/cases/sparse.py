"""Sparse tensors (COO): embeddings' gradients and what optimizers make of them, and operators one by
one, equal to the CPU's in every bit."""

import torch
from _common import assert_same, both
from torch import nn


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(200, 12, sparse=True)
        self.bags = nn.EmbeddingBag(100, 12, mode="sum", sparse=True)

    def forward(self, words, bags):
        return self.words(words).tanh().sum(1) * self.bags(bags)


def train_tables(optimizer, clear_to_none=True):
    def train(model, device, steps):
        chosen = optimizer(model.parameters())
        generator = torch.Generator().manual_seed(3)
        losses = []
        for _ in range(steps):
            for _ in range(2):  # gradients add up
                words = torch.randint(200, (8, 5), generator=generator).to(device)
                bags = torch.randint(100, (8, 3), generator=generator).to(device)
                loss = (model(words, bags) - 1).square().mean()
                loss.backward()
            chosen.step()
            chosen.zero_grad(set_to_none=clear_to_none)
            losses.append(loss.item())
        return losses
    return train


def case_sgd():
    both(Tables, train_tables(lambda p: torch.optim.SGD(p, lr=.5)))


def case_sgd_cleared_in_place():
    both(Tables, train_tables(lambda p: torch.optim.SGD(p, lr=.5), clear_to_none=False))


def case_sparse_adam():
    both(Tables, train_tables(lambda p: torch.optim.SparseAdam(list(p), lr=.05)))


def case_adagrad():
    both(Tables, train_tables(lambda p: torch.optim.Adagrad(p, lr=.1)))


def example(seed, coalesced=False, dense_dim=0):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(6, (2, 20), generator=generator)
    values = torch.randn(20, *[3] * dense_dim, generator=generator)
    made = torch.sparse_coo_tensor(indices, values, (6, 6, *[3] * dense_dim))
    return made.coalesce() if coalesced else made


def same(cuda, cpu, what):
    if not cpu.is_sparse:
        assert_same(cuda, cpu, what)
        return
    assert cuda.is_sparse and cuda.is_cuda and cuda.shape == cpu.shape, what
    assert cuda.is_coalesced() == cpu.is_coalesced(), what
    assert_same(cuda._indices(), cpu._indices(), what + ": indices")
    assert_same(cuda._values(), cpu._values(), what + ": values")


OPERATORS = {
    "coalesce": lambda a, b, d: a.coalesce(),
    "to_dense": lambda a, b, d: a.to_dense(),
    "clone": lambda a, b, d: a.clone(),
    "add": lambda a, b, d: a + b,
    "add to dense": lambda a, b, d: d.clone().add_(a, alpha=2),
    "sub": lambda a, b, d: a - b,
    "mul": lambda a, b, d: a.coalesce() * b.coalesce(),
    "mul by a number": lambda a, b, d: a * 3,
    "mul by dense": lambda a, b, d: a * d,
    "div": lambda a, b, d: a / 3,
    "neg": lambda a, b, d: -a,
    "sqrt": lambda a, b, d: a.coalesce().abs().sqrt(),
    "mm": lambda a, b, d: torch.sparse.mm(a, d),
    "addmm": lambda a, b, d: torch.sparse.addmm(d, a, d),
    "sum": lambda a, b, d: torch.sparse.sum(a),
    "sum of rows": lambda a, b, d: torch.sparse.sum(a, 0),
    "softmax": lambda a, b, d: torch.sparse.softmax(a.coalesce(), 1),
    "mask": lambda a, b, d: d.sparse_mask(a.coalesce()),
    "from dense": lambda a, b, d: torch.relu(d).to_sparse(),
    "cat": lambda a, b, d: torch.cat([a, b]),
    "transpose": lambda a, b, d: a.t().coalesce(),
    "narrow": lambda a, b, d: a.coalesce().narrow_copy(0, 1, 3),
    "select": lambda a, b, d: a.coalesce().index_select(0, torch.tensor([1, 4], device=d.device)),
    "norm": lambda a, b, d: a.coalesce().norm(),
    "in place": lambda a, b, d: a.clone().add_(b).mul_(2),
    "zero": lambda a, b, d: a.clone().zero_(),
}


def case_operators_one_by_one():
    for name, operator in OPERATORS.items():
        for coalesced in (False, True):
            a, b = example(1, coalesced), example(2, coalesced)
            d = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
            expected = operator(a, b, d)
            arguments = a.cuda(), b.cuda(), d.cuda()
            same(operator(*arguments), expected, name)
            same(arguments[0], a, name + ": its argument afterwards")


def case_dense_dimensions():
    a, b = example(4, dense_dim=1), example(5, dense_dim=1)
    same(a.cuda().coalesce(), a.coalesce(), "coalesce")
    same(a.cuda() + b.cuda(), a + b, "add")
    same((a.cuda() + b.cuda()).to_dense(), (a + b).to_dense(), "to_dense")


def case_backward_through_a_product():
    a = example(6, coalesced=True)
    gradients = []
    for device in ("cpu", "cuda"):
        left = a.clone().to(device).requires_grad_()
        right = torch.ones(6, 4, device=device).requires_grad_()
        torch.sparse.mm(left, right).square().sum().backward()
        gradients.append((right.grad, left.grad))
    assert_same(gradients[1][0], gradients[0][0], "of the dense one")
    same(gradients[1][1].coalesce(), gradients[0][1].coalesce(), "of the sparse one")
