"""Steps with programs of others: jobs over libraries for PyTorch, and frameworks that are not
PyTorch, each natively and at half of its memory."""

import json

from results import Skip, at_once
from torch_steps import GIB, GRANULE, MOVED, of

AT_ONCE = 4
FRACTIONS = {"half": .5, "third": .35}
# The jobs of tests/torch/libraries, as large as a GPU wants them: what cuBLAS and cuDNN keep is
# small beside their tensors.
JOBS = {
    "compiled": ("--batch", 64),
    "detection": ("--size", 512, "--images", 4),
    "diffusers_unet": ("--batch", 16),
    "dqn": ("--memory", 20000, "--width", 4096),
    "ema_teacher": ("--width", 2048, "--batch", 1024),
    "embedding_bag": ("--rows", 400000),
    "gan": ("--width", 96, "--batch", 128),
    "geometric": ("--nodes", 30000, "--edges", 240000),
    "half_scaler": ("--batch", 96),
    "jagged": ("--sequences", 96, "--longest", 512),
    "lightning_fit": ("--width", 4096, "--batch", 1024),
    "linear_algebra": ("--size", 3000),
    "maml": ("--width", 2048),
    "packed_gru": ("--width", 512, "--sequences", 128, "--longest", 192),
    "peft_lora": ("--batch", 16, "--width", 1024),
    "pinn_lbfgs": ("--points", 65536),
    "save_on_cpu": ("--width", 4096, "--batch", 1024),
    "shrinking_batch": (),
    "sparse_embedding": ("--rows", 600000),
    "timm_convnext": ("--batch", 64, "--size", 224),
}
FRAMEWORKS = ("jax", "cupy", "numba")
LACKING = "ModuleNotFoundError"


def native_text(step, command, environment):
    """Natively, or Skip: a library may be missing, or not run with the others that are there."""
    done = step.run(command, environment, ok=None)
    if done.rc != 0:
        last = (done.text.strip().splitlines() or ["nothing was said"])[-1]
        raise Skip(last if LACKING in done.text else f"does not run natively: {last[:300]}")
    return done.text


def libraries(suite, step):
    """The jobs of others at half and at 35 % of their own peak, with deterministic kernels where
    PyTorch has them."""
    suite.needs_torch()
    if suite.software:
        raise Skip("tests/torch/test_libraries.py runs them on the software GPU")
    more = {"PYTHONPATH": ":".join(str(suite.root / each) for each in (
        "tests/torch/scripts", "tests/torch/libraries"))}

    def environment(kept):
        path = ":".join(filter(None, (more["PYTHONPATH"], kept.get("PYTHONPATH"))))
        return {**kept, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(suite.work / "inductor"),
                "TRITON_CACHE_DIR": str(suite.work / "triton")}

    def work(name):
        command = [suite.python, suite.root / "bench/gpu/deterministic.py",
                   suite.root / f"tests/torch/libraries/{name}.py", *JOBS[name]]
        plain = environment(suite.python_environment())
        native = native_text(step, command, plain)
        again = native_text(step, command, plain)
        equal = of(native, "loss", "sha256") == of(again, "loss", "sha256")
        if not equal:
            step.left_out(f"{name}: bits", "natively two runs differ as well")
        peak = int(of(native, "peak")[0].split()[1])
        for part, fraction in FRACTIONS.items():
            at_a_part(name, part, int(peak * fraction) // GRANULE * GRANULE, command, native, equal)

    def at_a_part(name, part, budget, command, native, equal):
        stats = suite.work / f"{name}-{part}.json"
        before, kept = suite.firn_run(stats, budget, min(suite.host_bytes() // AT_ONCE, 8 * GIB))
        done = step.run([*before, *command], environment(kept), ok=None)
        device = json.loads(stats.read_text())["devices"][0] if stats.exists() else {}
        step.figure(f"{name}, {part}", {"budget_bytes": budget, "rc": done.rc, **{
            key: device.get(key) for key in MOVED}})
        if not step.check(f"{name}, {part}: ran to its end", done.rc == 0, done.text[-1200:]):
            return
        step.check(f"{name}, {part}: blocks moved", device.get("spilled_bytes", 0) > 0)
        step.check(f"{name}, {part}: nothing was lost", device.get("lost_blocks") == 0)
        if equal:
            step.check(f"{name}, {part}: the same bits",
                         of(done.text, "loss", "sha256") == of(native, "loss", "sha256"))
    at_once(step, AT_ONCE, JOBS, work)


def frameworks(suite, step):
    """Through the library in front of the driver, with what `firn run` sets for them."""
    suite.needs_build()
    if suite.software:
        raise Skip("their kernels need a GPU")

    def work(name):
        out = suite.work / f"{name}.json"
        command = [suite.python, suite.root / "bench/gpu/framework_case.py", name, "--out", out]
        more = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
        native_text(step, command, {**suite.environment(), **more,
                                      "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
        native = json.loads(out.read_text())
        out.unlink()
        stats = suite.work / f"{name}-stats.json"
        budget = (native["bytes"] // 2 + native["work_bytes"]) // GRANULE * GRANULE
        words = [suite.build / "allocator/command/firn", "run", "--stats", stats,
                 "--budget", budget, "--host", 2 * native["bytes"] + GIB, "--"]
        done = step.run([*words, *command], {**suite.environment(**suite.site()), **more}, ok=None)
        device = json.loads(stats.read_text())["devices"][0] if stats.exists() else {}
        step.figure(name, {"rc": done.rc, "said": [line for line in done.text.splitlines()
                                                     if "firn" in line.lower()][:12],
                             "native_s": native["seconds"],
                             **{key: device.get(key) for key in MOVED}})
        if not step.check(f"{name}: ran to its end", done.rc == 0, done.text[-1500:]):
            return
        firn = json.loads(out.read_text())
        step.figure(f"{name}, seconds", [native["seconds"], firn["seconds"]])
        step.check(f"{name}: blocks moved", device.get("spilled_bytes", 0) > 0,
                     device.get("spilled_bytes"))
        step.check(f"{name}: the same bits", firn["sha256"] == native["sha256"])
    at_once(step, AT_ONCE, FRAMEWORKS, work)


STEPS = (
    ("torch-libraries", "jobs over libraries of others at half and at 35 %", 240, libraries),
    ("frameworks", "JAX, CuPy and Numba at two thirds of their memory", 120, frameworks),
)
