"""What produced a result: version, commit, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from ebl.version import __version__


def provenance(device: torch.device, processes: int = 1) -> dict[str, Any]:
    return {
        "version": __version__,
        "commit": _commit(),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _commit() -> str | None:
    """What EBL_COMMIT says; else the commit of the checkout this package runs from, with + if the package was changed since."""
    package = Path(__file__).parent
    if os.environ.get("EBL_COMMIT"):
        return os.environ["EBL_COMMIT"]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{model}, {threads} thread{'' if threads == 1 else 's'}"
