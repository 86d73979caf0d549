"""The host as modules see it: its files, container engine, Ollama and hub.

On a real Spark everything is where Linux and the vendors put it. In the sandbox it is below one folder and on loopback ports:
only this file knows the difference, from the environment of the runner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sparkwright.errors import Failed

OLLAMA_PORT = 11434
WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")


def ollama_url(host: str) -> str:
    """Return the URL for a value of OLLAMA_HOST, as its client uses it; a wildcard address becomes loopback."""
    text = host.strip().strip("'\"")
    has_scheme = "://" in text
    parts = urlsplit(text if has_scheme else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    default = {"http": 80, "https": 443}.get(parts.scheme, OLLAMA_PORT) if has_scheme else OLLAMA_PORT
    name = parts.hostname or ""
    address = "127.0.0.1" if name in WILDCARD_ADDRESSES else f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{address}:{port or default}"


#: only root writes to these folders
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"  # not in an ordinary user's PATH; a root task needs it


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """A finished command: its exit code and its output (decoded, invalid bytes replaced)."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The host's paths and addresses, real or simulated."""

    #: prefix of /proc and /etc; "" on a real host
    root: str = ""
    home: Path = field(default_factory=Path.home)
    docker_host: str = ""
    ollama_url: str = "http://127.0.0.1:11434"
    #: source of models
    hub_url: str = "https://huggingface.co"
    architecture: str = field(default_factory=lambda: os.uname().machine)
    #: a simulated Spark; every report says so
    sandbox: bool = False
    #: environment of commands
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Machine:
        """Return this host, as the environment describes it."""
        env = os.environ if env is None else env
        return cls(
            root=env.get("SPARKWRIGHT_ROOT", ""),
            home=Path(env.get("HOME") or Path.home()),
            docker_host=env.get("DOCKER_HOST", ""),
            ollama_url=ollama_url(env.get("OLLAMA_HOST", "")),
            hub_url=env.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
            architecture=env.get("SPARKWRIGHT_ARCHITECTURE", os.uname().machine),
            sandbox="SPARKWRIGHT_ROOT" in env,
            env={**env, "LC_ALL": "C", "PATH": f"{env.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATH}"},
        )

    def path(self, absolute: str) -> Path:
        """Return the path of a system file, as in path("/proc/meminfo")."""
        return Path(self.root + absolute)

    def expand(self, path: str) -> Path:
        """Return a path from a user's file, with a leading ~ expanded to this user's home."""
        return self.home / path[2:] if path.startswith("~/") else self.home if path == "~" else Path(path)

    def free_bytes(self, folder: Path) -> int:
        """Return the free disk space of a folder. The sandbox simulates another disk (root/sandbox/disk_free)."""
        if self.sandbox:
            with contextlib.suppress(FileNotFoundError):
                return int(self.path("/sandbox/disk_free").read_text())
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def meminfo(self) -> dict[str, int]:
        """Return /proc/meminfo in bytes: MemTotal, MemAvailable, Cached, SwapTotal, SwapFree ..."""
        rows = (line.split() for line in self.path("/proc/meminfo").read_text().splitlines())
        return {row[0].rstrip(":"): int(row[1]) * (1024 if len(row) > 2 else 1) for row in rows if len(row) > 1}

    def _environment(self, program: str) -> dict[str, str]:
        """Return the environment of a program.

        sudo and the program it starts are only looked up in root's folders.
        """
        return {**self.env, "PATH": ROOT_PATH} if program == "sudo" and not self.sandbox else dict(self.env)

    def run(self, argv: Sequence[str], *, timeout_s: float = 30, stdin: str = "") -> CompletedCommand:
        """Run a program without a shell. A missing program is exit code 127.

        Raises Failed if it takes longer than timeout_s, or prints too much.
        """
        from sparkwright.host import output

        try:
            code, out, err = output.run(argv, stdin=stdin.encode(), timeout_s=timeout_s, env=self._environment(argv[0]))
        except FileNotFoundError:
            return CompletedCommand(127, "", f"{argv[0]}: not found")
        except PermissionError:
            return CompletedCommand(126, "", f"{argv[0]}: permission denied")
        except output.ProgramTimeout:
            raise Failed(f"{argv[0]} timed out after {timeout_s:g} s") from None
        except output.TooMuchOutput:
            raise Failed(f"{argv[0]} printed more than {output.MAX_BYTES >> 20} MiB") from None
        return CompletedCommand(code, out.decode(errors="replace"), err.decode(errors="replace"))
