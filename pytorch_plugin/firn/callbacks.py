"""Firn's figures in the logs of training loops: Hugging Face's Trainer and Accelerate, Lightning.

    from firn import callbacks
    callbacks.add_to(trainer)                                      # transformers, Lightning
    accelerator.log({**values, **callbacks.figures()}, step=step)  # Accelerate

Where Firn is not the allocator nothing is logged.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MIB = 1 << 20
# Each figure of the statistics, its name in logs, and its unit there.
_FIGURES = (("device_bytes", "device_mib", _MIB), ("allocated_bytes", "allocated_mib", _MIB),
            ("hosted_bytes", "host_mib", _MIB), ("nvme_bytes", "nvme_mib", _MIB),
            ("spilled_bytes", "spilled_mib", _MIB), ("faulted_bytes", "faulted_mib", _MIB),
            ("prefetched_bytes", "prefetched_mib", _MIB), ("stall_s", "waited_s", 1),
            ("lost_blocks", "lost_blocks", 1))


def figures(prefix: str = "firn/") -> dict[str, float]:
    """Figures of the current device, as numbers that logs take: MiB on the device, allocated, in
    host memory and on NVMe now; MiB spilled, faulted and prefetched and seconds waited since the
    start. {} where Firn is not the allocator, or before CUDA has started. Asks the engine: call it
    for steps that are logged, not for each."""
    import firn
    devices = firn.stats().get("devices", [])
    if not devices:
        return {}
    import torch
    current = torch.cuda.current_device()
    device = next((each for each in devices if each["device"] == current), devices[0])
    return {prefix + name: device[key] / of for key, name, of in _FIGURES if key in device}


def add_to(trainer: Any, prefix: str = "firn/") -> None:
    """From now on figures() are in everything that `trainer` logs: a transformers.Trainer (before
    its callbacks that report), or a Lightning Trainer (every `log_every_n_steps` steps). TypeError
    for anything else."""
    if hasattr(trainer, "callback_handler"):
        trainer.callback_handler.callbacks.insert(0, _for_transformers(prefix))
    elif hasattr(trainer, "log_every_n_steps") and hasattr(trainer, "callbacks"):
        trainer.callbacks.insert(0, _for_lightning(trainer, prefix))
    else:
        raise TypeError("firn.callbacks.add_to: neither a transformers.Trainer nor a Lightning "
                        "Trainer: " + type(trainer).__name__)


def _for_transformers(prefix: str) -> Any:
    import transformers

    class FirnCallback(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
                   **more: Any) -> None:
            if logs is None:
                return
            logs.update(figures(prefix))
            if state.log_history:  # the Trainer's own copy
                state.log_history[-1].update(figures(prefix))
    return FirnCallback()


def _for_lightning(trainer: Any, prefix: str) -> Any:
    import importlib
    package = type(trainer).__module__.partition(".trainer")[0]  # lightning.pytorch, or the older
    base = importlib.import_module(package + ".callbacks").Callback

    class FirnCallback(base):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, trainer: Any, *more: Any) -> None:
            if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
                for logger in trainer.loggers:
                    logger.log_metrics(figures(prefix), step=trainer.global_step)
    return FirnCallback()
