"""The host as modules see it: its files, Docker, Ollama and the model hub.

On a real Spark, paths and addresses are the usual ones. In the sandbox, everything is below one folder and on loopback ports.
Only this file handles the difference, with settings from the runner's environment.
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
#: PATH for sudo: folders that only root can write to
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: folders of system programs that may be missing from an ordinary user's PATH
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def ollama_url(host: str) -> str:
    """Return Ollama's URL for a value of OLLAMA_HOST, with a wildcard address replaced with loopback."""
    text = host.strip().strip("'\"")
    has_scheme = "://" in text
    parts = urlsplit(text if has_scheme else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = None
    default_port = {"http": 80, "https": 443}.get(parts.scheme, OLLAMA_PORT) if has_scheme else OLLAMA_PORT
    hostname = parts.hostname or ""
    address = "127.0.0.1" if hostname in WILDCARD_ADDRESSES else f"[{hostname}]" if ":" in hostname else hostname
    return f"{parts.scheme}://{address}:{port or default_port}"


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """A command's exit code and output, with invalid UTF-8 replaced."""

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
    hub_url: str = "https://huggingface.co"
    architecture: str = field(default_factory=lambda: os.uname().machine)
    #: True for a simulated Spark; all reports mention it
    sandbox: bool = False
    #: environment for commands
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Machine:
        """Return this host, with the settings in the environment."""
        env = os.environ if env is None else env
        folders = (env.get("PATH") or os.defpath).split(os.pathsep)
        return cls(
            root=env.get("SPARKWRIGHT_ROOT", ""),
            home=Path(env.get("HOME") or Path.home()),
            docker_host=env.get("DOCKER_HOST", ""),
            ollama_url=ollama_url(env.get("OLLAMA_HOST", "")),
            hub_url=env.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"),
            architecture=env.get("SPARKWRIGHT_ARCHITECTURE", os.uname().machine),
            sandbox="SPARKWRIGHT_ROOT" in env,
            env={**env, "LC_ALL": "C", "PATH": os.pathsep.join(dict.fromkeys((*folders, *SYSTEM_FOLDERS)))},
        )

    def path(self, absolute_path: str) -> Path:
        """Return the path of a system file on this host, such as "/proc/meminfo"."""
        return Path(self.root + absolute_path)

    def expand(self, path: str) -> Path:
        """Return a path with a leading ~ expanded to this user's home."""
        return self.home / path[2:] if path.startswith("~/") else self.home if path == "~" else Path(path)

    def free_bytes(self, folder: Path) -> int:
        """Return the free bytes on a folder's disk. In the sandbox, the file sandbox/disk_free contains the number."""
        if self.sandbox:
            with contextlib.suppress(FileNotFoundError):
                return int(self.path("/sandbox/disk_free").read_text())
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def meminfo(self) -> dict[str, int]:
        """Return /proc/meminfo in bytes: MemTotal, MemAvailable, Cached, SwapTotal, SwapFree ..."""
        lines = (line.split() for line in self.path("/proc/meminfo").read_text().splitlines())
        return {
            words[0].rstrip(":"): int(words[1]) * (1024 if len(words) > 2 else 1) for words in lines if len(words) > 1
        }

    def run(self, argv: Sequence[str], *, timeout_s: float = 30, stdin: str = "") -> CompletedCommand:
        """Run a program without a shell. The exit code is 127 if it is missing and 126 if it can't be executed, as in a shell.

        Raises Failed if it takes longer than timeout_s or prints too much.
        """
        from sparkwright.host import output

        env = dict(self.env)
        if argv[0] == "sudo" and not self.sandbox:  # sudo and its program must come from root's folders
            env["PATH"] = ROOT_PATH
        try:
            code, out, err = output.run(argv, stdin=stdin.encode(), timeout_s=timeout_s, env=env)
        except FileNotFoundError:
            return CompletedCommand(127, "", f"{argv[0]}: not found")
        except OSError as error:  # no permission, or another processor's program
            return CompletedCommand(126, "", f"{argv[0]}: {(error.strerror or str(error)).lower()}")
        except output.ProgramTimeout:
            raise Failed(f"{argv[0]} timed out after {timeout_s:g} s") from None
        except output.TooMuchOutput:
            raise Failed(f"{argv[0]} printed more than {output.MAX_BYTES >> 20} MiB") from None
        return CompletedCommand(code, out.decode(errors="replace"), err.decode(errors="replace"))
