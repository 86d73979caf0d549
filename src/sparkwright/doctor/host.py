"""The host as the checks see it: its files, programs, engine, and what it is to serve; their findings, and the fixes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.doctor import known
from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host.machine import Completed
from sparkwright.host.module import Context
from sparkwright.shell import join

PROGRAM_S = 5.0
GB10 = "GB10"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The server that the host is to run; every field is empty for a host without a recipe."""

    #: the host's, for commands of the laptop
    name: str = ""
    recipe: str = ""
    container: str = ""
    port: int = 0
    image: str = ""
    #: of the locked image; None if the lock does not have them
    platforms: tuple[str, ...] | None = None
    #: the share of memory that the engine takes
    utilization: float | None = None
    #: what must stay free in addition to the engine's memory
    reserve_bytes: int = 0
    ipc: str = ""
    model_dir: str = ""
    ollama: str = ""
    #: what the recipe's server takes of the memory; see project/recipe/scope.engine_memory
    engine_memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Host:
    """The host as the checks see it. A question that could not be asked has the answer None: unknown, not good."""

    context: Context
    #: the login user
    user: str
    wanted: Wanted = field(default_factory=Wanted)

    def read(self, path: str) -> str | None:
        """Return a file of the system; None if it does not exist or is not readable."""
        try:
            return self.context.machine.path(path).read_text(errors="replace")
        except OSError:
            return None

    def assignments(self, path: str) -> dict[str, str]:
        """Return the NAME=value lines of a file, without quotes and comments; empty without the file."""
        lines = (self.read(path) or "").splitlines()
        pairs = (line.strip().partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
        return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}

    def rows(self, path: str) -> list[list[str]]:
        """Return the fields of each line of a file like /etc/passwd; empty without the file."""
        return [line.split(":") for line in (self.read(path) or "").splitlines()]

    def there(self, path: str) -> bool:
        """Return True if a file or folder exists and is visible to this user."""
        try:
            return self.context.machine.path(path).exists()
        except OSError:
            return False

    def names_in(self, folder: str) -> list[str]:
        """Return the names in a folder; empty without it."""
        try:
            return sorted(path.name for path in self.context.machine.path(folder).iterdir())
        except OSError:
            return []

    def output(self, *argv: str, timeout_s: float = PROGRAM_S) -> Completed | None:
        """Run a program and return its result; None if it is missing or does not finish in time.

        If the files are below another root, so are the programs: none of this machine's own is run.
        """
        machine = self.context.machine
        program = argv[0]
        if machine.root:
            laid = (machine.path(f"/usr/bin/{program}"), Path(machine.root).parent / "bin" / program)
            program = next((str(path) for path in laid if path.exists()), "")
        try:
            done = machine.run([program, *argv[1:]], timeout_s=timeout_s) if program else None
        except SparkwrightError:
            return None
        return None if done is None or done.code in (126, 127) else done

    def printed(self, *argv: str) -> str | None:
        """Return the output of a program; None if it fails, too."""
        answer = self.output(*argv)
        return answer.out if answer is not None and answer.ok else None

    def processes(self, name: str) -> list[list[str]]:
        """Return the command lines of the processes of this name."""
        found = []
        for pid in self.names_in("/proc"):
            if pid.isdigit() and (self.read(f"/proc/{pid}/comm") or "").strip() == name:
                words = (self.read(f"/proc/{pid}/cmdline") or "").split("\0")
                found.append([word for word in words if word])
        return found

    def gpu(self) -> tuple[str, str] | None:
        """Return (name, driver version) from nvidia-smi; None if it returns no data."""
        found = self.gpu_cells(nvidia_smi.IDENTITY)
        return (found["name"], found["driver"]) if found else None

    def gpu_cells(self, values: Sequence[str]) -> dict[str, str]:
        """Return these values of the GPU as nvidia-smi printed them; empty if it returns no data."""
        return nvidia_smi.cells(self.printed(*nvidia_smi.query(values)) or "", values)

    def gpu_figures(self, values: Sequence[str]) -> dict[str, float | None]:
        """Return these figures of the GPU; empty if nvidia-smi returns no data."""
        return nvidia_smi.figures(self.printed(*nvidia_smi.query(values)) or "", values)

    def engine_info(self) -> dict[str, Any] | None:
        """Return the Docker Engine's /info; None if it does not answer."""
        try:
            found: dict[str, Any] = self.context.docker().api.info()
        except Exception:  # refused, down, or restarting: the check `docker` reports which
            return None
        return found

    def memory(self) -> dict[str, int] | None:
        """Return /proc/meminfo in bytes."""
        try:
            return self.context.machine.meminfo()
        except (OSError, ValueError):
            return None


def version_in(text: str) -> str:
    """Return the first version of two numbers or more in a text; empty if there is none."""
    found = re.search(r"(?<!\d)\d+(?:\.\d+)+", text)
    return found[0] if found else ""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version for comparison: 580.95.05 is (580, 95, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a host."""

    check: str
    verdict: Verdict
    #: what was seen, or what could not be seen
    evidence: str
    #: the one command that fixes it; empty if none does
    fix: str = ""
    #: where it is documented that it matters
    source: str = ""
    #: a name in `FIXES`, if sparkwright may do it itself
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# The fixes that sparkwright may apply by itself.
#
# Each is one idempotent command as root that restarts no engine and installs nothing; packages are left to the DGX Dashboard.

USER = "{user}"


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix of a host."""

    #: what it changes
    says: str
    #: the command; {user} stands for the login user
    argv: tuple[str, ...]

    def command(self, user: str) -> list[str]:
        return [user if word == USER else word for word in self.argv]

    def manual_command(self, user: str) -> str:
        """Return the command as a user would type it."""
        return f"sudo {join(self.command(user))}"


FIXES: dict[str, Fix] = {
    "docker group": Fix("adds the user to the docker group", ("usermod", "-aG", "docker", USER)),
    "docker at boot": Fix("starts Docker now and at boot", ("systemctl", "enable", "--now", "docker.service")),
    "linger": Fix("keeps the user's services and shared memory after logout", ("loginctl", "enable-linger", USER)),
    "CDI": Fix(
        "writes the CDI specification for this driver",
        ("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
    ),
    "CDI service": Fix("writes the CDI specification for this driver", ("systemctl", "restart", known.CDI_REFRESH)),
    "clock": Fix("enables NTP (systemd-timesyncd)", ("timedatectl", "set-ntp", "true")),
    "locale": Fix("sets C.UTF-8 as the login locale", ("update-locale", "LANG=C.UTF-8")),
}
