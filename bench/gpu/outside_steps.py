"""Steps with PyTorch that look for uses nobody saw: everything spilled after every operator,
kernels launched past operators, clean copies compared; and a job whose kernel fails while memory is
short."""

import json
import time

import torch_steps
from results import Cut, at_once
from torch_steps import GIB, GRANULE, NEEDS_GPU, Runs

AT_ONCE = 3
# Cases of features.py, beside the GPT of torch-bits.
ADVERSARIAL = ("by-name", "side-stream", "cudnn", "flash", "compile", "triton")
ENDS_WITHIN_S = 10


def losses_of(run):
    return [float.fromhex(loss) for loss in run["losses"]]


def adversarial_case(suite, step, case):
    """Natively, then with everything spilled that may be after every operator."""
    scale = 1 if suite.software else 2
    runs = Runs(suite, step, "bench/gpu/features.py", [case, "--scale", scale], prefix=f"{case}, ")
    more = torch_steps.surroundings(suite, case)
    native = runs.native("native", **more)
    if "impossible" in native:
        step.left_out(case, native["impossible"])
        return
    host = min(suite.host_bytes() // AT_ONCE, 2 * native["peak_bytes"] + GIB)
    adversarial = runs.firn("adversarial", 1.5, host=host, FIRN_TEST_ADVERSARIAL="1", **more)
    runs.moved("adversarial")
    a, b = losses_of(native), losses_of(adversarial)
    step.check(f"{case}: the same losses", len(a) == len(b) and all(
        abs(x - y) <= 1e-3 * max(abs(x), 1e-6) for x, y in zip(a, b)), [a[:8], b[:8]])
    step.figure(f"{case}, bits", native["losses"] == adversarial["losses"])


def adversarial_bits(suite, step, case):
    words = [*torch_steps.SMALL_GPT, *([] if suite.software else ["--deterministic"])]
    runs = Runs(suite, step, "bench/demo/train_gpt.py", words, prefix=f"{case}, ")
    native = runs.native("native")
    host = min(suite.host_bytes() // AT_ONCE, 2 * native["peak_bytes"] + GIB)
    runs.firn("adversarial", 1.5, host=host, FIRN_TEST_ADVERSARIAL="1")
    runs.moved("adversarial")
    runs.same("adversarial", "native", ("losses", "parameters_sha256"))


def adversarial(suite, step):
    suite.needs_torch()
    jobs = {"bits": adversarial_bits}
    for case in ADVERSARIAL:
        if suite.software and case in NEEDS_GPU:
            step.left_out(case, NEEDS_GPU[case])
        else:
            jobs[case] = adversarial_case

    at_once(step, 1 if suite.software else AT_ONCE, jobs,
            lambda case: jobs[case](suite, step, case))


def compared(step, device):
    """What FIRN_VERIFY found: bytes that left and were compared with their copies, and stretches of
    them that differed, which nobody had said that he wrote."""
    if "unseen_writes" not in device:
        step.left_out("FIRN_VERIFY", "this build compares nothing")
        return
    step.figure("FIRN_VERIFY", {name: device[name] for name in ("verified_bytes", "unseen_writes")})
    step.check("what left was compared with its copy", device["verified_bytes"] > 0)
    step.check("no copy differed", device["unseen_writes"] == 0, device["unseen_writes"])


def verified(suite, step):
    """The large GPT at half: what leaves without being copied, because its copy is still good, is
    compared with that copy; what arrives is 0xFF before it is there."""
    suite.needs_torch()
    model, batch, steps = ("tiny", 4, 6) if suite.software else ("1.3b", 12, 20)
    layers, width, heads, length, vocabulary = torch_steps.MODELS[model]
    runs = Runs(suite, step, "bench/gpu/train_large.py",
                ["--steps", steps, "--layers", layers, "--width", width, "--heads", heads,
                 "--length", length, "--vocabulary", vocabulary, "--batch", batch,
                 "--deterministic", "--checkpoint"])
    native = runs.native("native")
    runs.firn("verified", .5, host=min(suite.host_bytes(), native["peak_bytes"] + GIB),
              FIRN_VERIFY="1", FIRN_TEST_POISON="1")
    runs.moved("verified")
    runs.same("verified", "native", ("losses", "bits"))
    compared(step, runs.devices["verified"])


def device_assert(suite, step):
    """The program gets its own error, soon: neither a hang nor Firn's."""
    suite.needs_torch()
    blocks, mib = (12, 4) if suite.software else (24, 64)
    words = ("device-side assert", "CUDA_ERROR_ASSERT")
    whole = (blocks + blocks // 4) * mib << 20
    for name, budget in (("native", None), ("half", whole // 2 // GRANULE * GRANULE)):
        out, stats = (suite.work / f"assert-{name}{end}" for end in (".json", "-stats.json"))
        command = [suite.python, suite.root / "bench/gpu/device_assert.py", "--blocks", blocks,
                   "--mib", mib, "--out", out]
        environment = suite.python_environment()
        if budget:
            before, environment = suite.firn_run(stats, budget, 2 * whole + (64 << 20))
            command = [*before, *command]
        try:
            done = step.run(command, environment, 60, ok=None)
        except Cut as why:
            step.check(f"{name}: ends", False, why)
            continue
        if not step.check(f"{name}: came to the failing kernel", out.exists(), done.text[-600:]):
            continue
        took = time.time() - json.loads(out.read_text())["queued_s"]
        said = [line for line in done.text.splitlines() if any(word in line for word in words)]
        step.figure(name, {"seconds_to_the_end": round(took, 2), "status": done.rc,
                           "said": said[:3], "last": done.text.strip().splitlines()[-6:]})
        step.check(f"{name}: ends with the program's own error", said and done.rc == 1,
                   done.text[-1500:])
        step.check(f"{name}: ends within {ENDS_WITHIN_S} s", took < ENDS_WITHIN_S, took)


STEPS = (
    ("torch-adversarial", "everything spilled after every operator", 150, adversarial),
    ("torch-assert", "a kernel of the job's fails while memory is short", 60, device_assert),
    ("torch-by-name", "an operator that uses a tensor it finds by name, at half", 60,
     torch_steps.feature("by-name", .5)),
    ("torch-side-stream", "operators that leave work on a stream of their own, at half", 60,
     torch_steps.feature("side-stream", .5)),
    ("torch-triton", "raw Triton, forward and backward", 90, torch_steps.feature("triton", .6)),
    ("torch-graph-across", "a capture during which memory becomes short", 60,
     torch_steps.feature("graph-across", 1.7)),
    ("torch-verify", "clean copies compared where blocks leave (FIRN_VERIFY)", 120, verified),
)
