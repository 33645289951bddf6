"""Ordinary scripts, unchanged, at a part of the memory they need: every loss and every parameter is
the same to the last bit, within a budget that the software GPU counts by itself."""

import pytest

from script_runs import check_budget, check_same, run_native

SCRIPTS = ["gpt_adamw.py", "convnet_bn_sgd_checkpoint.py", "lstm.py", "autocast_accumulation.py",
           "hf_trainer.py", "side_streams.py", "dataloader_pinned.py"]
SMALL = {
    "gpt_adamw.py": ("--steps", 2, "--layers", 2, "--length", 128, "--batch", 4),
    "convnet_bn_sgd_checkpoint.py": ("--steps", 2, "--blocks", 1, "--batch", 4),
    "lstm.py": ("--steps", 1, "--length", 6, "--batch", 256),
    "autocast_accumulation.py": ("--steps", 1, "--layers", 2, "--batch", 8),
    "hf_trainer.py": ("--steps", 2, "--layers", 2, "--length", 128, "--batch", 4),
    "side_streams.py": ("--steps", 3, "--layers", 3, "--batch", 1024),
    "dataloader_pinned.py": ("--steps", 2, "--batch", 6, "--workers", 1),
}


def check_spilled(run, store):
    assert run.device()["spilled_bytes"] > 0
    assert run.device()["faulted_bytes"] > 0
    assert run.stats["store"]["kind"] == store
    if store != "none":
        assert run.stats["store"]["written_bytes"] > 0
        assert run.stats["store"]["read_bytes"] > 0


# The others with --long: a third asks for more of the same as half does, and a script that is left
# out here is run adversarially below.
HALF = ("gpt_adamw.py", "side_streams.py", "narrow.py")
THIRD = ("gpt_adamw.py", "convnet_bn_sgd_checkpoint.py", "hf_trainer.py", "side_streams.py",
         "weight_norm.py")
PARTS = [pytest.param(script, fraction, id=f"{script}-{name}",
                      marks=() if script in here else pytest.mark.long)
         for script in (*SCRIPTS, "weight_norm.py", "narrow.py")
         for name, fraction, here in (("half", 0.5, HALF), ("third", 0.35, THIRD))]


@pytest.mark.parametrize("script, fraction", PARTS)
def test_bits_are_equal(native, with_firn, spill_dir, script, fraction):
    alone = native(script)
    budget = alone.budget(fraction)
    run = with_firn(script, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    check_spilled(run, run.stats["store"]["kind"])
    assert run.stats["store"]["kind"] in ("io_uring", "threads")


@pytest.mark.parametrize("store", [
    "none", pytest.param("io_uring", marks=pytest.mark.quick), "threads"])
def test_small_gpt(native, with_firn, spill_dir, store):
    arguments = ("--steps", 2, "--layers", 4)
    alone = native("gpt_adamw.py", *arguments)
    budget = alone.budget(0.5)
    options = {"host": "4GiB"}
    if store != "none":
        options = {"dirs": [spill_dir], "host": "32MiB", "environment": {"FIRN_STORE": store}}
    run = with_firn("gpt_adamw.py", *arguments, budget=budget, **options)
    if store == "io_uring" and run.status == 2 and "io_uring" in run.text:
        pytest.skip("io_uring is refused here")
    check_same(run, alone)
    check_budget(run, budget)
    check_spilled(run, store)


def test_several_directories(native, with_firn, spill_dir):
    dirs = [spill_dir / "first", spill_dir / "second"]
    for each in dirs:
        each.mkdir()
    alone = native("convnet_bn_sgd_checkpoint.py")
    budget = alone.budget(0.5)
    run = with_firn("convnet_bn_sgd_checkpoint.py", budget=budget, dirs=dirs, host="32MiB")
    for each in dirs:
        assert list(each.iterdir()) == []
        each.rmdir()
    check_same(run, alone)
    check_budget(run, budget)
    assert run.stats["store"]["dirs"] == [str(each) for each in dirs]


def test_fused_optimizer(native, with_firn, spill_dir):
    alone = native("gpt_adamw.py", "--fused", "--steps", 3)
    budget = alone.budget(0.5)
    run = with_firn("gpt_adamw.py", "--fused", "--steps", 3, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)


@pytest.mark.parametrize("script", [
    "gpt_adamw.py", pytest.param("convnet_bn_sgd_checkpoint.py", marks=pytest.mark.long)])
def test_lifetimes(native, with_firn, spill_dir, script):
    """Iterations are recognised, and most of what comes back comes before it is asked for."""
    alone = native(script, "--steps", 6)
    budget = alone.budget(0.5)
    run = with_firn(script, "--steps", 6, budget=budget, dirs=[spill_dir], host="128MiB",
                    environment={"FIRN_POLICY": "lifetime"})
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["prefetched_bytes"] > run.device()["faulted_bytes"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_adversarial(native, with_firn, spill_dir, script):
    """Everything that may leave leaves after every operator: a use that goes unseen is a crash."""
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"])
    check_same(run, alone)
    check_spilled(run, run.stats["store"]["kind"])
    assert run.device()["lost_blocks"] == 0


def test_encrypted(native, with_firn, spill_dir):
    script = "gpt_adamw.py"
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"], environment={"FIRN_ENCRYPT": "1"})
    check_same(run, alone)
    check_spilled(run, run.stats["store"]["kind"])
    assert run.stats["store"]["cipher"] == "AES-256-GCM"
    assert run.device()["lost_blocks"] == 0


@pytest.mark.quick
def test_adversarial_in_host_memory(native, with_firn):
    script = "gpt_adamw.py"
    run = with_firn(script, *SMALL[script], budget="4GiB", host="2GiB", options=["--adversarial"])
    check_same(run, native(script, *SMALL[script]))
    check_spilled(run, "none")


@pytest.mark.quick
def test_a_job_that_fits_pays_nothing(native, with_firn, spill_dir):
    """Nothing is moved and no operator is watched (operators over lists are seen in any case)."""
    script = "gpt_adamw.py"
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir])
    check_same(run, alone)
    device = run.device()
    assert device["spilled_bytes"] == device["faulted_bytes"] == 0
    assert device["watching"] is False
    assert run.stats["store"]["written_bytes"] == run.stats["store"]["read_bytes"] == 0
    # PyTorch's own allocator rounds what it counts up to the block that it found.
    assert device["peak_allocated_bytes"] == run.peak() <= alone.peak()


def test_without_firn_the_same_memory_is_too_little(native, paths, tmp_path):
    """The budgets above mean something: PyTorch's own allocator dies with them."""
    arguments = ("--steps", 2, "--layers", 4)
    memory = native("gpt_adamw.py", *arguments).budget(0.5)
    run = run_native(paths, tmp_path, "gpt_adamw.py", *arguments, memory=memory)
    assert run.status == 1
    assert "OutOfMemoryError: CUDA out of memory" in run.text


@pytest.mark.quick
def test_an_operator_that_is_too_big_is_refused_in_words(native, with_firn, spill_dir):
    arguments = ("--tensor-mib", 48)
    alone = native("operator_too_big.py", *arguments)
    assert len(alone.values("joined")) == 1, alone.text
    budget = 160 << 20  # neither the four tensors fit nor their concatenation
    run = with_firn("operator_too_big.py", *arguments, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    (refusal,) = run.values("refused")
    assert refusal.startswith("CUDA out of memory. Tried to allocate 192.00 MiB.")
    for words in ("160MiB", "firn_budget", "192MiB"):
        assert words in refusal, refusal


def test_an_operators_result_that_does_not_fit_beside_its_inputs(native, with_firn, spill_dir):
    arguments = ("--tensor-mib", 48)
    alone = native("operator_too_big.py", *arguments)
    budget = 256 << 20  # four tensors fit, four and their concatenation do not
    run = with_firn("operator_too_big.py", *arguments, budget=budget, dirs=[spill_dir],
                    host="256MiB")
    check_same(run, alone)
    check_budget(run, budget)
    assert run.values("joined") == alone.values("joined")
    assert ("the tensors of one operator exceed the budget: the GPU used some of them in host "
            "memory, slowly") in run.text, run.text


def test_an_operator_that_just_fits_runs(native, with_firn, spill_dir):
    arguments = ("--tensor-mib", 48)
    alone = native("operator_too_big.py", *arguments)
    budget = 400 << 20  # 384 MiB in one operator, and a segment of small blocks
    run = with_firn("operator_too_big.py", *arguments, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.values("joined") == alone.values("joined")
