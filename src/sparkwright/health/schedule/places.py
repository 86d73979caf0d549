"""The scheduler of a host's checks and the program it starts: the user's systemd, root's systemd, or cron."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.health import check_history, model_hashes, record, store, textfile
from sparkwright.health.schedule import settings, units
from sparkwright.host.machine import Completed
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, server_keys, wakes
from sparkwright.host.state import StateFolder
from sparkwright.trust.names import below_home

Scope = Literal["user", "system", "cron"]
MARK = "in-use"  # in a runtime's folder: keeps it while a scheduler starts it
PASSED_ON = ("DOCKER_HOST", "OLLAMA_HOST")


@dataclass(frozen=True, slots=True)
class Place:
    """A scheduler of this host."""

    scope: Scope
    user: str
    #: the settings that the check reads
    settings_file: Path
    #: of the units; None for cron
    folder: Path | None

    @classmethod
    def of(cls, scope: Scope, context: Context) -> Place:
        """Return the place of a scheduler. The user is the owner of this home, whoever runs this."""
        home = context.machine.home
        folders = {"user": home / ".config/systemd/user", "system": Path("/etc/systemd/system"), "cron": None}
        user = pwd.getpwuid(home.stat().st_uid).pw_name
        return cls(scope, user, context.state.path / f"{settings.NAME}.json", folders[scope])

    @property
    def files(self) -> list[Path]:
        """The unit files, even if they do not exist."""
        names = (units.SERVICE, units.TIMER, units.GUARD, units.WAKE)
        return [self.folder / name for name in names] if self.folder else []

    @property
    def there(self) -> bool:
        """Return True if units of this kind are installed."""
        return any(path.exists() for path in self.files)

    def clock(self, given: settings.Settings, context: Context, *, confined: bool) -> units.Clock:
        """Return the program to start, its interval, and the folders that it may write to."""
        env = {name: context.machine.env[name] for name in PASSED_ON if context.machine.env.get(name)}
        # a restart moves compile caches into the trash beside them, by rename: one mount, missing on a host without any
        share = Path(f"-{context.machine.home / own_folders.SHARE}")
        writes = [context.state.path, share, *([below_home(given.textfile)] if given.textfile else [])]
        user = self.user if self.scope == "system" else ""
        heals = given.heal != "none"
        guard = guard_program(context.state)
        hashes = bool(given.verify_every_s)
        wake = program("wake") if given.wake else []
        return units.Clock(program(), given.every_s, writes, env, user, heals, confined, guard, hashes, wake)

    def systemctl(self, context: Context, *words: str, timeout_s: float = 60) -> Completed:
        """Run this scope's systemctl."""
        who = ["--user"] if self.scope == "user" else []
        return context.machine.run([*_bus(), "systemctl", *who, *words], timeout_s=timeout_s)


def find(context: Context, *, system: bool) -> Place:
    """Return the scheduler of this host: systemd if it is PID 1, else cron."""
    booted = context.machine.path("/run/systemd/system").is_dir()
    return Place.of("cron" if not booted else "system" if system else "user", context)


def program(*words: str) -> list[str]:
    """Return the command line of one check, or with `wake` of the wake service, with the running runtime."""
    script = Path(__file__).parents[2] / "runner/scheduled_checks.py"
    home = runtime()
    return [sys.executable, "-I", str(script), *words, *([str(home / "tag")] if home else [])]


def guard_program(state: StateFolder) -> list[str]:
    """Return the command line of the memory guard."""
    return [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]


def runtime() -> Path | None:
    """Return the folder of the running shipped runtime; None if sparkwright is installed as a package."""
    folder = Path(__file__).resolve().parents[4]
    return folder if (folder / "tag").exists() else None


def mark(runtime_folder: Path) -> None:
    """Keep this runtime for the scheduler. The previous one stays kept until the scheduler uses the new one: see `unmark`."""
    (runtime_folder / MARK).touch()


def unmark(runtime_folder: Path, *, but: str = "") -> None:
    """Stop keeping runtimes for a scheduler, except the one of this name."""
    for path in runtime_folder.parent.glob(f"*/{MARK}"):
        if path.parent.name != but:
            path.unlink(missing_ok=True)


def leavings(context: Context, given: settings.Settings) -> Iterator[Path]:
    """Yield every file that checks leave, besides the installed ones."""
    state = context.state.path
    names = [record.LATEST, record.HISTORY, store.LOCK, store.HEALING, textfile.FILE]
    names += [f"{check_history.NAME}.json", f"{server_keys.HEAL_TOKENS_NAME}.json", f"{wakes.NAME}.json", wakes.LOCK]
    names += [f"{record.HISTORY}.{n}" for n in range(1, record.ROTATED + 1)]
    yield from (service_guard.folder(context.state) / name for name in service_guard.FILES)
    yield from state.glob(f"{model_hashes.PREFIX}*.json")
    folders = dict.fromkeys([state, *(server.memory for server in StateFolder(state).servers())])
    yield from (folder / name for folder in folders for name in names)
    if given.textfile:
        shared = dict.fromkeys(["", *(server.server for server in StateFolder(state).servers())])
        yield from (below_home(given.textfile) / textfile.shared_file(name) for name in shared)


def _bus() -> list[str]:
    """Return words that set the address of the user's systemd, which a shell without a login session may lack."""
    folder = Path(f"/run/user/{os.getuid()}")
    missing = "XDG_RUNTIME_DIR" not in os.environ and folder.is_dir()
    return ["env", f"XDG_RUNTIME_DIR={folder}"] if missing else []
