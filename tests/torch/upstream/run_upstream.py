"""Runs PyTorch's own tests of CUDA memory, streams, events and graphs on the software GPU: with the
native allocator, and what passes then with Firn's: unlimited, with half the memory that the test
allocated natively, and with every block spilled after every operator. Prints a table, and how many
of those that pass natively pass with Firn.

    python run_upstream.py --tests DIR [--build BUILD] [--only PATTERN] [--modes MODE,...] [--long]

DIR (or FIRN_TORCH_TESTS): the folder `test` of PyTorch's sources, of 2.6 or a release near it; its
files are not part of Firn. BUILD: a build folder; without it, the Firn that is installed in .venv.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "calls"))
import compare  # noqa: E402

FILES = {
    "test_cuda.py": (1, ["TestCuda", "TestCudaMallocAsync", "TestBlockStateAbsorption",
                         "TestMemPool"]),
    "test_cuda_trace.py": (1, ["TestCudaTrace"]),
    "test_cuda_multigpu.py": (2, ["TestCudaMultiGPU", "TestCudaComm"]),
}
MODES = {
    "native": "",
    "firn": "backend:firn",
    "pressure": "backend:firn,firn_host:4GiB,firn_watch:0",
    "adversarial": "backend:firn,firn_host:4GiB,firn_test_adversarial:1",
}
GPU_MEMORY = str((2 << 30) + (1 << 20))  # (half of it, rounded up, does not fit twice)
SECONDS = 150
BUDGET_LEAST = 64 << 20

# Minutes each, or they wait for what a GPU in software has not; only with --long.
LONG = ("test_allocator_fuzz", "test_cpp_memory_snapshot_pickle", "test_graph_cudnn_dropout",
        "test_cublas_multiple_threads_same_device",
        "with_amp_cache_disabled_allow_unused_input",
        "without_amp_allow_unused_input",
        "test_stream_event_nogil")  # compares times, which other programs change

ONE_MIB = "outside pools, blocks of exactly 1 MiB have frames of their own"
SPILLS = "what natively is out of memory spills"
TOO_LARGE = "one of its tensors is larger than the budget"
GRAPH = "all that a graph uses is on the GPU at once, and more than the budget"
WAITS = "expects a stream to be busy; spilling after every operator waits for it"
CACHED = "expects memory that was cached before it; spilling after every operator keeps none"
# Those that pass natively and cannot pass with Firn, by mode, with the reason.
DIFFERENT = {
    "firn": {
        "TestCudaMallocAsync.test_max_split_expandable": SPILLS,
        "TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph": ONE_MIB,
    },
    "pressure": {
        "TestCuda.test_out_of_memory_retry": TOO_LARGE,
        "TestCuda.test_set_per_process_memory_fraction": TOO_LARGE,
        "TestCudaMallocAsync.test_garbage_collect_expandable": TOO_LARGE,
        "TestCuda.test_cuda_graph_allocator_propagates_stream": GRAPH,
        "TestCuda.test_graph_debugdump": GRAPH,
        "TestCudaMallocAsync.test_allocator_settings": TOO_LARGE,
        "TestCudaMallocAsync.test_device_memory_used": TOO_LARGE,
        "TestBlockStateAbsorption.test_assigning_back_deleter_fns_to_tensor": GRAPH,
        "TestBlockStateAbsorption.test_resnet": GRAPH,
    },
    "adversarial": {
        "TestCuda.test_to_non_blocking": WAITS,
        "TestCuda.test_record_stream": WAITS,
        "TestCuda.test_cuda_graph_allocator_propagates_stream": CACHED,
        "TestCudaMultiGPU.test_caching_pinned_memory_multi_gpu": WAITS,
        "TestCudaMultiGPU.test_cuda_memory_leak_detection":
            "the leaked memory has left the GPU, and the check asks the driver too",
    },
}
for mode in ("pressure", "adversarial"):
    DIFFERENT[mode].update(DIFFERENT["firn"])


def settings_of(mode, devices, build, extensions):
    settings = compare.environment(build)
    settings.update(FIRN_GPU_MEMORY=GPU_MEMORY, FIRN_GPU_DEVICES=str(devices),
                    TORCH_EXTENSIONS_DIR=extensions, OMP_NUM_THREADS="2",
                    PATH=os.path.dirname(compare.PYTHON) + os.pathsep + os.environ["PATH"])
    if MODES[mode]:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = MODES[mode]
    return settings


def run_mode(mode, path, tests, options, extensions, tell):
    """{test: its line} of one file's tests, all of them natively and `tests` elsewhere."""
    devices, classes = FILES[path.name]
    command = [compare.PYTHON, str(HERE / "run_tests.py"), "--seconds", str(options.seconds)]
    pattern = options.only or ""
    if not options.long:
        pattern = "^(?!.*(%s))(?=.*(?:%s))" % ("|".join(LONG), pattern)
    command += ["--only", pattern]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if tests is not None:
            wanted = os.path.join(folder, "tests.json")
            with open(wanted, "w") as file:
                json.dump(tests, file)
            command += ["--tests", wanted]
        process = subprocess.Popen(command + [str(path), *classes], cwd=folder,
                                   env=settings_of(mode, devices, options.build, extensions),
                                   stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        for line in process.stdout:
            if line.startswith("@"):
                said = json.loads(line[1:])
                found[said["test"]] = said
                tell(mode, said)
        if process.wait() != 0:
            raise RuntimeError("%s, %s: ended with status %d" % (path, mode, process.returncode))
    return found


def half(peak):
    return max(BUDGET_LEAST, peak // 2 // (2 << 20) * (2 << 20))


def run_all(folder, options, tell=lambda mode, said: None):
    """{mode: {test: its line}}"""
    found = {mode: {} for mode in options.modes}
    with tempfile.TemporaryDirectory() as extensions:
        for name in FILES:
            path = pathlib.Path(folder).resolve() / name
            if not path.is_file():
                continue
            native = run_mode("native", path, None, options, extensions, tell)
            found["native"].update(native)
            passed = {test: said["peak"] for test, said in native.items()
                      if said["end"] == "passed"}
            for mode in options.modes:
                if mode == "native" or not passed:
                    continue
                tests = {test: half(peak) if mode == "pressure" else 0
                         for test, peak in passed.items()}
                found[mode].update(run_mode(mode, path, tests, options, extensions, tell))
    return found


def unexpected(found):
    """{(mode, test): what was said} of those that pass natively and ought to with Firn."""
    return {(mode, test): "%s: %s" % (said["end"], said["said"])
            for mode, lines in found.items() if mode != "native" for test, said in lines.items()
            if said["end"] != "passed" and test not in DIFFERENT[mode]}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default=os.environ.get("FIRN_TORCH_TESTS"))
    parser.add_argument("--build")
    parser.add_argument("--only")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a test has at most")
    options = parser.parse_args(words)
    options.modes = options.modes.split(",")
    wrong = [mode for mode in options.modes if mode not in MODES]
    if wrong:
        parser.error("no mode %s: there are %s" % (", ".join(wrong), ", ".join(MODES)))
    if "native" not in options.modes:
        options.modes.insert(0, "native")
    if options.only:
        re.compile(options.only)
    if not options.tests or not os.path.isfile(os.path.join(options.tests, "test_cuda.py")):
        parser.error("no PyTorch tests: --tests or FIRN_TORCH_TESTS is to name the folder that "
                     "holds test_cuda.py")
    return options


def main():
    options = parse(None)
    found = run_all(options.tests, options, lambda mode, said: print(
        "%s %s: %s %s" % (mode, said["test"], said["end"], said["said"]), file=sys.stderr))
    print(" | ".join(["test", *options.modes]))
    natively = [test for test, said in found["native"].items() if said["end"] == "passed"]
    for test, said in found["native"].items():
        ends = [found[mode].get(test, {}).get("end", "-") for mode in options.modes]
        print(" | ".join([test, *ends]))
    for mode in options.modes[1:]:
        passed = sum(said["end"] == "passed" for said in found[mode].values())
        print("%s: %d of %d tests that pass natively pass with Firn" % (
            mode, passed, len(natively)))
        for test, said in found[mode].items():
            if said["end"] != "passed":
                print("  %s: %s (%s)" % (test, said["said"] or said["end"],
                                         DIFFERENT[mode].get(test, "to be mended")))
    sys.exit(1 if unexpected(found) else 0)


if __name__ == "__main__":
    main()
