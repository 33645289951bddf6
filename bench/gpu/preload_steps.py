"""Steps with Firn below programs that know nothing of it: by LD_PRELOAD."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import threading

import building
import machine
import torch_steps
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


def run_program(suite, step, program, kernels, *words, **more):
    """The program alone, with memory enough, at half of it, with everything spilled at once."""
    environment = suite.environment(**more)
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
        more = with_runtime(suite)
        if not loads(program, more):
            step.left_out(kind, "the loader does not find libcudart.so.13")
            continue
        for name in RUNTIME:
            jobs[f"{kind} {name}"] = lambda program=program, name=name: run_program(
                suite, step, program, name, **more)
    each_of(step, jobs)


def with_runtime(suite):
    """Where the shared CUDA runtime may be: the toolkit's, or the one that came with torch."""
    nvcc = machine.find_nvcc()
    folders = [str(pathlib.Path(nvcc).resolve().parents[1] / "lib64")] if nvcc else []
    folders += [library_folders(suite)[1], os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def loads(program, more):
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True,
                          env={**os.environ, **more})
    return "not found" not in done.stdout


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
        more = with_runtime(suite)
        if not loads(program, more):
            step.left_out(kind, "the loader does not find libcudart.so.13")
            continue
        step.run([program, "vector"], suite.environment(
            LD_PRELOAD=str(stand_in(suite)), FIRN_STATS=str(stats), **more), 60)
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
              "-o", program, "bench/gpu/cublas.cu", "-Xlinker", found[0], "-Xlinker",
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
    program = compiled_program(suite, step, "cycles")
    stats = suite.work / "sanitizer.json"
    # (Parameters of a kernel are counted by asking until the driver refuses, which it calls an error.)
    done = step.run([found, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode",
                     "9", program,
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
    shape = torch_steps.SMALL_GPT if suite.software else (
        "--steps", 6, "--layers", 6, "--width", 768, "--heads", 12, "--length", 512, "--batch", 8,
        "--deterministic")
    runs = torch_steps.Runs(suite, step, "bench/demo/train_gpt.py", shape)
    peak = runs.native("native")["peak_bytes"]
    stats = suite.work / "native_pytorch.json"
    before = [stand_in(suite)]
    if suite.software:
        before.append(suite.build / "backing/gpu/software/cudart/libcudart.so.13")
    out, command = runs.script("below")
    environment = suite.python_environment(
        LD_PRELOAD=":".join(map(str, before)), FIRN_STATS=str(stats),
        PYTORCH_CUDA_ALLOC_CONF="backend:native", FIRN_BUDGET=str(int(peak * .6) >> 21 << 21),
        FIRN_HOST=str(max(64 << 20, peak)))
    done = step.run(command, environment)
    runs.keep("below", out, done, stats)
    coverage = json.loads(stats.read_text())["coverage"]
    step.figure("seen", {name: coverage[name] for name in ("launches", "unknown_kernels",
                                                           "warnings", "unseen")})
    step.check("Firn was below PyTorch's own allocator",
               "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in done.text)
    runs.moved("below")
    runs.same("below", "native", ("losses", "parameters_sha256"))


STEPS = (
    ("preload-asked", "what the CUDA runtime asks for arrives at Firn", 60, asked),
    ("preload-programs", "programs over the driver API at half of their memory", 240, programs),
    ("preload-pytorch", "PyTorch with its own allocator, Firn below it", 120, native_pytorch),
    ("preload-runtime", "programs over the CUDA runtime, static and shared", 180, runtime),
    ("preload-cublas", "cuBLAS, with tables of pointers", 120, cublas),
    ("preload-sanitizer", "compute-sanitizer beside Firn: every access seen", 120, sanitizer),
)
