"""A host made of files: those of the simulated Spark, which tests change."""

from collections.abc import Mapping
from pathlib import Path

from sparkwright.doctor.checks import CHECKS
from sparkwright.doctor.host import Finding, Host, IntendedServer
from sparkwright.sandbox import system
from sparkwright.units import GIB
from tests.modules.context import RecordingContext

MEMINFO = "MemTotal: {total} kB\nMemAvailable: {total} kB\nSwapTotal: 16777216 kB\nSwapFree: {swap_free} kB\n"
RELEASE = 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="{}"\n'
STATUS = "Name:\tpython3\nGroups:\t27 999 1000 \n"
INTENDED = IntendedServer(
    name="spark1",
    recipe="qwen",
    container="qwen35",
    image="vllm/vllm-openai:v0.32.0",
    platforms=("linux/amd64", "linux/arm64"),
    utilization=0.85,
    reserve_bytes=4 * GIB,
    ipc="host",
    ollama="unload",
)

SMI = (
    "case $1 in --query-gpu=util*) echo '{}' ;; --query-gpu=temp*) echo '61, 208, Not Active, Not Active' ;; "
    "--query-compute*) echo '{}' ;; *) echo 'NVIDIA GB10, 580.95.05' ;; esac"
)
FILES: dict[str, str] = {
    **system.FILES,
    "/proc/meminfo": MEMINFO.format(total=int(119.7 * GIB) // 1024, swap_free=16777216),
    "/etc/dgx-release": RELEASE.format("7.3.1"),
    "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
    "/etc/group": "root:x:0:\ndocker:x:999:ops\n",
    "/etc/passwd": "root:x:0:0::/root:/bin/bash\nops:x:1000:1000::/home/ops:/bin/bash\n",
    "/proc/self/status": STATUS,
    "/var/lib/systemd/linger/ops": "",
}
PROGRAMS: dict[str, str] = {
    **system.PROGRAMS,
    "nvidia-smi": SMI.format("0, 208, 5.1", ""),
    "getent": 'case "$1 $2" in "hosts spark-sandbox") echo "127.0.1.1 $2" ;; "ahosts hub.test") echo "192.0.2.7 STREAM" ;; '
    "*) exit 2 ;; esac",
}


def make_host(folder: Path, changes: Mapping[str, str | None], intended: IntendedServer = INTENDED) -> Host:
    """Return a healthy host with some files changed. A name without a slash is a program; None removes it."""
    files = {**FILES, **{f"/usr/bin/{name}": f"#!/bin/sh\n{script}\n" for name, script in PROGRAMS.items()}}
    for name, text in changes.items():
        path = name if name.startswith("/") else f"/usr/bin/{name}"
        files.pop(path, None)
        if text is not None:
            files[path] = text if name.startswith("/") else f"#!/bin/sh\n{text}\n"
    root, home = folder / "root", folder / "home"
    home.mkdir(parents=True)
    for name, text in files.items():
        file = Path(f"{root}{name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if name.startswith("/usr/bin"):
            file.chmod(0o755)
    context = RecordingContext(
        home, root=str(root), docker_host="unix:///nowhere/docker.sock", sandbox=True, architecture="aarch64",
        hub_url="https://hub.test", ollama_url="http://127.0.0.1:9",
    )  # fmt: skip
    return Host(context, "ops", intended)


def find_findings(checked: Host, check: str) -> dict[str, Finding]:
    """Return the findings of one check by name."""
    return {finding.check: finding for finding in CHECKS[check](checked)}
