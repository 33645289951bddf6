"""Firn's figures in the logs of training loops of real libraries."""

import json

import pytest

TRAINER = """
    import json, sys, torch, transformers
    from firn import callbacks
    logged = []
    class Reports(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **more):
            logged.append(dict(logs))
    class Rows(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, i): return {"x": torch.full((4,), float(i))}
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
        def forward(self, x): return {"loss": self.linear(x).square().mean()}
    trainer = transformers.Trainer(
        model=Model(), train_dataset=Rows(), callbacks=[Reports()],
        args=transformers.TrainingArguments(output_dir="out", max_steps=2, logging_steps=1,
                                            report_to=[], save_strategy="no", disable_tqdm=True))
    callbacks.add_to(trainer)
    trainer.train()
    print("LOGGED", json.dumps([logged, trainer.state.log_history]))
"""


def logged(done):
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOGGED ")]
    return json.loads(line[len("LOGGED "):])


def test_the_trainer_logs_them_to_who_reports(run):
    reported, history = logged(run(TRAINER, HF_HUB_OFFLINE="1"))
    for entries in (reported, history):
        steps = [each for each in entries if "loss" in each]
        assert len(steps) == 2
        for each in steps:
            assert each["firn/device_mib"] > 0 and each["firn/allocated_mib"] > 0
            for name in ("waited_s", "spilled_mib", "lost_blocks"):
                assert each["firn/" + name] == 0


def test_nothing_is_logged_without_firn(run):
    reported, history = logged(run(TRAINER, conf=None, HF_HUB_OFFLINE="1"))
    assert len(reported) > 2 and not [key for each in reported + history for key in each
                                      if key.startswith("firn/")]


def test_figures_are_numbers_for_any_logger(run):
    done = run("""
        import json, torch
        from firn import callbacks
        assert callbacks.figures() == {}
        x = torch.ones(1 << 20, device="cuda")
        print(json.dumps(callbacks.figures("")))
        try:
            callbacks.add_to(7)
        except TypeError as error:
            print(error)
    """)
    figures, said = done.stdout.splitlines()
    assert json.loads(figures)["allocated_mib"] == 4
    assert said.endswith("neither a transformers.Trainer nor a Lightning Trainer: int")


def test_lightning_logs_them(run, firn_environment):
    done = run("""
        import sys
        try:
            import lightning
        except ImportError:
            print("no lightning")
            sys.exit()
        import json, torch
        from firn import callbacks
        class Keeps(lightning.pytorch.loggers.logger.DummyLogger):
            logged = []
            def log_metrics(self, metrics, step=None): self.logged.append(dict(metrics))
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)
            def training_step(self, batch, index): return self.linear(batch).square().mean()
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=.1)
        keeps = Keeps()
        trainer = lightning.Trainer(max_steps=4, log_every_n_steps=2, logger=keeps,
                                    enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False, accelerator="gpu", devices=1)
        callbacks.add_to(trainer)
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 4)))
        print("LOGGED", json.dumps([each for each in keeps.logged if "firn/device_mib" in each]))
    """)
    if "no lightning" in done.stdout:
        pytest.skip("no lightning here")
    assert len(logged(done)) == 2
