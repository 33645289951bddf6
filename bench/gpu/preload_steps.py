"""Steps with Firn below programs that know nothing of it: by LD_PRELOAD."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import threading

import building
import machine
from driver_steps import compiled_program
from results import Cut, Failed, Skip

# Over the driver API; name and what run_program.py is told besides.
PROGRAMS = {name: () for name in (
    "vector", "gemm", "structs", "graphs", "threads", "streams", "by_value", "copies", "globals",
    "host_table", "nodes", "pools", "capture_short", "vector_c", "cycles")}
PROGRAMS["list"] = ("--expect-pinned", "a kernel stored its address in memory")
PROGRAMS["processes"] = ("--expect-pinned", "given to other processes (cuIpcGetMemHandle)")
RUNTIME = ("vector", "gemm", "by_value", "structs", "list", "graphs", "threads")
AT_ONCE = 4


def stand_in(suite):
    return suite.build / "allocator/preload/libfirn_preload.so"


def run_program(suite, step, program, kernels, *words):
    """The program alone, with memory enough, at half of it, with everything spilled at once."""
    environment = suite.environment()
    if suite.software:
        environment["FIRN_TEST_GPU"] = str((suite.build / "backing/gpu/software/libcuda.so.1")
                                           .resolve())
    step.run([suite.python, suite.root / "tests/gpu/run_program.py", stand_in(suite), program,
              kernels, *words], environment, 120)


def each_of(step, jobs):
    """{name: work}: some at a time; a check each."""
    lock = threading.Lock()

    def one(name):
        try:
            jobs[name]()
            ok, detail = True, ""
        except (Failed, Cut) as words:
            ok, detail = False, f"{words}: see log.txt"
        with lock:
            step.check(name, ok, detail)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, jobs))


def programs(suite, step):
    suite.needs_build()
    kernels = suite.kernels()
    if suite.software:  # the rest are tests of their own there (tests/gpu/meson.build)
        run_program(suite, step, suite.build / "tests/gpu/program_vector", kernels)
        step.check("vector", True)
        return
    compiled_program(suite, step, "vector")  # alone: it says at once what is wrong with all
    each_of(step, {name: lambda name=name: run_program(
        suite, step, compiled_program(suite, step, name), kernels, *PROGRAMS[name])
        for name in PROGRAMS})


def runtime(suite, step):
    suite.needs_build()
    if suite.software:
        raise Skip("programs over the CUDA runtime need a GPU: the software GPU's own runtime is "
                   "PyTorch's alone")
    jobs = {}
    for kind in ("static", "shared"):
        program = suite.kernels(f"runtime_{kind}")
        for name in RUNTIME:
            jobs[f"{kind} {name}"] = lambda program=program, name=name: run_program(
                suite, step, program, name)
    if not runs(suite, suite.kernels("runtime_shared")):
        step.left_out("shared", "libcudart.so.13 is not found by the loader")
        jobs = {name: job for name, job in jobs.items() if name.startswith("static")}
    each_of(step, jobs)


def runs(suite, program):
    words = machine.said("ldd", str(program))
    return "not found" not in words


def asked(suite, step):
    """What the CUDA runtime asks of the driver arrives at Firn's entries: a program's report."""
    suite.needs_build()
    if suite.software:
        nvcc = machine.find_nvcc()
        if not nvcc:
            raise Skip("no nvcc here")
        step.run(["bash", suite.root / "tests/allocator/preload/nvcc_test.sh", stand_in(suite),
                  suite.root / "tests/allocator/preload/vectors.cu"], building.environment(),
                 ok=(0, 77))
        return
    for kind in ("static", "shared"):
        program, stats = suite.kernels(f"runtime_{kind}"), suite.work / f"asked-{kind}.json"
        if kind == "shared" and not runs(suite, program):
            continue
        step.run([program, "vector"], suite.environment(LD_PRELOAD=str(stand_in(suite)),
                                                        FIRN_STATS=str(stats)), 60)
        coverage = json.loads(stats.read_text())["coverage"]
        step.figure(kind, {"entries_asked_for": coverage["calls"].get("cuGetProcAddress_v2"),
                           "hooked": coverage["hooked"], "unknown": coverage["unknown"],
                           "warnings": coverage["warnings"]})
        for entry in ("cuGetProcAddress_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchKernel"):
            step.check(f"{kind}: {entry} is Firn's", entry in coverage["hooked"])
        step.check(f"{kind}: no entry is unknown", not coverage["unknown"], coverage["unknown"])


def library_folders(suite):
    """Where the CUDA libraries are that came with torch."""
    told = machine.said(suite.python, str(suite.root / "backing/gpu/software/find_torch.py"))
    info = json.loads(told or "{}")
    return info.get("cuda_include_dir", ""), info.get("cuda_lib_dir", "")


def cublas(suite, step):
    suite.needs_build()
    nvcc = machine.find_nvcc()
    if not nvcc:
        raise Skip("no nvcc here")
    include, libraries = library_folders(suite)
    toolkit = pathlib.Path(nvcc).resolve().parents[1]
    if (toolkit / "include/cublas_v2.h").exists():
        include, libraries = toolkit / "include", toolkit / "lib64"
    found = sorted(pathlib.Path(libraries or "/nowhere").glob("libcublas.so*"))
    if not found or not (pathlib.Path(include) / "cublas_v2.h").exists():
        raise Skip("no cuBLAS with headers, neither in the toolkit nor beside torch")
    program = suite.work / "cublas"
    step.run([nvcc, "-std=c++17", "-gencode", "arch=compute_75,code=compute_75", f"-I{include}",
              "-Itests/gpu", "-o", program, "bench/gpu/cublas.cu", "-Xlinker", found[0], "-Xlinker",
              f"-rpath={libraries}", "-Xlinker", "--allow-shlib-undefined"],
             building.environment(), 120, cwd=suite.root)
    step.check("built", True)
    if suite.software:
        step.left_out("run", "cuBLAS needs a GPU")
        return
    run_program(suite, step, program, "cublas")
    step.check("the same bits", True)


def sanitizer(suite, step):
    """NVIDIA's own checker, beside Firn at half of the memory: no access but to what is mapped."""
    suite.needs_build()
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")
    if suite.software:
        raise Skip("compute-sanitizer needs a GPU")
    if not found:
        raise Skip("no compute-sanitizer here")
    if suite.found["gpus"] and "gVisor" in suite.found["kernel"]:
        raise Skip("compute-sanitizer refuses this machine's devices")
    program = compiled_program(suite, step, "cycles")
    stats = suite.work / "sanitizer.json"
    done = step.run([found, "--tool", "memcheck", "--error-exitcode", "9", program,
                     suite.kernels(), 2, 6, 2, 4],
                    suite.environment(LD_PRELOAD=str(stand_in(suite)), FIRN_STATS=str(stats),
                                      FIRN_BUDGET=str(12 << 20), FIRN_HOST="512MiB"), ok=(0, 9))
    step.check("no access to what is not there", done.rc == 0, done.text[-800:])
    if step.check("Firn was there", stats.exists()):
        device = json.loads(stats.read_text())["devices"][0]
        step.check("blocks moved", device["spilled_bytes"] > 0, device["spilled_bytes"])


def native_pytorch(suite, step):
    """PyTorch with its own allocator, which Firn makes ask for each block by itself."""
    suite.needs_torch()
    script = suite.root / "tests/torch/scripts/gpt_adamw.py"
    shape = ("--steps", 2, "--layers", 1, "--length", 128, "--batch", 8, "--width", 512) \
        if suite.software else ("--steps", 6, "--layers", 8, "--width", 1024, "--heads", 16,
                                "--batch", 16, "--length", 512)
    alone = step.run([suite.python, script, *shape], suite.python_environment())
    peak = int(value_of(alone.text, "peak"))
    stats = suite.work / "native_pytorch.json"
    environment = suite.python_environment()
    before = [stand_in(suite)]
    if suite.software:
        before.append(suite.build / "backing/gpu/software/cudart/libcudart.so.13")
    environment.update(LD_PRELOAD=":".join(map(str, before)), FIRN_STATS=str(stats),
                       PYTORCH_CUDA_ALLOC_CONF="backend:native",
                       FIRN_BUDGET=str(int(peak * .6) >> 21 << 21),
                       FIRN_HOST=str(max(64 << 20, peak)))
    below = step.run([suite.python, script, *shape], environment)
    report = json.loads(stats.read_text())
    device = report["devices"][0]
    step.figure("run", {"peak_bytes": peak, "budget_bytes": device["budget_bytes"],
                        "spilled_bytes": device["spilled_bytes"],
                        "faulted_bytes": device["faulted_bytes"], "stall_s": device["stall_s"],
                        "launches": report["coverage"]["launches"],
                        "unknown_kernels": report["coverage"]["unknown_kernels"],
                        "pinned": device["pinned"], "seconds_alone": round(alone.seconds, 2),
                        "seconds_with_firn": round(below.seconds, 2)})
    step.check("Firn was below PyTorch's own allocator",
               "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in below.text)
    step.check("blocks moved", device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0)
    step.check("losses are the same in every bit", lines_of(alone.text, "loss") ==
               lines_of(below.text, "loss") != [], lines_of(below.text, "loss"))
    step.check("parameters are the same in every bit",
               lines_of(alone.text, "sha256") == lines_of(below.text, "sha256"))


def lines_of(text, word):
    return [line for line in text.splitlines() if line.startswith(word + " ")]


def value_of(text, word):
    return lines_of(text, word)[-1].split()[1]


STEPS = (
    ("preload-asked", "what the CUDA runtime asks for arrives at Firn", 60, asked),
    ("preload-programs", "programs over the driver API at half of their memory", 240, programs),
    ("preload-pytorch", "PyTorch with its own allocator, Firn below it", 120, native_pytorch),
    ("preload-runtime", "programs over the CUDA runtime, static and shared", 180, runtime),
    ("preload-cublas", "cuBLAS, with tables of pointers", 120, cublas),
    ("preload-sanitizer", "compute-sanitizer beside Firn: every access seen", 120, sanitizer),
)
