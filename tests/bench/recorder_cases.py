"""Run by test_jobs_recorder.py: small jobs run for real on the CPU while they are recorded. Prints
JSON: by job, the operators whose record says something else than the bytes do."""

import json
import pathlib
import sys

import torch
from torch.utils._pytree import tree_leaves, tree_map

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/jobs"))
sys.path.insert(0, str(ROOT / "tests/bench"))
import jobs_cases  # noqa: E402
import models  # noqa: E402
from recorder import Recorder  # noqa: E402

JOBS = {name: jobs_cases.JOBS[name] for name in ("llama", "bert", "t5", "gpt", "resnet")}
JOBS["vit"] = models.Job("vit", models.vit, 2, 0, 2, options={"hidden": 128, "heads": 4})


def tensors(value):
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def storage(tensor):
    return tensor.untyped_storage()._cdata


def bytes_of(tensor):
    """All of its storage."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole.clone()


class Checked(Recorder):
    """Compares each record with what its operator did: to the bytes that it was given, and when
    it runs once more on copies in which what is no input is made unreadable."""

    def __init__(self):
        super().__init__()
        self.checked, self.wrong = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self._recording:
            return func(*args, **kwargs)
        before = {storage(each): bytes_of(each) for each in tensors((args, kwargs))}
        draws = torch.get_rng_state()
        recorded = len(self.kernels)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        ins, outs = set(), set()
        for _, _, one_ins, one_outs in self.kernels[recorded:]:
            ins |= set(one_ins)
            outs |= set(one_outs)
        for each in tensors((args, kwargs)):
            if not torch.equal(bytes_of(each), before[storage(each)]) and \
                    self._number(each) not in outs:
                self.wrong.add(f"{func}: changed, and is no output")
        for each in tensors(out):
            # (A view of what it was given is that storage.)
            if each.numel() and storage(each) not in before and "empty" not in str(func) and \
                    self._number(each) not in outs:
                self.wrong.add(f"{func}: made, and is no output")
        if recorded < len(self.kernels):
            self.checked += 1
            after = torch.get_rng_state()
            torch.set_rng_state(draws)
            if not self._same_again(func, args, kwargs, out, before, ins, outs):
                self.wrong.add(f"{func}: reads what is no input")
            torch.set_rng_state(draws)
            changed = ins & outs if len(self.kernels) == recorded + 1 else set()
            if changed and self._same_again(func, args, kwargs, out, before,
                                           ins - changed, outs):
                self.wrong.add(f"{func}: does not read what it overwrites")
            torch.set_rng_state(after)
        return out

    def _same_again(self, func, args, kwargs, out, before, ins, outs):
        """With the bytes of `ins` alone, are its results the same?"""
        copies = {}

        def copied(value):
            if not isinstance(value, torch.Tensor):
                return value
            key = storage(value)
            if key not in copies:
                readable = self._number(value) in ins
                copies[key] = before[key].clone() if readable else \
                    torch.full_like(before[key], 0xff)
            return torch.empty(0, dtype=value.dtype).set_(
                copies[key].untyped_storage(), value.storage_offset(), value.size(),
                value.stride())

        again = func(*tree_map(copied, args), **tree_map(copied, kwargs))
        made = ((first, second) for first, second in zip(tensors(out), tensors(again))
                if storage(first) not in before)
        written = {storage(each): each for each in tensors((args, kwargs))
                   if self._number(each) in outs}
        return all(torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))
                   for first, second in made) and \
            all(torch.equal(bytes_of(each), copies[key]) for key, each in written.items())


def checked(job):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float32 if job.mixed else torch.bfloat16)
    model, loss = job.build(job)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with Checked() as recorder:
        for step in range(2):
            if step == 1:
                states = [each for state in optimizer.state.values() for each in state.values()]
                recorder.begin([*model.state_dict().values(), *states])
            with torch.autocast("cpu", torch.bfloat16, enabled=job.mixed):
                value = loss()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        recorder.end()
    return {"checked": recorder.checked, "wrong": sorted(recorder.wrong)}


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:] or JOBS
    print(json.dumps({name: checked(JOBS[name]) for name in names}))


if __name__ == "__main__":
    main()
