"""What the software device refuses, and the words of each refusal."""

import torch


def refused(function, kind, *words):
    try:
        function()
    except kind as error:
        for word in words:
            assert word in str(error), error
    else:
        raise AssertionError("not refused: %s" % (words,))


def case_mixed_devices():
    a, b = torch.ones(3, 3), torch.ones(3, 3, device="cuda")
    same = "Expected all tensors to be on the same device"
    refused(lambda: a + b, RuntimeError, same)
    refused(lambda: b + a, RuntimeError, same, "cuda:0 and cpu")
    refused(lambda: a @ b, RuntimeError, same)
    refused(lambda: torch.cat([a, b]), RuntimeError, same)
    refused(lambda: torch.nn.functional.linear(b, a), RuntimeError, same)
    refused(lambda: torch.where(b > 0, a, b), RuntimeError, same)
    refused(lambda: a[torch.ones(2, dtype=torch.long, device="cuda")], RuntimeError, "cpu")
    assert (b + torch.tensor(1.0)).sum().item() == 18  # a number is welcome


def case_operators_without_a_kernel():
    x = torch.ones(2, 4, 8, 8, device="cuda")
    weight = torch.ones(4, 4, 3, 3, device="cuda")
    refused(lambda: torch.cudnn_convolution(x, weight, (1, 1), (1, 1), (1, 1), 1, False, False,
                                            False),
            NotImplementedError, "firn software device: no kernel for aten::cudnn_convolution")
    q = torch.ones(1, 2, 8, 16, device="cuda")
    refused(lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q),
            NotImplementedError, "no kernel for aten::_scaled_dot_product_flash_attention")


def case_kernels_made_for_a_gpu():
    sparse = torch.eye(3).to_sparse_csr()
    refused(lambda: torch.sum(sparse.cuda(), 0, keepdim=True).to_dense().cpu(), RuntimeError,
            "not supported")
    # the refusal leaves the device usable
    assert torch.ones(2, device="cuda").sum().item() == 2


def case_kernels_that_nobody_checks():
    """PyTorch launches this one and does not look whether that went well."""
    nested = torch.nested.nested_tensor([torch.ones(4, 5), torch.ones(3, 5)]).cuda()
    refused(lambda: nested.to_padded_tensor(0.0).sum().item(), RuntimeError,
            "launched a GPU kernel that the software device lacks")
    assert torch.ones(2, device="cuda").sum().item() == 2


def case_errors_are_the_cpus():
    x = torch.ones(3, device="cuda")
    refused(lambda: x.gather(0, torch.tensor([5], device="cuda")), RuntimeError, "out of bounds")
    refused(lambda: torch.linalg.inv(torch.zeros(2, 2, device="cuda")), RuntimeError, "singular")
    refused(lambda: x.view(2), RuntimeError, "invalid for input of size")
    assert (x + 1).sum().item() == 6
