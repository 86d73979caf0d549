"""The inspected host (its files, programs, Docker Engine and intended server), findings of the checks, and fixes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.doctor import known_facts
from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host.machine import CompletedCommand
from sparkwright.host.module import Context
from sparkwright.shell import join

PROGRAM_TIMEOUT_S = 5.0
GB10 = "GB10"
#: placeholder for the login user in the command of a `Fix`
USER_PLACEHOLDER = "{user}"

Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class IntendedServer:
    """The server that the host's recipe describes; empty for a host without a recipe."""

    #: name of the host, for commands on the laptop
    name: str = ""
    recipe: str = ""
    container: str = ""
    port: int = 0
    image: str = ""
    #: platforms of the locked image; None if they are not in the lock
    platforms: tuple[str, ...] | None = None
    #: the engine's share of the memory
    utilization: float | None = None
    #: memory that must stay free in addition to the engine's
    reserve_bytes: int = 0
    ipc: str = ""
    model_dir: str = ""
    ollama: str = ""
    #: memory that the recipe's server needs, see `engine_memory` in project/recipe/scope.py
    engine_memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Host:
    """A host to inspect. Methods return None or an empty value for values that can't be determined."""

    context: Context
    #: the login user
    user: str
    server: IntendedServer = field(default_factory=IntendedServer)

    def read(self, path: str) -> str | None:
        """Return the contents of a file, or None if it does not exist or is not readable."""
        try:
            return self.context.machine.path(path).read_text(errors="replace")
        except OSError:
            return None

    def assignments(self, path: str) -> dict[str, str]:
        """Return the NAME=value lines of a file, without quotes and comments; empty if there is no file."""
        lines = (self.read(path) or "").splitlines()
        pairs = (line.strip().partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
        return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}

    def rows(self, path: str) -> list[list[str]]:
        """Return the colon-separated fields of each line of a file like /etc/passwd; empty if there is no file."""
        return [line.split(":") for line in (self.read(path) or "").splitlines()]

    def path_exists(self, path: str) -> bool:
        """Return True if a file or folder exists and is visible to this user."""
        try:
            return self.context.machine.path(path).exists()
        except OSError:
            return False

    def list_folder(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if there is no folder."""
        try:
            return sorted(path.name for path in self.context.machine.path(folder).iterdir())
        except OSError:
            return []

    def run_program(self, *argv: str, timeout_s: float = PROGRAM_TIMEOUT_S) -> CompletedCommand | None:
        """Run a program and return its result, or None if it is missing or does not finish in time.

        On a host that is simulated below another root, only programs below that root are run.
        """
        machine = self.context.machine
        program = argv[0]
        if machine.root:
            candidates = (machine.path(f"/usr/bin/{program}"), Path(machine.root).parent / "bin" / program)
            program = next((str(path) for path in candidates if path.exists()), "")
        try:
            completed = machine.run([program, *argv[1:]], timeout_s=timeout_s) if program else None
        except SparkwrightError:
            return None
        return None if completed is None or completed.code in (126, 127) else completed

    def read_output(self, *argv: str) -> str | None:
        """Return the output of a program, or None if it fails or is missing."""
        result = self.run_program(*argv)
        return result.out if result is not None and result.ok else None

    def processes(self, name: str) -> list[list[str]]:
        """Return the command lines of the processes with this name."""
        command_lines = []
        for pid in self.list_folder("/proc"):
            if pid.isdigit() and (self.read(f"/proc/{pid}/comm") or "").strip() == name:
                words = (self.read(f"/proc/{pid}/cmdline") or "").split("\0")
                command_lines.append([word for word in words if word])
        return command_lines

    def gpu(self) -> tuple[str, str] | None:
        """Return the GPU's name and driver version from nvidia-smi, or None if it prints none."""
        cells = self.gpu_cells(nvidia_smi.IDENTITY_VALUES)
        return (cells["name"], cells["driver"]) if cells else None

    def gpu_cells(self, values: Sequence[str]) -> dict[str, str]:
        """Return values of the GPU as printed by nvidia-smi; empty if it prints none."""
        return nvidia_smi.parse_cells(self.read_output(*nvidia_smi.query_command(values)) or "", values)

    def gpu_figures(self, values: Sequence[str]) -> dict[str, float | None]:
        """Return figures of the GPU; empty if nvidia-smi prints none."""
        return nvidia_smi.parse_figures(self.read_output(*nvidia_smi.query_command(values)) or "", values)

    def engine_info(self) -> dict[str, Any] | None:
        """Return the Docker Engine's /info, or None if it does not answer."""
        try:
            info: dict[str, Any] = self.context.docker().api.info()
        except Exception:  # Docker denies access, is down or restarting; the check `docker` reports the reason
            return None
        return info

    def memory(self) -> dict[str, int] | None:
        """Return the values in /proc/meminfo in bytes; None if it is not readable."""
        try:
            return self.context.machine.meminfo()
        except (OSError, ValueError):
            return None


def find_version(text: str) -> str:
    """Return the first version with at least two numbers in a string; empty if there is none."""
    match = re.search(r"(?<!\d)\d+(?:\.\d+)+", text)
    return match[0] if match else ""


def version_tuple(version: str) -> tuple[int, ...]:
    """Return a version as a comparable tuple: 580.95.05 is (580, 95, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a host."""

    check: str
    verdict: Verdict
    #: the observation, or why it could not be made
    evidence: str
    #: the command that fixes the problem; empty if there is none
    fix: str = ""
    #: source of the requirement
    source: str = ""
    #: name in `FIXES`; empty if sparkwright may not apply the fix
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def format_counts(verdicts: Iterable[str]) -> str:
    """Format the number of findings by verdict, such as "1 bad, 20 ok"."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[word]} {word}" for word in ("bad", "warning", "unknown", "ok") if counts[word])


# The fixes that `doctor --fix` applies.
#
# Each is an idempotent command, run as root, that restarts no engine and installs nothing. The DGX Dashboard updates packages.


@dataclass(frozen=True, slots=True)
class Fix:
    #: what the command does
    description: str
    #: the command, with USER_PLACEHOLDER for the login user
    argv: tuple[str, ...]

    def command(self, user: str) -> list[str]:
        return [user if word == USER_PLACEHOLDER else word for word in self.argv]

    def manual_command(self, user: str) -> str:
        """Return the command as a user would type it."""
        return f"sudo {join(self.command(user))}"


FIXES: dict[str, Fix] = {
    "docker group": Fix("adds the user to the docker group", ("usermod", "-aG", "docker", USER_PLACEHOLDER)),
    "docker at boot": Fix("starts Docker now and at boot", ("systemctl", "enable", "--now", "docker.service")),
    "linger": Fix(
        "keeps the user's services and shared memory after logout", ("loginctl", "enable-linger", USER_PLACEHOLDER)
    ),
    "CDI": Fix(
        "writes the CDI specification for this driver",
        ("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
    ),
    "CDI service": Fix(
        "writes the CDI specification for this driver", ("systemctl", "restart", known_facts.CDI_REFRESH_SERVICE)
    ),
    "clock": Fix("enables NTP (systemd-timesyncd)", ("timedatectl", "set-ntp", "true")),
    "locale": Fix("sets C.UTF-8 as the login locale", ("update-locale", "LANG=C.UTF-8")),
}
