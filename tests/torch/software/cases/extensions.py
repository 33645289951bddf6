"""Operators of other libraries, registered after the device was started."""

import torch
from _common import assert_same


def case_torchvision_operators():
    import torchvision
    torch.manual_seed(0)
    boxes = torch.rand(50, 4) * 50
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(50)
    assert_same(torchvision.ops.nms(boxes.cuda(), scores.cuda(), 0.3),
                torchvision.ops.nms(boxes, scores, 0.3))
    features = torch.randn(1, 3, 64, 64)
    rois = torch.cat([torch.zeros(50, 1), boxes], 1)
    assert_same(torchvision.ops.roi_align(features.cuda(), rois.cuda(), 5),
                torchvision.ops.roi_align(features, rois, 5))


def case_resnet():
    import torchvision
    torch.manual_seed(0)
    net = torchvision.models.resnet18(num_classes=10)
    twin = torchvision.models.resnet18(num_classes=10).cuda()
    twin.load_state_dict(net.state_dict())
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])
    for model, device in ((net, "cpu"), (twin, "cuda")):
        torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
    for a, b in zip(twin.parameters(), net.parameters()):
        assert_same(a.grad, b.grad)


def case_operators_of_the_user():
    library = torch.library.Library("firn_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CUDA")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CPU")
    library.impl("thrice", lambda x: x * 3, "CUDA")
    x = torch.arange(5.0)
    y = x.cuda() + 0
    assert_same(torch.ops.firn_test.twice(y), x * 2)
    assert_same(torch.ops.firn_test.thrice(y), x * 3)
