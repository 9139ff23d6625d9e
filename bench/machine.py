"""Facts about the machine that figures depend on; printed and written beside every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

PACKAGES = ("viewtide", "lmdb", "msgpack", "pyzmq", "sqlglot", "psycopg")
#: File systems that keep nothing on a disk: a sync there costs nothing, and a "durable" figure means nothing.
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")

FDATASYNC_SAMPLES = 300
FDATASYNC_RECORD_BYTES = 1_000

Fact = str | int | float | dict[str, str]


def machine_facts(folder: Path) -> dict[str, Fact]:
    """`folder` is where the databases of the bench are."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "file_system": file_system(folder),
        "fdatasync_p50_us": fdatasync_p50_us(folder),
    }


def package_versions() -> dict[str, str]:
    versions = {"sqlite": sqlite3.sqlite_version}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def file_system(folder: Path) -> str:
    """The type of the file system that holds the folder: that of the deepest mount point above it."""
    deepest, kind = Path("/"), "unknown"
    resolved = folder.resolve()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, mount_type, *_ = line.split(" ")
        # /proc writes blanks in paths as \040.
        mounted = Path(mount_point.replace("\\040", " "))
        if resolved.is_relative_to(mounted) and mounted.is_relative_to(deepest):
            deepest, kind = mounted, mount_type
    return kind


def fdatasync_p50_us(folder: Path) -> float:
    """The cost of making one small record durable in a file that is already written in full, the best case of a log."""
    took_s: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(FDATASYNC_SAMPLES * FDATASYNC_RECORD_BYTES))
        file.flush()
        os.fsync(file.fileno())
        for i in range(FDATASYNC_SAMPLES):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * FDATASYNC_RECORD_BYTES, i * FDATASYNC_RECORD_BYTES)
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - begin)
    return round(statistics.median(took_s) * 1e6, 1)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
