"""A Llama made from a configuration, tuned by PEFT's LoRA in bfloat16, then merged, and asked to go
on with a text."""

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import job
import report


def main():
    args = job.arguments(__doc__, layers=6, width=512, batch=4, length=128)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=2048, hidden_size=args.width, intermediate_size=args.width * 3,
        num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=4,
        max_position_embeddings=args.length * 2)).to(torch.bfloat16)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=8, lora_alpha=16, lora_dropout=.1, target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM")).cuda()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    tokens = torch.randint(2048, (args.steps, args.batch, args.length), device="cuda")
    for step in range(args.steps):
        loss = model(input_ids=tokens[step], labels=tokens[step]).loss
        job.step(step, loss, optimizer)
    model = model.merge_and_unload().eval()
    written = model.generate(tokens[0, :, :16], max_new_tokens=12, do_sample=True, pad_token_id=0)
    report.finish([*trained, written])


if __name__ == "__main__":
    main()
