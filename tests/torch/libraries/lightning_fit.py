"""Lightning's Trainer: accumulated gradients, clipping, validation, a checkpoint and its return, and
Firn's figures in what it logs."""

import csv
import pathlib
import tempfile

import lightning
import lightning.pytorch.loggers
import torch
from firn import callbacks

import job
import report


class Autoencoder(lightning.LightningModule):
    def __init__(self, width, seen):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width // 4),
            torch.nn.GELU(), torch.nn.Linear(width // 4, width), torch.nn.GELU(),
            torch.nn.Linear(width, width))
        self.seen = seen

    def training_step(self, batch, number):
        (x,) = batch
        loss = (self.net(x) - x).square().mean()
        self.seen(number, loss)
        return loss

    def validation_step(self, batch, number):
        (x,) = batch
        self.log("val", (self.net(x) - x).abs().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


def main():
    args = job.arguments(__doc__, steps=6, width=1024, batch=512)
    rows = torch.utils.data.TensorDataset(torch.randn(args.steps * args.batch, args.width))
    load = torch.utils.data.DataLoader(rows, batch_size=args.batch)
    model = Autoencoder(args.width, report.loss)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="gpu", devices=1, default_root_dir=folder,
            logger=lightning.pytorch.loggers.CSVLogger(folder), log_every_n_steps=2,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
            gradient_clip_val=1., num_sanity_val_steps=1)
        callbacks.add_to(trainer)
        trainer.fit(model, load, load)
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        loaded = Autoencoder.load_from_checkpoint(f"{folder}/last.ckpt", width=args.width,
                                                  seen=report.loss)
        (log,) = pathlib.Path(folder).rglob("metrics.csv")
        print("logged", *next(csv.reader(log.open())))
    report.finish([*model.parameters(), *loaded.parameters()])


if __name__ == "__main__":
    main()
