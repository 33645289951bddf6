"""A Hugging Face Trainer, from a configuration: no download."""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(96, (24,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def train(device, folder):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, max_steps=6, logging_steps=1,
        report_to=[], save_strategy="no", seed=1, disable_tqdm=True, use_cpu=device == "cpu",
        optim="adamw_torch", dataloader_pin_memory=device == "cuda")
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    assert next(model.parameters()).device.type == device
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: value.detach().cpu() for name, value in model.state_dict().items()}


def case_trainer():
    with tempfile.TemporaryDirectory() as folder:
        expected, weights = train("cpu", folder)
        losses, found = train("cuda", folder)
    assert losses == expected and len(losses) == 6, (losses, expected)
    for name, value in found.items():
        assert torch.equal(value, weights[name]), name
