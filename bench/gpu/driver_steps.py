"""Steps against the driver: the seam's conformance suite, what Firn believes, and bytes through
many spills and faults."""

import json
import os
import pathlib
import re

from results import Cut, Skip


def gtest(suite, step, binary, group, **more):
    """One check for each test of the group, in a process of its own: an error may be the context's
    for good. What a test recorded are figures."""
    suite.needs_build()
    driver = (suite.build / "backing/gpu/software/libcuda.so.1").resolve() if suite.software else \
        "libcuda.so.1"
    environment = suite.environment(FIRN_TEST_DRIVER=str(driver), **more)
    listed = step.run([suite.build / binary, "--gtest_list_tests", f"--gtest_filter={group}.*"],
                      environment, 60)
    for name in [line.strip() for line in listed.text.splitlines() if line.startswith("  ")]:
        try:
            one_test(suite, step, [suite.build / binary, f"--gtest_filter={group}.{name}"],
                     environment, name)
        except Cut as words:
            step.check(name, False, words)
            if step.time_left() < 2:
                raise
    if not step.row["checks"]:
        raise Skip("every test was skipped: " + str(step.row.get("left_out")))


def one_test(suite, step, command, environment, name):
    report = suite.work / f"{step.row['name']}-{name}.json"
    done = step.run([*command, f"--gtest_output=json:{report}"], environment, 60, ok=None)
    if not report.exists():
        step.check(name, False, f"ended with {done.rc}: {done.text[-1000:]}")
        return
    (test,) = json.loads(report.read_text())["testsuites"][0]["testsuite"]
    if test.get("result") == "SKIPPED":
        step.left_out(name, "; ".join(line for line in done.text.splitlines()
                                      if line and line[0] not in "[N")[-300:])
        return
    failures = [each["failure"] for each in test.get("failures", [])]
    step.check(name, not failures and done.rc == 0, "\n".join(failures)[:1500])
    recorded = {key: value for key, value in test.items() if key not in GTEST_KEYS}
    if recorded:
        step.figure(name, recorded)


GTEST_KEYS = {"name", "status", "result", "timestamp", "time", "classname", "failures", "file",
              "line", "skipped"}


def conformance(suite, step):
    gtest(suite, step, "tests/backing/gpu/gpu_driver_conformance_test", "DriverConformance")


def beliefs(suite, step):
    suite.needs_build()
    gtest(suite, step, "tests/backing/gpu/gpu_beliefs_test", "Belief",
          FIRN_TEST_KERNELS=str(suite.kernels()))


def cycles_program(suite, step):
    """The program, for the GPU in use."""
    if suite.software:
        return suite.build / "tests/gpu/program_cycles"
    return compiled_program(suite, step, "cycles")


def to_link_with(suite, step):
    """Something of the driver's soname that a program can be linked with: the toolkit's stub, the
    driver itself, or else the software GPU, which exports the same names. At run time the loader
    finds the driver."""
    import machine
    nvcc = machine.find_nvcc()
    if nvcc:
        for stub in sorted(pathlib.Path(nvcc).resolve().parents[1].glob("**/stubs/libcuda.so")):
            return stub
    for line in machine.said("sh", "-c", "PATH=$PATH:/sbin:/usr/sbin ldconfig -p").splitlines():
        if line.strip().startswith("libcuda.so.1 "):
            return line.split("=> ")[1].strip()
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, "libcuda.so.1")):
            return os.path.join(folder, "libcuda.so.1")
    step.left_out("link", "neither the toolkit's stub nor the driver's file: the software GPU's")
    return suite.build / "backing/gpu/software/libcuda.so.1"


def compiled_program(suite, step, name):
    """A program of tests/gpu over the driver API, compiled against the toolkit's <cuda.h> or the
    one that comes with torch."""
    import building
    import machine
    out = suite.work / "programs" / name
    if out.exists():
        return out
    out.parent.mkdir(exist_ok=True)
    source = suite.root / "tests/gpu" / (name + (".c" if name == "vector_c" else ".cpp"))
    told = machine.said(suite.python, str(suite.root / "backing/gpu/software/find_torch.py"))
    folders = [json.loads(told or "{}").get("cuda_include_dir"), "/usr/local/cuda/include"]
    include = next((folder for folder in folders
                    if folder and os.path.exists(os.path.join(folder, "cuda.h"))), None)
    if not include:
        raise Skip("no <cuda.h>: neither beside torch nor in /usr/local/cuda")
    words = ["cc"] if name == "vector_c" else ["c++", "-std=c++20"]
    step.run([*words, "-O1", "-DFIRN_REAL_CUDA", "-isystem", include, f"-I{suite.root}", "-o", out,
              source, to_link_with(suite, step), "-pthread", "-Wl,--allow-shlib-undefined"],
             building.environment(), 120)
    return out


def cycles(suite, step):
    """At half of the memory more than every other visit is a fault, and something was spilled."""
    suite.needs_build()
    # Threads, blocks each, MiB each, rounds.
    threads, blocks, mib, rounds = (3, 8, 1, 30) if suite.software else (4, 24, 8, 1500)
    stats = suite.work / "cycles.json"
    whole = threads * blocks * mib << 20
    environment = suite.environment(
        LD_PRELOAD=str(suite.build / "allocator/preload/libfirn_preload.so"),
        FIRN_STATS=str(stats), FIRN_BUDGET=str(whole // 2), FIRN_HOST=str(4 * whole + (64 << 20)))
    if suite.software:
        environment["FIRN_DEVICE"] = "software"
    done = step.run([cycles_program(suite, step), suite.kernels(), threads, blocks, mib, rounds],
                    environment)
    visits, wrong = map(int, re.search(r"visits (\d+) wrong (\d+)", done.text).groups())
    device = json.loads(stats.read_text())["devices"][0]
    each = mib << 20
    spilled = device["spilled_bytes"] // each
    faulted = (device["faulted_bytes"] + device["prefetched_bytes"]) // each
    step.figure("cycles", {
        "visits": visits, "spills": spilled, "faults": faulted, "block_bytes": each,
        "threads": threads, "seconds": round(done.seconds, 2), "stall_s": device["stall_s"],
        "host_out_bytes_s": device["measured_host_out_bytes_s"],
        "host_in_bytes_s": device["measured_host_in_bytes_s"], "trouble": device["trouble"]})
    step.check("every word was right", wrong == 0, wrong)
    # (In software three threads on two cores may find much where they left it.)
    least = visits // 50 if suite.software else 10000
    step.check(f"at least {least} spills", spilled >= least, spilled)
    step.check(f"at least {least} faults", faulted >= least, faulted)
    step.check("within the budget", device["peak_device_bytes"] <= device["budget_bytes"],
               device["peak_device_bytes"])
    step.check("nothing was lost", device["lost_blocks"] == 0)


STEPS = (
    ("conformance", "the driver seam's conformance suite", 60, conformance),
    ("beliefs", "what Firn believes of the driver, a test each", 90, beliefs),
    ("cycles", "bytes through 10,000 spills and faults: kernels, streams, threads", 120, cycles),
)
