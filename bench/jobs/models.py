"""Training jobs at their real size, built on fake tensors: nothing of them takes memory.

Each builder gives (model, loss): loss() runs the forward pass of one step and returns the loss.
Transformers are Hugging Face's; weights are bf16 with AdamW's two states in bf16 too (what one
GPU's full fine-tuning takes), or fp32 under autocast with `mixed`.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import torch
import torch.nn.functional as functional


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    build: Callable[["Job"], tuple[torch.nn.Module, Callable[[], torch.Tensor]]]
    batch: int
    length: int = 0                # tokens of a sequence
    layers: int = 0
    mixed: bool = False            # fp32 weights under autocast
    shards: int = 1                # of tensor parallelism; all-reduces among them are kernels
    options: dict = dataclasses.field(default_factory=dict)


def _ids(job: Job, vocabulary: int) -> torch.Tensor:
    del vocabulary
    return torch.ones(job.batch, job.length, dtype=torch.long)


def _language(job: Job, model: torch.nn.Module, vocabulary: int):
    ids = _ids(job, vocabulary)
    return model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


def llama(job: Job):
    from transformers import LlamaConfig, LlamaForCausalLM
    o, n = job.options, job.shards
    config = LlamaConfig(vocab_size=o["vocabulary"] // n, hidden_size=o["hidden"],
                         intermediate_size=o["inner"] // n, num_hidden_layers=job.layers,
                         num_attention_heads=o["heads"] // n, head_dim=o["hidden"] // o["heads"],
                         num_key_value_heads=max(1, o["kv_heads"] // n),
                         max_position_embeddings=job.length, tie_word_embeddings=False,
                         attn_implementation="sdpa")
    return _language(job, LlamaForCausalLM(config), config.vocab_size)


def mixture(job: Job):
    from transformers import MixtralConfig, MixtralForCausalLM
    o = job.options
    config = MixtralConfig(vocab_size=o["vocabulary"], hidden_size=o["hidden"],
                           intermediate_size=o["inner"], num_hidden_layers=job.layers,
                           num_attention_heads=o["heads"], num_key_value_heads=o["kv_heads"],
                           num_local_experts=o["experts"], num_experts_per_tok=2,
                           max_position_embeddings=job.length, attn_implementation="sdpa")
    return _language(job, MixtralForCausalLM(config), config.vocab_size)


def gpt(job: Job):
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D
    o, n = job.options, job.shards
    hidden = o["hidden"]
    config = GPT2Config(vocab_size=50304 // n, n_embd=hidden, n_layer=job.layers,
                        n_head=o["heads"], n_positions=job.length, n_inner=4 * hidden // n,
                        attn_pdrop=0.0, attn_implementation="sdpa")
    if n > 1:       # as Megatron: one kernel
        config.activation_function = "gelu_pytorch_tanh"
    model = GPT2LMHeadModel(config)
    for layer in model.transformer.h if n > 1 else []:
        layer.attn.num_heads, layer.attn.split_size = o["heads"] // n, hidden // n
        layer.attn.c_attn = Conv1D(3 * hidden // n, hidden)
        layer.attn.c_proj = Conv1D(hidden, hidden // n)
    return _language(job, model, config.vocab_size)


def bert(job: Job):
    from transformers import BertConfig, BertForMaskedLM
    o, n = job.options, job.shards
    hidden = o["hidden"]
    config = BertConfig(vocab_size=30528 // n, hidden_size=hidden, num_hidden_layers=job.layers,
                        num_attention_heads=o["heads"], intermediate_size=4 * hidden // n,
                        max_position_embeddings=job.length, attention_probs_dropout_prob=0.0,
                        attn_implementation="sdpa")
    model = BertForMaskedLM(config)
    for layer in model.bert.encoder.layer if n > 1 else []:
        for name in ("query", "key", "value"):
            setattr(layer.attention.self, name, torch.nn.Linear(hidden, hidden // n))
        layer.attention.output.dense = torch.nn.Linear(hidden // n, hidden)
    ids = _ids(job, config.vocab_size)
    return model, lambda: model(input_ids=ids, labels=ids).loss


def t5(job: Job):
    from transformers import T5Config, T5ForConditionalGeneration
    o, n = job.options, job.shards
    config = T5Config(vocab_size=32128 // n, d_model=o["hidden"], d_kv=o["hidden"] // o["heads"],
                      d_ff=4 * o["hidden"] // n, num_layers=job.layers,
                      num_decoder_layers=job.layers, num_heads=o["heads"] // n,
                      decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    if n > 1:       # as Megatron: attention in one kernel, so without dropout or its bias' gradient
        for name, module in model.named_modules():
            if name.endswith("Attention"):
                module.dropout = 0.0
            elif name.endswith("relative_attention_bias"):
                module.requires_grad_(False)
    ids = _ids(job, config.vocab_size)
    return model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


def vit(job: Job):
    from transformers import ViTConfig, ViTForImageClassification
    o = job.options
    config = ViTConfig(hidden_size=o["hidden"], num_hidden_layers=job.layers,
                       num_attention_heads=o["heads"], intermediate_size=4 * o["hidden"],
                       num_labels=1000, attn_implementation="sdpa")
    model = ViTForImageClassification(config)
    dtype = torch.float32 if job.mixed else torch.bfloat16
    images = torch.ones(job.batch, 3, 224, 224, dtype=dtype)
    labels = torch.zeros(job.batch, dtype=torch.long)
    return model, lambda: model(pixel_values=images, labels=labels).loss


def resnet(job: Job):
    import torchvision
    model = torchvision.models.resnet152(weights=None)
    dtype = torch.float32 if job.mixed else torch.bfloat16
    images = torch.ones(job.batch, 3, 224, 224, dtype=dtype)
    labels = torch.zeros(job.batch, dtype=torch.long)
    return model, lambda: functional.cross_entropy(model(images), labels)


def _ssdtrain(name, build, hidden, layers, shards):
    return Job(f"{name}-{hidden}" + (f"-tp{shards}" if shards > 1 else ""), build, 16, 1024, layers,
               shards=shards, options={"hidden": hidden, "heads": hidden // 128})


LLAMA_8B = {"vocabulary": 128256, "hidden": 4096, "inner": 14336, "heads": 32, "kv_heads": 8}
LLAMA_70B = {"vocabulary": 128256, "hidden": 8192, "inner": 28672, "heads": 64, "kv_heads": 8}
GRANITE_8B = {"vocabulary": 49152, "hidden": 4096, "inner": 14336, "heads": 32, "kv_heads": 8}
MIXTRAL = {"vocabulary": 32000, "hidden": 2048, "inner": 5632, "heads": 16, "kv_heads": 4,
           "experts": 8}

JOBS = {job.name: job for job in (
    Job("llama3-8b", llama, 4, 4096, 32, options=LLAMA_8B),
    Job("llama3-70b-tp8", llama, 2, 4096, 80, shards=8, options=LLAMA_70B),
    Job("granite-8b", llama, 4, 4096, 36, options=GRANITE_8B),
    Job("llama3-8b-tp2", llama, 8, 2048, 32, shards=2, options=LLAMA_8B),
    Job("granite-8b-tp2", llama, 8, 2048, 36, shards=2, options=GRANITE_8B),
    Job("llama3-70b-tp2", llama, 8, 2048, 80, shards=2, options=LLAMA_70B),
    Job("mixture-8x", mixture, 4, 2048, 24, options=MIXTRAL),
    *(_ssdtrain(name, build, hidden, layers, shards)
      for shards in (1, 2) for name, build in (("gpt", gpt), ("bert", bert), ("t5", t5))
      for hidden, layers in ((8192, 4), (12288, 3), (16384, 2))),
    Job("bert-large", bert, 64, 512, 24, options={"hidden": 1024, "heads": 16}),
    Job("gpt-50b", gpt, 32, 512, 62, options={"hidden": 8192, "heads": 64}),
    Job("vit-large", vit, 256, 0, 24, options={"hidden": 1024, "heads": 16}),
    Job("resnet152", resnet, 256, mixed=True),
)}
