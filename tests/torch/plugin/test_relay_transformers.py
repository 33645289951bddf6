"""firn.relay with Hugging Face's models, made from small configurations: the loop's bits."""

import warnings

import pytest
import torch

from relay_models import Job, check_same_bits, different, firn, quietly

transformers = pytest.importorskip("transformers")

WORDS, LENGTH, ROWS = 61, 12, 2
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 4}
NO_DROP = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=3, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=64, **SMALL))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=WORDS, max_position_embeddings=64, **SMALL, **NO_DROP))


def albert():
    return transformers.AlbertForMaskedLM(transformers.AlbertConfig(
        vocab_size=WORDS, embedding_size=16, max_position_embeddings=64, num_hidden_groups=2,
        **{**SMALL, "num_hidden_layers": 4}, **NO_DROP))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=16, patch_size=8, num_labels=5, **SMALL, **NO_DROP))


MODELS = {make.__name__: make for make in (gpt2, llama, bert, albert, t5, vit)}


def steps_for(name, micro_batches, steps=3):
    generator = torch.Generator().manual_seed(3)

    def words():
        return torch.randint(WORDS, (ROWS, LENGTH), generator=generator)

    def part():
        if name == "vit":
            return {"pixel_values": torch.randn(ROWS, 3, 16, 16, generator=generator),
                    "labels": torch.randint(5, (ROWS,), generator=generator)}
        mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
        mask[1, 9:] = 0
        return {"input_ids": words(), "labels": words(), "attention_mask": mask}
    return [[part() for _ in range(micro_batches)] for _ in range(steps)]


def loss_of(model, part):
    return model(**part).loss


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_bits_of_the_loop(name, micro_batches):
    relayed = check_same_bits(MODELS[name], steps_for(name, micro_batches), compute=loss_of)
    assert relayed.relay._update.eager
    assert len(relayed.relay.layers) == {"t5": 6, "albert": 2}.get(name, 3)


@pytest.mark.parametrize("of_optimizer", [{"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_ways_of_the_optimizer(name, of_optimizer):
    check_same_bits(MODELS[name], steps_for(name, 2), compute=loss_of, **of_optimizer)


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_sgd_and_many_micro_batches(name):
    check_same_bits(MODELS[name], steps_for(name, 8), compute=loss_of, optimizer=torch.optim.SGD,
                    momentum=0.9)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_clip(name):
    check_same_bits(MODELS[name], steps_for(name, 2), compute=loss_of, clip=0.1)


def test_autocast_of_layers_that_are_called_again():
    """Weights are cast in each call, and once in the loop: close, and not equal."""
    def compute(model, part):
        with torch.autocast("cpu", torch.bfloat16):
            return model(**part).loss
    steps = steps_for("albert", 2)
    jobs = [Job(albert, steps, compute=compute, optimizer=torch.optim.SGD, relay=relay)
            for relay in (True, False)]
    for one, other in zip(*(each.model.parameters() for each in jobs)):
        torch.testing.assert_close(one, other, rtol=0.05, atol=1e-3)
    check_same_bits(bert, steps_for("bert", 2), compute=compute)


def test_output_of_hidden_states():
    """Hooks of transformers' own, which know their micro-batch by a context variable."""
    def compute(model, part):
        found = model(**part, output_hidden_states=True)
        assert len(found.hidden_states) == 4
        return found.loss + sum(each.square().mean() for each in found.hidden_states)
    check_same_bits(gpt2, steps_for("gpt2", 3), compute=compute)


def test_caches_and_checkpoints_are_turned_off_and_said():
    model = gpt2()
    model.gradient_checkpointing_enable()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    words = " ".join(str(each.message) for each in said)
    assert "use_cache" in words and "gradient checkpointing" in words
    assert model.config.use_cache is False
    assert not any(getattr(each, "gradient_checkpointing", False) for each in model.modules())


def test_a_cache_is_refused_by_name():
    torch.manual_seed(0)
    model = gpt2()
    relay = quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(firn.relay.Refused, match=r"transformer.h.0 \(GPT2Block\) is given .*"
                       r"DynamicCache.*use_cache=False"):
        relay.step(lambda part: model(**part, use_cache=True).loss, steps_for("gpt2", 2)[0])
    assert all(map(torch.equal, model.parameters(), before))
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("with_router", [True, False])
def test_router_logits(with_router):
    """They leave a layer by a hook, past its results."""
    def mixtral():
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=3,
            num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
            output_router_logits=with_router, router_aux_loss_coef=1.0))
    if not with_router:
        check_same_bits(mixtral, steps_for("mixtral", 2), compute=loss_of)
        return
    with pytest.raises(firn.relay.Refused, match=r"layer model.layers.2 .*output_router_logits="):
        Job(mixtral, steps_for("mixtral", 2)[:1], compute=loss_of)


def test_dropout_on_the_cpu_is_said():
    """(Where the generator has offsets, on CUDA, bits are equal: test_scripts_relay.py.)"""
    steps = steps_for("gpt2", 2)

    def make():
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=3, n_head=2, bos_token_id=0,
            eos_token_id=0))
    torch.manual_seed(0)
    model = make()
    relay = quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    with pytest.warns(RuntimeWarning, match="random numbers come from the CPU's generator"):
        relay.step(lambda part: loss_of(model, part), steps[0])
    one, other = (Job(make, steps, compute=loss_of) for _ in range(2))
    assert different(one, other) == []
