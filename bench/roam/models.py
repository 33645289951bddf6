"""The models of ROAM's table, built on fake tensors: nothing of them takes memory."""

import contextlib
import math

import torch
import torch.nn.functional as functional

# Name: (ROAM's operators, batches). GPT2-XL is not in ROAM's operator column.
NAMES = {"alexnet": 268, "vgg11": 359, "mnasnet0_5": 2445, "mobilenet_v2": 2480,
         "efficientnet_b0": 3739, "vit_b_16": 2573, "roberta": 2690, "gpt2_xl": None}


class SavesItsResult(torch.autograd.Function):
    """ReLU6 in place that keeps its result: torch 2.11's hardtanh_ keeps a clone of its input."""

    @staticmethod
    def forward(context, value):
        torch.ops.aten.hardtanh_(value, 0.0, 6.0)
        context.mark_dirty(value)
        context.save_for_backward(value)
        return value

    @staticmethod
    def backward(context, gradient):
        value, = context.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, value, 0.0, 6.0)


class Relu6(torch.nn.Module):
    def forward(self, value):
        return SavesItsResult.apply(value)


def scores_scaled(query, key, value, *_, **__):
    """softmax((q k^T) scale) v, scaled in place."""
    scores = query @ key.transpose(-2, -1)
    scores.mul_(1 / math.sqrt(query.shape[-1]))
    return scores.softmax(-1) @ value


@contextlib.contextmanager
def scaled_attention(wanted):
    kept = functional.scaled_dot_product_attention
    if wanted:
        functional.scaled_dot_product_attention = scores_scaled
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = kept


class Hidden(torch.nn.Module):
    """The last hidden states of a transformer alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False, return_dict=False)[0]


def vision(name, batch):
    import torchvision

    model = getattr(torchvision.models, name)(weights=None)
    if name == "mobilenet_v2":
        for module in list(model.modules()):
            for child, each in list(module.named_children()):
                if isinstance(each, torch.nn.ReLU6):
                    setattr(module, child, Relu6())
    images = torch.empty(batch, 3, 224, 224)
    return model.train(), images, torch.zeros(batch, dtype=torch.long), functional.cross_entropy


def mean(output, _):
    return output.mean()


def roberta(batch):
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1,
                           hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                           layer_norm_eps=1e-5, attn_implementation="eager")
    model = Hidden(RobertaModel(config, add_pooling_layer=False))
    return model.train(), torch.ones(batch, 8, dtype=torch.long), None, mean


def gpt2_xl(batch):
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=1600, n_layer=48, n_head=25, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, attn_implementation="eager")
    model = Hidden(GPT2Model(config))
    return model.train(), torch.ones(batch, 1024, dtype=torch.long), None, mean


def build(name, batch):
    """Model, input, target (or None), loss(output, target)."""
    if name in ("roberta", "gpt2_xl"):
        return {"roberta": roberta, "gpt2_xl": gpt2_xl}[name](batch)
    return vision(name, batch)
