"""An operator added by the recipe: one folder; registered with PyTorch, differentiable and compilable by its schema."""

import torch


def test_an_operator(follow):
    module = follow("Add an operator or a kernel", "leaky_sum_operator")
    x = torch.randn(2, 5, 3, requires_grad=True)
    decay = torch.rand(3, requires_grad=True)
    out = module.leaky_sum(x, decay)
    total = torch.zeros(2, 3)
    for step in range(5):
        total = decay * total + x[:, step]
        torch.testing.assert_close(out[:, step], total)
    (got_x, got_decay) = torch.autograd.grad(out.square().sum(), (x, decay))
    weights = decay.detach().clone().requires_grad_()
    leaf = x.detach().clone().requires_grad_()
    sums, total = [], torch.zeros(2, 3)
    for step in range(5):
        total = weights * total + leaf[:, step]
        sums.append(total)
    wanted = torch.autograd.grad(torch.stack(sums, 1).square().sum(), (leaf, weights))
    torch.testing.assert_close((got_x, got_decay), wanted)
    with torch.device("meta"):
        assert module.leaky_sum(torch.empty(2, 5, 3), torch.empty(3)).shape == (2, 5, 3)
