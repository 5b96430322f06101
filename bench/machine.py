"""What a figure must be read with: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cuvil.support.config import available_cpus


def machine_facts(root: Path) -> dict[str, Any]:
    """CPU, memory, load, system, Python, time and commit."""
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cpus": available_cpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(root),
    }
    if hasattr(os, "getloadavg"):
        facts["load_before"] = os.getloadavg()[0]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return facts


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _commit(root: Path) -> str | None:
    """The commit that is checked out, with a plus sign where files differ from it; None outside of a repository."""
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        status = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None  # no git
    return head.stdout.strip() + ("+" if status.stdout.strip() else "") if head.returncode == 0 else None
