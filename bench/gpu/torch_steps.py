"""Steps with PyTorch: bits at several budgets, a large GPT in bf16, and what reaches the GPU by
other ways than eager operators."""

import json
import statistics

from results import Failed, Skip

GIB, GRANULE = 1 << 30, 2 << 20
# Layers, width, heads, length, vocabulary.
MODELS = {"tiny": (2, 512, 4, 128, 4096), "160m": (12, 768, 12, 2048, 16384),
          "1.3b": (24, 2048, 16, 2048, 16384), "2.7b": (32, 2560, 32, 2048, 16384),
          "6.7b": (32, 4096, 32, 2048, 16384)}
# The demo's, for the dry run; small enough to be quick, with small blocks (which stay) few enough.
SMALL_GPT = ("--steps", 3, "--layers", 2, "--width", 512, "--length", 128, "--batch", 8)
TRITON = "Triton's kernels need a GPU"
NEEDS_GPU = {"compile": TRITON, "compile-graphs": TRITON,
             "flash": "the software GPU has no flash kernels", "nccl": "NCCL needs a GPU",
             "triton": TRITON}
# Natively four runs on an H200 had three different results, and two of them may well be equal.
UNLIKE_ITSELF = ("compile", "compile-graphs")
# Cases that launch the tests' kernels; with every copy compared that is relied upon.
OWN_KERNELS = ("by-name", "side-stream")
MOVED = ("budget_bytes", "peak_device_bytes", "peak_allocated_bytes", "spilled_bytes",
         "faulted_bytes", "prefetched_bytes", "forwarded_bytes", "clean_dropped_bytes", "stall_s",
         "stalls", "lost_blocks", "touches", "pinned", "unseen", "measured_host_out_bytes_s",
         "measured_host_in_bytes_s", "measured_store_write_bytes_s", "measured_store_read_bytes_s",
         "period_found", "plan_s", "trouble", "out_of_memory", "faults", "evictions", "maps",
         "unmaps", "frames_created", "driver")


def free_bytes(suite):
    """GPU memory that a job may have. Others' is theirs."""
    if suite.software:
        return suite.options.gpu_memory
    return suite.found["driver"]["free_bytes"]


class Runs:
    """The same script natively and with Firn, results by name. `prefix`: before what the step says
    of them, where it runs several scripts."""

    def __init__(self, suite, step, script, words, prefix=""):
        self.suite, self.step, self.words = suite, step, [suite.root / script, *words]
        self.prefix = prefix
        self.results, self.devices = {}, {}

    def script(self, name):
        out = self.suite.work / f"{self.step.row['name']}-{self.prefix}{name}.json"
        out.unlink(missing_ok=True)
        return out, [self.suite.python, *self.words, "--out", out]

    def native(self, name, **more):
        out, command = self.script(name)
        done = self.step.run(command, self.suite.python_environment(**more))
        return self.keep(name, out, done, None)

    def firn(self, name, fraction=None, host=None, dirs=(), **more):
        """At that part of the first run's peak; without, at all there is."""
        budget = None
        if fraction:
            peak = next(iter(self.results.values()))["peak_bytes"]
            budget = int(peak * fraction) // GRANULE * GRANULE
        out, command = self.script(name)
        stats = self.suite.work / f"{self.step.row['name']}-{self.prefix}{name}-stats.json"
        before, environment = self.suite.firn_run(stats, budget, host, dirs)
        done = self.step.run([*before, *command], {**environment, **more})
        return self.keep(name, out, done, stats)

    def keep(self, name, out, done, stats):
        if not out.exists():
            raise Failed(f"{name}: no results: {done.text[-300:]}")
        found = self.results[name] = json.loads(out.read_text())
        row = {"peak_bytes": found["peak_bytes"], "process_s": round(done.seconds, 2)}
        if stats is not None:
            report = json.loads(stats.read_text())
            (device,) = report["devices"]
            self.devices[name] = device
            row.update({key: device[key] for key in MOVED})
            row["store"] = {key: report["store"][key]
                            for key in ("kind", "why", "written_bytes", "read_bytes", "trouble")}
            self.check(f"{name}: nothing was lost", device["lost_blocks"] == 0)
            self.check(f"{name}: within the budget",
                       device["peak_device_bytes"] <= device["budget_bytes"])
        if found.get("seconds_of_steps"):
            row["step_s"] = round(steady(found), 4)
            row["first_step_s"] = round(found["seconds_of_steps"][0], 4)
            row["steps_s"] = [round(each, 3) for each in found["seconds_of_steps"]]
        if found.get("pinned") is not None:
            row["stayed"] = found["pinned"]
        self.step.figure(self.prefix + name, row)
        return found

    def check(self, name, ok, detail=""):
        return self.step.check(self.prefix + name, ok, detail)

    def same(self, name, base, keys):
        for key in keys:
            self.check(f"{name}: {key} as {base}'s, in every bit",
                       self.results[name][key] == self.results[base][key])

    def moved(self, name):
        device = self.devices[name]
        self.check(f"{name}: blocks moved", device["spilled_bytes"] > 0 and
                   device["faulted_bytes"] + device["prefetched_bytes"] > 0)

    def free_to_leave(self, name):
        """A run that works because all of it stays is no success: beside the segments of small
        blocks and what no operator has used yet, at most this part of the peak stayed."""
        found = self.results[name]
        stayed = {reason: count for reason, count in (found.get("pinned") or {}).items()
                  if not reason.startswith(LEAVES_LATER)}
        self.check(f"{name}: at most {STAYS_MOST} of the peak stays on the GPU",
                   sum(stayed.values()) <= STAYS_MOST * found["peak_bytes"], stayed)


STAYS_MOST = .1
LEAVES_LATER = ("segments of small blocks", "not yet seen in an operator")


def steady(result):
    """The median of the second half of the steps: host memory is had, and the period is known."""
    seconds = result["seconds_of_steps"]
    return statistics.median(seconds[len(seconds) // 2:])


def bits(suite, step):
    """Deterministic kernels only, cuBLAS with a fixed workspace; that natively two runs are equal
    is seen first."""
    suite.needs_torch()
    free = free_bytes(suite)
    if suite.software:
        words = SMALL_GPT
    elif free > 16 * GIB:
        words = ["--steps", 10, "--layers", 8, "--width", 768, "--heads", 12, "--length", 512,
                 "--batch", 8, "--deterministic"]
    else:
        words = ["--steps", 10, "--deterministic"]
    runs = Runs(suite, step, "bench/demo/train_gpt.py", words)
    peak = runs.native("native")["peak_bytes"]
    host = min(suite.host_bytes(), peak + GIB)
    keys = ("losses", "parameters_sha256")
    if not suite.software:
        runs.native("native again")
        runs.same("native again", "native", keys)
    for name, fraction in (("half", .5), ("third", .35), ("all", 1.0), ("unlimited", None)):
        runs.firn(name, fraction, host=host)
        runs.same(name, "native", keys)
    runs.moved("half")
    runs.moved("third")
    step.check("unlimited: nothing moved", runs.devices["unlimited"]["spilled_bytes"] == 0)


def edge(suite, step):
    """Where all of the job just fits: what planned places save of the driver's mapping calls."""
    suite.needs_torch()
    words = SMALL_GPT if suite.software else ["--steps", 30, "--layers", 8, "--width", 768,
                                              "--heads", 12, "--length", 512, "--batch", 8,
                                              "--deterministic"]
    if suite.software:
        words = ["--steps", 8, *words[2:]]
    runs = Runs(suite, step, "bench/demo/train_gpt.py", words)
    peak = runs.native("native")["peak_bytes"]
    host = min(suite.host_bytes(), peak + GIB)
    for name, flag in (("without places", "0"), ("with places", "1")):
        runs.firn(name, 1.02, host=host, FIRN_PLACES=flag)
        runs.same(name, "native", ("losses", "parameters_sha256"))
    for name, device in runs.devices.items():
        step.figure(f"{name}: mapping", {"maps_in_all": device["maps"], **device["places"]})
    given = runs.devices["with places"]["places"]["given"]
    step.check("places were given", given > 0, given)


def spilled_to_files(suite, step):
    """With little host memory, so that most goes on to files, and comes back."""
    suite.needs_torch()
    words = SMALL_GPT if suite.software else ["--steps", 6, "--deterministic"]
    dirs = suite.spill_dirs(2 * GIB)
    if not dirs:
        raise Skip("less than 2 GiB of disk are free")
    runs = Runs(suite, step, "bench/demo/train_gpt.py", words)
    runs.native("native")
    host = "24MiB" if suite.software else "192MiB"
    runs.firn("half", .5, host=host, dirs=dirs)
    runs.same("half", "native", ("losses", "parameters_sha256"))
    runs.moved("half")
    store = step.row["figures"]["half"]["store"]
    if store["trouble"]:
        step.left_out("files", str(store["trouble"]))
    else:
        step.check("bytes went to files and back",
                   store["written_bytes"] > 0 and store["read_bytes"] > 0, store)


OPERATIONS_MOST = 1.5e15  # in a step: a few seconds of a large GPU


def parameters_of(model):
    layers, width, _, _, vocabulary = MODELS[model]
    return 12 * layers * width * width + 2 * vocabulary * width


def bytes_wanted(model, batch, checkpoint):
    """About what training holds at its peak: parameters, gradients and states; activations; scores
    of the next token."""
    layers, width, _, length, vocabulary = MODELS[model]
    kept = 2 * width * layers + 36 * width if checkpoint else 36 * width * layers
    return 8 * parameters_of(model) + batch * length * (kept + 12 * vocabulary)


def choose(suite, checkpoint):
    """The largest model that leaves as much room to activations, and a batch that fills it: what
    has to leave at 35 % has to find room in host memory."""
    most = min(.85 * free_bytes(suite), suite.host_bytes() / .75)
    names = [suite.options.model] if suite.options.model != "auto" else [
        name for name in MODELS if name != "tiny"]
    fitting = [name for name in names if bytes_wanted(name, 0, checkpoint) < .45 * most]
    if not fitting:
        raise Skip(f"no model fits {most / GIB:.0f} GiB of GPU memory and of host memory")
    name = fitting[-1]
    least = bytes_wanted(name, 0, checkpoint)
    batch = (most - least) / (bytes_wanted(name, 1, checkpoint) - least)
    operations = 8 * parameters_of(name) * MODELS[name][3]
    return name, max(1, int(min(batch, OPERATIONS_MOST / operations)))


def large(checkpoint):
    """Natively, then at half, unlimited, and at 35 % of what that held."""
    def work(suite, step):
        suite.needs_torch()
        if suite.software:
            model, batch, steps = "tiny", 4, 4
        else:
            (model, batch), steps = choose(suite, checkpoint), 8
        layers, width, heads, length, vocabulary = MODELS[model]
        runs = Runs(suite, step, "bench/gpu/train_large.py",
                    ["--steps", steps, "--layers", layers, "--width", width, "--heads", heads,
                     "--length", length, "--vocabulary", vocabulary, "--batch", batch,
                     "--deterministic", *(["--checkpoint"] if checkpoint else [])])
        native = runs.native("native")
        step.figure("model", {"name": model, "parameters": native["parameters"], "batch": batch,
                              "tokens": native["tokens"], "gpu": native["gpu"]})
        for name, fraction in (("half", .5), ("unlimited", None), ("third", .35)):
            at_budget(suite, step, runs, name, fraction)
    return work


# The part of native speed that is wanted.
WANTED = {"half": .95, "third": .8, "unlimited": .99}


def at_budget(suite, step, runs, name, fraction):
    native = runs.results["native"]
    try:
        runs.firn(name, fraction, host=min(suite.host_bytes(), native["peak_bytes"] + GIB))
    except Failed as words:
        step.check(name, False, words)
        return
    runs.same(name, "native", ("losses", "bits"))
    if fraction:
        runs.moved(name)
        runs.free_to_leave(name)
    speed = steady(native) / steady(runs.results[name])
    step.row["figures"].setdefault("fraction_of_native_speed", {})[name] = round(speed, 4)
    if suite.software or speed >= WANTED[name]:
        return
    device = runs.devices[name]
    moved = (device["spilled_bytes"] + device["faulted_bytes"] + device["prefetched_bytes"]) / GIB
    step.row["why"] += (f"{name}: {speed:.3f} of native speed, wanted {WANTED[name]}; {moved:.0f} "
                        f"GiB moved, {device['stall_s']:.1f} s waited for; ")


def surroundings(suite, case):
    """Variables for a case of features.py."""
    kernels = {"FIRN_BENCH_KERNELS": str(suite.kernels()), "FIRN_VERIFY": "1"} \
        if case in OWN_KERNELS else {}
    return {"TORCHINDUCTOR_CACHE_DIR": str(suite.work / "inductor"),
            "TRITON_CACHE_DIR": str(suite.work / "triton"), **kernels}


def feature(case, fraction):
    """`fraction`: the budget, of the native peak: what graphs use has to stay."""
    def work(suite, step):
        suite.needs_torch()
        if suite.software and case in NEEDS_GPU:
            raise Skip(NEEDS_GPU[case])
        runs = Runs(suite, step, "bench/gpu/features.py",
                    [case, "--scale", 1 if suite.software else 8])
        cache = surroundings(suite, case)
        native = runs.native("native", **cache)
        if "impossible" in native:
            raise Skip(native["impossible"])
        again = native if suite.software else runs.native("native again", **cache)
        firn = runs.firn("firn", fraction, host=min(suite.host_bytes(), native["peak_bytes"] + GIB),
                         **cache)
        values = [[float.fromhex(loss) for loss in run["losses"]] for run in (native, firn)]
        if native["losses"] == again["losses"] and case not in UNLIKE_ITSELF:
            runs.same("firn", "native", ("losses",))
        else:
            step.left_out("bits", "compared to a thousandth: " + (
                "its native runs are known to differ" if case in UNLIKE_ITSELF
                else "natively two runs differ as well"))
        step.check("losses", all(abs(a - b) <= 1e-3 * max(abs(a), 1e-6)
                                 for a, b in zip(*values)) and len(values[0]) == len(values[1]),
                   values)
        device = runs.devices["firn"]
        step.figure("outcome", "works" + (
            ", with memory that stays: " + ", ".join(f"{pin['reason']} ({pin['bytes'] >> 20} MiB)"
                                                     for pin in device["pinned"] if pin["bytes"])
            if any(pin["bytes"] for pin in device["pinned"]) else ""))
        step.figure("moved_bytes", device["spilled_bytes"])
        if fraction < 1:  # (what a graph uses has to stay)
            runs.moved("firn")
            runs.free_to_leave("firn")
    return work


# Ordinary programs of the tests, which know nothing of Firn; the dry run leaves them to those.
SCRIPTS = ("side_streams.py", "autocast_accumulation.py", "dataloader_pinned.py",
           "convnet_bn_sgd_checkpoint.py", "lstm.py")
SMALL_SCRIPT = ("side_streams.py", "--steps", 3, "--layers", 3, "--batch", 1024)


def scripts(suite, step):
    """At half of their memory; the same bits where natively two runs have the same."""
    suite.needs_torch()
    for script, *words in [SMALL_SCRIPT] if suite.software else [(name,) for name in SCRIPTS]:
        command = [suite.python, suite.root / "tests/torch/scripts" / script, *words]
        try:
            native = step.run(command, suite.python_environment()).text
            again = native if suite.software else step.run(command, suite.python_environment()).text
            budget = int(of(native, "peak")[0].split()[1]) // 2 // GRANULE * GRANULE
            stats = suite.work / f"{script}.json"
            before, environment = suite.firn_run(stats, budget, min(suite.host_bytes(), 4 * GIB))
            firn = step.run([*before, *command], environment).text
        except Failed as words:
            step.check(script, False, words)
            continue
        device = json.loads(stats.read_text())["devices"][0]
        step.figure(script, {key: device[key] for key in MOVED})
        step.check(f"{script}: blocks moved", device["spilled_bytes"] > 0)
        step.check(f"{script}: ran to its end", of(firn, "sha256"))
        if of(native, "loss", "sha256") == of(again, "loss", "sha256"):
            step.check(f"{script}: the same bits",
                       of(firn, "loss", "sha256") == of(native, "loss", "sha256"))
        else:
            step.left_out(f"{script}: bits", "natively two runs differ as well")


RECIPES = "tests/torch/plugin/recipes"
FEW_OPERATORS = ("aten::gelu", "aten::native_layer_norm", "aten::mm")  # the dry run's


def recipes(suite, step):
    """Operators' results made again with equal bytes, and recipes that no longer stand."""
    suite.needs_torch()
    before, environment = suite.firn_run(suite.work / "recipes-stats.json")
    out = suite.work / "recipes.json"
    words = ["--samples", 0, *FEW_OPERATORS] if suite.software else ["--samples", 4]
    program = suite.root / RECIPES
    # (Where bytes differ the status is 1, and the file says which.)
    step.run([*before, suite.python, program / "operators.py", "--out", out, *words], environment,
             ok=(0, 1))
    found = json.loads(out.read_text())
    for name, about in found["operators"].items():
        step.check(f"{name}: equal bytes", not about["wrong"] and sum(about["types"].values()) > 0,
                   about["wrong"][:3])
    step.check("op_db's samples: equal bytes", not found["op_db_wrong"], found["op_db_wrong"][:5])
    step.figure("made again", sum(sum(about["types"].values())
                                  for about in found["operators"].values()))
    step.figure("made again of op_db's samples", sum(found["op_db"].values()))
    if suite.software:
        step.left_out("voids.py, surroundings.py", "test_recipes.py runs them on the software GPU")
        return
    for cases in ("voids.py", "surroundings.py"):
        done = step.run([*before, suite.python, program / cases], environment, ok=None)
        bad = [line for line in done.text.splitlines() if ": Traceback" in line]
        step.check(f"{cases}: each case", done.rc == 0, bad or done.text[-300:])


def of(text, *words):
    return [line for line in text.splitlines() if line.split(" ")[0] in words]


STEPS = (
    ("torch-scripts", "the tests' programs at half of their memory", 150, scripts),
    ("torch-bits", "a GPT at 100, 50, 35 % and unlimited: the same bits", 180, bits),
    ("torch-large", "a large GPT with AdamW in bf16, checkpointed: bits, speed", 300, large(True)),
    ("torch-large-plain", "the same with all activations kept", 300, large(False)),
    ("torch-recipes", "operators' results made again: the same bytes", 240, recipes),
    ("torch-edge", "a GPT that just fits: with planned places and without", 120, edge),
    ("torch-compile", "torch.compile: Inductor's and Triton's kernels", 150,
     feature("compile", .7)),
    ("torch-graphs", "a training step as a CUDA graph", 60, feature("graphs", 1.5)),
    ("torch-cudnn", "cuDNN in benchmark mode", 60, feature("cudnn", .7)),
    ("torch-flash", "attention by flash kernels", 60, feature("flash", .7)),
    ("torch-nccl", "NCCL with one rank", 60, feature("nccl", .8)),
    ("torch-compile-graphs", "torch.compile with CUDA graphs", 150,
     feature("compile-graphs", 1.5)),
    ("torch-files", "little host memory: spilled on to files", 90, spilled_to_files),
)
