"""The system files and programs of a simulated Spark that sparkwright uses, and the memory of its GPU.

One setting is deliberately wrong, so that `doctor` reports a finding: lingering is disabled for the user.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from sparkwright.host.state import write_atomically

BOOT_ID_PATH = "proc/sys/kernel/random/boot_id"
DRIVER_VERSION = "580.95.05"

FILES: dict[str, str] = {
    "/etc/dgx-release": 'DGX_NAME="DGX Spark (sandbox)"\nDGX_SWBUILD_VERSION="7.3.1"\nDGX_OTA_VERSION="7.3.1"\n',
    "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS (sandbox)"\nID=ubuntu\nVERSION_ID="24.04"\n',
    "/etc/hostname": "spark-sandbox\n",
    "/proc/1/comm": "systemd\n",
    "/proc/sys/kernel/hostname": "spark-sandbox\n",
    "/proc/sys/kernel/osrelease": "6.14.0-1013-nvidia\n",
    "/proc/driver/nvidia/version": (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {DRIVER_VERSION}  Release Build  (simulated)\n"
    ),
    f"/lib/firmware/nvidia/{DRIVER_VERSION}/gsp_ga10x.bin": "simulated\n",
    "/etc/cdi/nvidia.yaml": f"kind: nvidia.com/gpu\n# libcuda.so.{DRIVER_VERSION}\n",
    **{f"/sys/class/infiniband/{name}/ports/1/state": "1: DOWN\n" for name in ("rocep1s0f0", "rocep1s0f1")},
    "/usr/bin/nvidia-container-runtime-hook": "",
    "/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n",
    "/etc/default/locale": "LANG=en_US.UTF-8\n",
    "/run/systemd/timesync/synchronized": "",
    "/dev/shm/.sandbox": "",
}

PROGRAMS: dict[str, str] = {
    "nvidia-ctk": 'echo "NVIDIA Container Toolkit CLI version 1.17.8 (simulated)"',
    "systemctl": 'case "$1" in is-enabled) echo enabled ;; *) exit 1 ;; esac',
    "nvidia-spark-ota-check": 'echo "No updates are available (simulated)."',
    "locale": "printf 'C\\nC.utf8\\nPOSIX\\nen_US.utf8\\n'",
    "getent": 'case "$1 $2" in "hosts spark-sandbox") echo "127.0.1.1 $2" ;; *) exit 2 ;; esac',
}


def write_files(root: Path) -> None:
    """Write all files and programs below a root folder. The programs are in its usr/bin, which is not in PATH."""
    for name, text in FILES.items():
        write_file(Path(f"{root}{name}"), text)
    for name, script in PROGRAMS.items():
        write_file(root / "usr/bin" / name, f"#!/bin/sh\n{script}\n").chmod(0o755)

    if not (root / BOOT_ID_PATH).exists():
        set_new_boot_id(root)


def set_new_boot_id(root: Path) -> None:
    """Set a new boot id."""
    write_file(root / BOOT_ID_PATH, f"{uuid.uuid4()}\n")


def write_file(path: Path, text: str) -> Path:
    """Write a file, creating its folder if necessary, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Gpu:
    """The memory of the simulated GPU, by process.

    Args:
        file: file to keep up to date with a line `pid, name, MiB` for each process, or None.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lines: dict[int, str] = {}
        self._mutex = threading.Lock()
        self._write()

    def use(self, pid: int, name: str, size_bytes: int) -> None:
        """Set the GPU memory that a process uses; 0 removes the process."""
        with self._mutex:
            self._lines.pop(pid, None)
            if size_bytes:
                self._lines[pid] = f"{pid}, {name}, {size_bytes >> 20}"
            self._write()

    def _write(self) -> None:
        if self._file is not None:
            write_atomically(self._file, "".join(f"{line}\n" for line in self._lines.values()).encode())
