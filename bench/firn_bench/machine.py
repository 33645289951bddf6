"""What the suite ran on: in the results, and in the name of their file."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _said(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def describe() -> dict[str, Any]:
    import torch
    gpu = _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return {"processor": _processor(), "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "gpu": gpu or "none (the GPU in software)", "kernel": platform.release(),
            "python": platform.python_version(), "torch": torch.__version__,
            "firn": _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or "unknown",
            "load_before": os.getloadavg()[0]}


def kind(machine: dict[str, Any]) -> str:
    """Alike for machines whose figures may be compared."""
    gpu = machine["gpu"].split(",")[0] if not machine["gpu"].startswith("none") else "software"
    words = f"{gpu}-{machine['cores']}cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
