"""A GPT-2 made from a configuration, trained by transformers' Trainer; nothing is downloaded."""

import argparse
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import report
import text


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, length):
        self.bytes, self.rows, self.length = text.library_text(1 << 20), rows, length

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        tokens = self.bytes[index * self.length:(index + 1) * self.length].long()
        return {"input_ids": tokens, "labels": tokens}


class Reporting(Trainer):
    """The Trainer's own log rounds losses."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        report.loss(self.state.global_step, loss.detach())
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = GPT2Config(vocab_size=256, n_positions=args.length, n_embd=args.width,
                        n_layer=args.layers, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Reporting(
            model=model, train_dataset=Rows(args.steps * args.batch * args.accumulate, args.length),
            args=TrainingArguments(
                output_dir=folder, max_steps=args.steps, per_device_train_batch_size=args.batch,
                gradient_accumulation_steps=args.accumulate, seed=args.seed, report_to=[],
                save_strategy="no", logging_steps=1, disable_tqdm=True, learning_rate=3e-4))
        if trainer.args.device.type != "cuda":
            raise RuntimeError("the Trainer did not choose the GPU")
        trainer.train()
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
