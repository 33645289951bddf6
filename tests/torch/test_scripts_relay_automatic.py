"""`firn run --relay` on the software GPU: scripts as they are. With one micro-batch every bit is
the native run's, at a part of its memory; with several, losses are close, and steps need less."""

import pytest

from script_runs import check_budget, check_same

SMALL = {
    "gpt_adamw.py": ("--steps", 4, "--layers", 3, "--length", 128, "--batch", 4),
    "autocast_accumulation.py": ("--steps", 3, "--layers", 2, "--batch", 8),
    "hf_trainer.py": ("--steps", 3, "--layers", 2, "--length", 128, "--batch", 4),
    "convnet_bn_sgd_checkpoint.py": ("--steps", 2, "--blocks", 2, "--batch", 4),
}
FOUND = {
    "gpt_adamw.py": "3 layers of Gpt.blocks",
    "autocast_accumulation.py": "2 layers of TransformerEncoder.layers",
    "hf_trainer.py": "2 layers of GPT2Model.h",
}


def lines(run):
    return [each for each in run.text.splitlines() if each.startswith("firn: relay: ")]


@pytest.mark.parametrize("script", [
    "gpt_adamw.py", *(pytest.param(each, marks=pytest.mark.long) for each in FOUND
                      if each != "gpt_adamw.py")])
def test_one_micro_batch_has_the_scripts_bits(native, with_firn, spill_dir, script):
    alone = native(script, *SMALL[script])
    budget = alone.budget(0.5)
    run = with_firn(script, *SMALL[script], budget=budget, dirs=[spill_dir],
                    options=["--relay", "1"])
    check_same(run, alone)
    check_budget(run, budget)
    assert lines(run) == [f"firn: relay: {FOUND[script]}, 1 micro-batch, from AdamW's second step "
                          "on"]
    assert run.device()["spilled_bytes"] > 0


@pytest.mark.parametrize("script", [
    "gpt_adamw.py", *(pytest.param(each, marks=pytest.mark.long) for each in FOUND
                      if each != "gpt_adamw.py")])
def test_several_micro_batches_have_close_losses(native, with_firn, spill_dir, script):
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget=alone.budget(0.5), dirs=[spill_dir],
                    options=["--relay", "4"])
    assert run.status == 0, run.text
    assert len(lines(run)) == 1 and f"{FOUND[script]}, 4 micro-batches" in lines(run)[0]
    numbers = [[float.fromhex(each.split()[1]) for each in one.values("loss")]
               for one in (run, alone)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05) and len(numbers[0]) >= 3


@pytest.mark.long
def test_a_trainer_that_accumulates_reads_each_layer_once(native, with_firn, spill_dir):
    """Its micro-batches take turns, with the native bits; less comes back to the device than where
    they run one by one."""
    def arguments(steps):
        return ("--steps", steps, "--layers", 4, "--length", 64, "--batch", 1, "--accumulate", 6)
    came = []
    for steps in (2, 6):  # (one that learns, and one that is watched, run one by one)
        alone = native("hf_trainer.py", *arguments(steps))
        run = with_firn("hf_trainer.py", *arguments(steps), budget=alone.budget(0.5),
                        dirs=[spill_dir], options=["--relay", "1"])
        check_same(run, alone)
        came.append(run.device()["forwarded_bytes"])
    assert "the Trainer's micro-batches, 6 a step, take turns at each layer" in run.text
    assert (came[1] - came[0]) / 4 < 0.85 * came[0] / 2


@pytest.mark.long
def test_a_script_that_is_left_alone(native, with_firn, spill_dir):
    script = "convnet_bn_sgd_checkpoint.py"
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget=alone.budget(0.5), dirs=[spill_dir],
                    options=["--relay", "2"])
    check_same(run, alone)
    (line,) = lines(run)
    assert "firn: relay: off for " in line, line


def beside(run):
    """The most memory of a step, beside what is there between steps."""
    (found,) = run.values("beside")
    return int(found)


def test_steps_need_less(native):
    """With PyTorch's own allocator: the relay is any allocator's."""
    small = ("--width", 64, "--batch", 8, "--length", 64)
    plain, whole, parts = (
        native("step_peaks.py", *small, environment={"FIRN_RELAY": micro_batches})
        for micro_batches in ("0", "1", "4"))
    assert whole.results() == plain.results() and lines(plain) == []
    assert beside(whole) < 0.25 * beside(plain)
    assert beside(parts) < 0.6 * beside(whole)
