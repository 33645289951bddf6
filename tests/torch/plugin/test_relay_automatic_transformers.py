"""A relay by itself in transformers' models: the program's bits with one micro-batch."""

import contextlib
import copy

import pytest
import torch

from relay_models import firn

transformers = pytest.importorskip("transformers")
doors_of = __import__("firn.relay.doors", fromlist=["Doors"])

SMALL = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 2}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=32, n_layer=3, n_head=2, bos_token_id=0,
        eos_token_id=0))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=2))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0))


def routed():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **SMALL, num_key_value_heads=2, num_local_experts=4, output_router_logits=True))


def train(make, micro_batches, before=lambda model: None):
    torch.manual_seed(0)
    model = make()
    before(model)
    config = copy.deepcopy(model.config)
    doors = doors_of.Doors(micro_batches) if micro_batches else None
    with contextlib.closing(doors) if doors else contextlib.nullcontext():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(3):
            words = torch.randint(1, 61, (4, 9), generator=generator)
            loss = model(input_ids=words, labels=words).loss
            optimizer.zero_grad()
            loss.backward()
            assert model.config.to_dict() == config.to_dict()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
            assert model.config.to_dict() == config.to_dict()
        found = firn.relay.of(model)
    return [*losses, *(each.detach() for each in model.parameters())], found, model


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("make", [gpt2, llama, bert, t5])
def test_bits_and_losses(make, capfd):
    plain = train(make, 0)[0]
    one, found, _ = train(make, 1)
    assert found is not None and equal(one, plain)
    two, found, _ = train(make, 2)
    assert found is not None
    for first, second in zip(two, plain, strict=True):
        torch.testing.assert_close(first, second, rtol=0.05, atol=0.05)
    (first, second) = capfd.readouterr().err.splitlines()
    assert first.startswith("firn: relay: ") and " layers of " in second


def test_checkpoints_and_caches_of_the_models_own(capfd):
    """They are off while it trains: the bits are theirs, the model is as it was."""
    def checkpointing(model):
        model.gradient_checkpointing_enable()
    plain = train(gpt2, 0, checkpointing)[0]
    capfd.readouterr()
    one, found, model = train(gpt2, 1, checkpointing)
    assert found is not None and equal(one, plain)
    assert capfd.readouterr().err.splitlines()[0] == (
        "firn: relay: 3 layers of GPT2Model.h, 1 micro-batch, from AdamW's second step on; "
        "gradient checkpointing and use_cache off while it trains")
    assert model.is_gradient_checkpointing and model.config.use_cache
    words = torch.randint(1, 61, (1, 4))
    assert model.eval().generate(words, max_new_tokens=3, do_sample=False).shape == (1, 7)


def test_routers_logits_are_left_alone(capfd):
    plain = train(routed, 0)[0]
    capfd.readouterr()
    one, found, _ = train(routed, 2)
    assert found is None and equal(one, plain)
    assert "firn: relay: off for MixtralForCausalLM: layer model.layers.0 " in \
        capfd.readouterr().err
