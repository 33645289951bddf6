"""What the suite runs on: GPU, driver, versions, memory, disk, what is missing."""

import ctypes
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys

QUERY = ("name,driver_version,memory.total,memory.free,compute_mode,mig.mode.current,"
         "pcie.link.gen.current,pcie.link.width.current")


def said(*command, seconds=20):
    """What a command printed; '' where it is not there or does not end well."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus():
    """[{name, driver, total_mib, ...}] as nvidia-smi tells; more than one GPU is seen, one used."""
    found = []
    told = said("nvidia-smi", "--query-gpu=" + QUERY, "--format=csv,noheader,nounits")
    for line in told.splitlines():
        found.append(dict(zip(QUERY.split(","), (word.strip() for word in line.split(",")))))
    return found


ASK_DRIVER = """
import ctypes, json
cu = ctypes.CDLL("libcuda.so.1")
count, version, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
free, total, name = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.create_string_buffer(128)
result = cu.cuInit(0) or cu.cuDeviceGetCount(ctypes.byref(count))
cu.cuDriverGetVersion(ctypes.byref(version))
if not result and count.value:
    result = (cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or
              cu.cuCtxSetCurrent(context) or
              cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) or
              cu.cuDeviceGetName(name, 128, 0))
print(json.dumps({"result": result, "devices": count.value, "version": version.value,
                  "free_bytes": free.value, "total_bytes": total.value,
                  "name": name.value.decode()}))
"""


def ask_driver():
    """What the real driver says of its first device, asked in a process of its own; or why there is
    none: (answers, '') or (None, words)."""
    done = subprocess.run([sys.executable, "-c", ASK_DRIVER], capture_output=True, text=True,
                          timeout=120, env=on_one_gpu())
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or
                      ["libcuda.so.1: status %d" % done.returncode])[-1]
    answers = json.loads(done.stdout.splitlines()[-1])
    if answers["result"] != 0 or answers["devices"] == 0:
        return None, f"the driver answers {answers['result']}, {answers['devices']} devices"
    return answers, ""


def on_one_gpu():
    """The environment of everything that runs on the GPU: the first one only."""
    kept = without_firn()
    first = kept.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**kept, "CUDA_VISIBLE_DEVICES": first or "0"}


def without_firn():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_")) and name != "LD_PRELOAD"}


def find_nvcc():
    for path in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if path and os.access(path, os.X_OK):
            return path
    return None


def memory(name):
    match = re.search(rf"^{name}:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)
    return int(match[1]) << 10 if match else 0


def cgroup_memory():
    """The cgroup's limit, where one is set."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            word = pathlib.Path(path).read_text().strip()
        except OSError:
            continue
        if word.isdigit() and int(word) < 1 << 60:
            return int(word)
    return None


def host_memory():
    """What a job may still take, by the kernel and by the cgroup."""
    limit = cgroup_memory()
    return min(memory("MemAvailable"), limit) if limit else memory("MemAvailable")


def first_line(text):
    return (text.splitlines() or [""])[0]


def torch_of(python):
    """What the Python that was chosen has, by asking it; {} where it has no torch."""
    code = ("import json, sys, torch; print(json.dumps({'python': sys.version.split()[0], "
            "'torch': torch.__version__, 'cuda': torch.version.cuda, "
            "'cudnn': torch.backends.cudnn.version(), "
            "'nccl': '.'.join(map(str, torch.cuda.nccl.version())) "
            "if torch.distributed.is_nccl_available() else None}))")
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=180,
                              env=without_firn(), cwd="/")
    except subprocess.TimeoutExpired:
        return {"why": "import torch did not end within 180 s"}
    if done.returncode != 0:
        return {"why": (done.stderr.strip().splitlines() or ["?"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def describe(root, folder):
    """Everything that does not take a build. Never raises for what is missing."""
    disk = shutil.disk_usage(folder)
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0]
              for name in ("memlock", "fsize", "nofile")}
    libc = ctypes.CDLL(None)
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    sysctl = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
    nvcc = find_nvcc()
    return {
        "kernel": platform.release(), "machine": platform.machine(),
        "glibc": libc.gnu_get_libc_version().decode(), "cores": len(os.sched_getaffinity(0)),
        "processor": first_line(said("sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo")),
        "memory_bytes": memory("MemTotal"), "memory_available_bytes": memory("MemAvailable"),
        "cgroup_memory_bytes": cgroup_memory(), "disk_free_bytes": disk.free,
        "disk_filesystem": said("stat", "-f", "-c", "%T", str(folder)),
        "limits": {name: "unlimited" if value == resource.RLIM_INFINITY else value
                   for name, value in limits.items()},
        "io_uring_disabled": sysctl.read_text().strip() if sysctl.exists() else None,
        "huge_pages_bytes": memory("Hugetlb"),
        "gpus": gpus(), "nvcc": said(nvcc, "--version").splitlines()[-2:] if nvcc else None,
        "compiler": first_line(said("c++", "--version")), "meson": said("meson", "--version"),
        "ninja": said("ninja", "--version"), "commit": commit_of(root),
    }


def commit_of(root):
    told = said("git", "-C", str(root), "describe", "--always", "--dirty")
    kept = root / "bench/carry/commit"
    return told or (kept.read_text().strip() if kept.exists() else "unknown")


def notes_of(found, software):
    """What of the machine has a bearing on the steps, in words."""
    notes = []
    memlock = found["limits"]["memlock"]
    if memlock != "unlimited" and memlock < 64 << 20:
        notes.append(f"memlock is {memlock} bytes: io_uring's buffers may not be registered")
    if found["disk_free_bytes"] < 8 << 30:
        notes.append(f"{found['disk_free_bytes'] >> 20} MiB of disk are free: little is spilled")
    if software:
        return notes
    gpus = found["gpus"]
    if not gpus:
        notes.append("nvidia-smi tells nothing: the driver alone is asked")
    if any(gpu.get("mig.mode.current") == "Enabled" for gpu in gpus):
        notes.append("MIG: figures are of a part of the GPU")
    if len(gpus) > 1:
        notes.append(f"{len(gpus)} GPUs: the first one is used")
    version = found["driver"]["version"]
    used = found["driver"]["total_bytes"] - found["driver"]["free_bytes"]
    if used > 2 << 30:
        notes.append(f"{used >> 20} MiB of the GPU are in use by others: jobs are made to fit what "
                     "is free")
    if found["nvcc"] and version < 13000 and "release 13" in " ".join(found["nvcc"]):
        notes.append("a driver before CUDA 13: it may not take this nvcc's kernels")
    if version < 12020:
        notes.append("a driver before 12.2: no host memory at device addresses")
    return notes
