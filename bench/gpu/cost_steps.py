"""Steps that measure costs: the driver's calls, PyTorch's allocators, launches, spills, faults."""

import json
import re

from results import Failed


def last_json(text):
    for line in reversed(text.splitlines()):
        if line[:1] in "[{":
            return json.loads(line)
    raise Failed("no figures were printed")


def of_driver(suite, step):
    suite.needs_build()
    driver = (suite.build / "backing/gpu/software/libcuda.so.1").resolve() if suite.software else \
        "libcuda.so.1"
    done = step.run([suite.build / "bench/gpu/driver_costs", suite.kernels(),
                     *(["--small"] if suite.software else [])],
                    suite.environment(FIRN_TEST_DRIVER=str(driver)))
    found = last_json(done.text)
    for name, figures in found.items():
        step.figure(name, figures)
    if suite.software:
        return
    # What Firn's frames are sized by: a call's cost is a handle's, not a byte's.
    small, large = (sum(found["mapping"][f"frame_{mib}MiB"].values()) for mib in (2, 256))
    step.figure("a_frame_of_256MiB_costs_frames_of_2MiB", round(large / small, 2))


def under_load(suite, step):
    """Mapping calls beside work; what an exchange of one frame takes of the link's time for it."""
    suite.needs_build()
    driver = (suite.build / "backing/gpu/software/libcuda.so.1").resolve() if suite.software else \
        "libcuda.so.1"
    done = step.run([suite.build / "bench/gpu/mapping_load",
                     suite.root / "bench/gpu/ask/kernels.ptx",
                     *(["--small"] if suite.software else [])],
                    suite.environment(FIRN_TEST_DRIVER=str(driver)))
    found = last_json(done.text)
    for name, figures in found.items():
        step.figure(name, figures)
    step.check("each load, each size", all(
        0 < row[size]["unmap"][0] <= row[size]["unmap"][1] for row in found["loads"].values()
        for size in row if size.endswith("MiB")))
    # Map, access, unmap: by call for each handle, and by runs of eight.
    step.figure("exchange_us", {name: {size: {
        "each": round(sum(row[size][call][0] for call in ("map", "access", "unmap")), 1),
        "of 8": round(row[size]["map"][0] + (row[size]["access of 8"][0] +
                                             row[size]["unmap of 8"][0]) / 8, 1)}
        for size in row if size.endswith("MiB")} for name, row in found["loads"].items()})
    if suite.software:
        return
    rounds = {name: row["rounds of work meanwhile"] for name, row in found["loads"].items()}
    step.check("each load was at work meanwhile", all(
        count > 0 for name, count in rounds.items() if name != "idle"), rounds)
    waited = [f"{call} for {beside}" for beside, row in found["waiting"].items()
              for call, told in row.items() if told["waited"]]
    step.check("no mapping call waits for work that uses other memory", not waited, waited)
    for name in ("2 processes", "8 processes"):
        step.check(f"{name} were measured", "failed" not in found[name], found[name])


def of_access(suite, step):
    """Of the calls that map a frame, one was seen to wait for copies that have nothing to do with
    it: beside which work, and for how long."""
    suite.needs_build()
    driver = (suite.build / "backing/gpu/software/libcuda.so.1").resolve() if suite.software else \
        "libcuda.so.1"
    done = step.run([suite.build / "bench/gpu/access_load",
                     suite.root / "bench/gpu/ask/kernels.ptx",
                     *(["--small"] if suite.software else [])],
                    suite.environment(FIRN_TEST_DRIVER=str(driver)))
    found = last_json(done.text)
    for name, figures in found.items():
        step.figure(name, figures)
    step.check("access was given beside each kind of work", all(
        row["access"]["count"] > 0 for sizes in found.values() for row in sizes.values()))


def calls(suite, step):
    suite.needs_torch()
    command = [suite.python, suite.root / "bench/gpu/torch_costs.py", "calls",
               suite.build / "bench/overhead/libcalls.so", 1000 if suite.software else 100000]
    ways = {"native": {}, "firn": {"PYTORCH_CUDA_ALLOC_CONF": "backend:firn"},
            "firn, observed": {"PYTORCH_CUDA_ALLOC_CONF": "backend:firn,firn_watch:0"},
            "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}
    for name, words in ways.items():
        done = step.run(command, suite.python_environment(**words), 60)
        backend, figures = last_json(done.text)
        step.check(f"{name} was measured", backend == name.split(",")[0], backend)
        step.figure(name, {what: round(ns, 1) for what, ns in figures.items()})


def launches(suite, step):
    suite.needs_build()
    before = {"LD_PRELOAD": str(suite.build / "allocator/preload/libfirn_preload.so")}
    if suite.software:
        before["FIRN_DEVICE"] = "software"
    for name, words, budget in (("resident", [1000], None), ("after a shortage", ["short"],
                                                             "128MiB")):
        more = {**before, **({"FIRN_BUDGET": budget} if budget else {})}
        done = step.run([suite.build / "bench/preload/launch", suite.kernels("no_kernel.fatbin"),
                         *words], suite.environment(**more), 90)
        rows = re.findall(r"^(.+?)\s+driver alone +(-?[\d.]+) ns, added +(-?[\d.]+) ns",
                          done.text, re.M)
        step.check(f"{name}: figures", rows)
        step.figure(name, {" ".join(what.split()): {"driver_ns": float(alone),
                                                    "added_ns": float(added)}
                           for what, alone, added in rows})


def spills(suite, step):
    suite.needs_torch()
    # What is larger than host memory goes on to files.
    small = suite.software
    ways = (("host memory", "128MiB" if small else "4GiB", (2, 16) if small else (2, 32, 256, 1024),
             ()),
            ("files", "24MiB" if small else "192MiB", (64,) if small else (512, 1024),
             suite.spill_dirs(8 << 30)))
    for name, host, sizes, dirs in ways:
        if name == "files" and not dirs:
            step.left_out(name, "less than 8 GiB of disk are free")
            continue
        stats = suite.work / f"spills-{name.split()[0]}.json"
        before, environment = suite.firn_run(stats, "256MiB" if suite.software else "4GiB", host,
                                             dirs)
        done = step.run([*before, suite.python, suite.root / "bench/gpu/torch_costs.py", "spills",
                         *sizes], environment, 120)
        found = last_json(done.text)
        step.figure(name, found)
        step.check(f"{name}: bytes", all(each["right"] for each in found.values()), found)
        report = json.loads(stats.read_text())
        device = report["devices"][0]
        step.figure(f"{name}: read from files", report["store"]["read_bytes"])
        step.check(f"{name}: blocks moved", device["spilled_bytes"] > 0 and
                   device["faulted_bytes"] > 0)
        if dirs and not report["store"]["trouble"]:
            step.check("files: bytes went there and back", report["store"]["read_bytes"] > 0)


STEPS = (
    ("costs-driver", "the driver's calls and copies", 90, of_driver),
    ("costs-mapping", "mapping calls beside copies, kernels, other processes", 90, under_load),
    ("costs-access", "giving access beside copies of each kind", 60, of_access),
    ("costs-calls", "allocating, freeing, an observed operator, beside the others", 120, calls),
    ("costs-spills", "a spill and a fault, by size", 120, spills),
    ("costs-launches", "what a launch costs more", 60, launches),
)
