"""Scheduling of a host's checks, by the user's systemd, root's systemd or cron: the program to start, and the files."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparkwright.errors import Refused
from sparkwright.health import model_hashes, record, settings, store, textfile
from sparkwright.host.machine import Completed
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, server_keys, turns
from sparkwright.host.state import StateFolder
from sparkwright.shell import join
from sparkwright.trust.names import below_home
from sparkwright.visible import one_line

Scope = Literal["user", "system", "cron"]
MARK = "in-use"  # file in a runtime's folder that keeps the runtime while a scheduler uses it
PASSED_ON = ("DOCKER_HOST", "OLLAMA_HOST")


@dataclass(frozen=True, slots=True)
class Place:
    """A scheduler on this host."""

    scope: Scope
    user: str
    #: settings file of the check
    settings_file: Path
    #: folder of the units; None for cron
    folder: Path | None

    @classmethod
    def of(cls, scope: Scope, context: Context) -> Place:
        """Return the place of a scheduler. The user is the owner of this home, even if someone else runs this."""
        home = context.machine.home
        folders = {"user": home / ".config/systemd/user", "system": Path("/etc/systemd/system"), "cron": None}
        user = pwd.getpwuid(home.stat().st_uid).pw_name
        return cls(scope, user, context.state.path / f"{settings.NAME}.json", folders[scope])

    @property
    def files(self) -> list[Path]:
        """Return the unit files, which may not exist."""
        names = (SERVICE, TIMER, GUARD, WAKE)
        return [self.folder / name for name in names] if self.folder else []

    @property
    def there(self) -> bool:
        """Return True if units of this kind are installed."""
        return any(path.exists() for path in self.files)

    def clock(self, given: settings.Settings, context: Context, *, confined: bool) -> Clock:
        """Return the programs to start, the interval, and the folders that they may write to."""
        env = {name: context.machine.env[name] for name in PASSED_ON if context.machine.env.get(name)}
        # a restart renames compile caches into the trash next to them, so both must be in one mount; it may not exist yet
        share = Path(f"-{context.machine.home / own_folders.SHARE}")
        writes = [context.state.path, share, *([below_home(given.textfile)] if given.textfile else [])]
        user = self.user if self.scope == "system" else ""
        heals = given.heal != "none"
        guard = guard_program(context.state)
        hashes = bool(given.verify_every_s)
        wake = program("wake") if given.wake else []
        return Clock(program(), given.every_s, writes, env, user, heals, confined, guard, hashes, wake)

    def systemctl(self, context: Context, *words: str, timeout_s: float = 60) -> Completed:
        """Run systemctl for this scope."""
        who = ["--user"] if self.scope == "user" else []
        return context.machine.run([*_bus(), "systemctl", *who, *words], timeout_s=timeout_s)


def find_place(context: Context, *, system: bool) -> Place:
    """Return the scheduler of this host, which is systemd if that is PID 1, and otherwise cron."""
    booted = context.machine.path("/run/systemd/system").is_dir()
    return Place.of("cron" if not booted else "system" if system else "user", context)


def program(*words: str) -> list[str]:
    """Return the command line that runs a check, or with `wake` the wake service, using the running runtime."""
    script = Path(__file__).parents[1] / "runner/scheduled_checks.py"
    home = runtime()
    return [sys.executable, "-I", str(script), *words, *([str(home / "tag")] if home else [])]


def guard_program(state: StateFolder) -> list[str]:
    """Return the command line of the memory guard."""
    return [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]


def runtime() -> Path | None:
    """Return the folder of the running shipped runtime, or None if sparkwright is installed as a package."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "tag").exists() else None


def mark(runtime_folder: Path) -> None:
    """Keep this runtime for the scheduler. The previous runtime is kept until the scheduler uses this one, see `unmark`."""
    (runtime_folder / MARK).touch()


def unmark(runtime_folder: Path, *, but: str = "") -> None:
    """Stop keeping runtimes for the scheduler, except the one with this name."""
    for path in runtime_folder.parent.glob(f"*/{MARK}"):
        if path.parent.name != but:
            path.unlink(missing_ok=True)


def leavings(context: Context, given: settings.Settings) -> Iterator[Path]:
    """Yield the files that checks leave behind, in addition to the installed ones."""
    state = context.state.path
    names = [record.LATEST, record.HISTORY, store.LOCK, store.HEALING, textfile.FILE]
    names += [f"{store.HISTORY_NAME}.json", f"{server_keys.HEAL_TOKENS_NAME}.json", f"{turns.WAKES}.json", turns.LOCK]
    names += [f"{record.HISTORY}.{n}" for n in range(1, record.ROTATED + 1)]
    yield from (service_guard.folder(context.state) / name for name in service_guard.FILES)
    yield from state.glob(f"{model_hashes.PREFIX}*.json")
    folders = dict.fromkeys([state, *(server.memory for server in StateFolder(state).servers())])
    yield from (folder / name for folder in folders for name in names)
    if given.textfile:
        shared = dict.fromkeys(["", *(server.server for server in StateFolder(state).servers())])
        yield from (below_home(given.textfile) / textfile.shared_file(name) for name in shared)


def _bus() -> list[str]:
    """Return arguments that set the address of the user's systemd, which a shell without a login session may lack."""
    folder = Path(f"/run/user/{os.getuid()}")
    missing = "XDG_RUNTIME_DIR" not in os.environ and folder.is_dir()
    return ["env", f"XDG_RUNTIME_DIR={folder}"] if missing else []


# The files that schedule a host's checks: a systemd service and timer, or a crontab line.
#
# There are two sets of hardening. The first works for every unit. The second needs namespaces, which a user's systemd
# may not create if the kernel restricts them, as on Ubuntu 24.04 and therefore DGX OS 7; there `health.install` falls
# back to the first.

SERVICE = "sparkwright-health.service"
TIMER = "sparkwright-health.timer"
GUARD = "sparkwright-guard.service"
WAKE = "sparkwright-wake.service"
CRON_MARK = "# sparkwright health"
CRON_GUARD = "# sparkwright guard"
CRON_WAKE = "# sparkwright wake"

#: hardening without namespaces: privileges, system calls, address families
HARDENED: tuple[str, ...] = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "MemoryDenyWriteExecute=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "UMask=0077",
)
#: hardening with mount namespaces: the check can only write to its state folder. /proc stays visible, because it shows which
#: processes hold memory
CONFINED: tuple[str, ...] = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
)
#: a user namespace, without which a user's systemd silently ignores the rows above
USERS: tuple[str, ...] = ("PrivateUsers=yes",)
#: hardening that only root's systemd can do, without ProtectClock, which would close all devices including the GPU's
ROOTS: tuple[str, ...] = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "KeyringMode=private",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
)
#: limits for programs that are not urgent
LIMITED = ("Nice=5", "MemoryMax=2G", "TasksMax=256")
_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
#: time limit for a check in seconds; checks take seconds, restarts of big models minutes, and twice that if the first fails
CHECK_S = 300
HEAL_S = 7200
#: time limit for hashing model files in seconds: the time slice, and the last file started in it
HASH_S = 1500
#: how long a stop of the wake service waits for a switch in progress, in seconds
WAKE_STOP_S = 60


@dataclass(frozen=True, slots=True)
class Clock:
    """The programs that a host's scheduler starts."""

    #: command line of the check
    program: Sequence[str]
    every_s: float
    #: folders that the programs may write to
    writes: Sequence[Path]
    #: environment variables, by name
    env: Mapping[str, str] = field(default_factory=dict)
    #: user that the programs run as, for root's systemd; empty for the user's own systemd
    user: str = ""
    heals: bool = False
    #: True to use the namespaces
    confined: bool = True
    #: command line of the memory guard, which runs all the time
    guard: Sequence[str] = ()
    #: True if the check hashes the model's files in quiet hours
    hashes: bool = False
    #: command line of the service that wakes servers on request; empty if requests may not wake servers
    wake: Sequence[str] = ()


def guard_unit(clock: Clock) -> str:
    """Return the service unit of the memory guard."""
    rows = ["Restart=on-failure", "RestartSec=10", "LimitMEMLOCK=infinity"]
    rows += ["OOMScoreAdjust=-900"] if clock.user else []
    about, small = "guard of the model server's memory", ["Environment=MALLOC_ARENA_MAX=1"]
    return _unit(about, [], [*_run(clock, clock.guard, small), *rows, *_hardening(clock), *_installed(clock)])


def wake_unit(clock: Clock) -> str:
    """Return the unit of the service that wakes servers on request, which completes a switch in progress when it is stopped."""
    rows = ["Restart=on-failure", "RestartSec=30", "KillMode=mixed", f"TimeoutStopSec={WAKE_STOP_S}", *LIMITED]
    service = [*_run(clock, clock.wake), *rows, *_hardening(clock), *_installed(clock)]
    return _unit("switch of the model servers on request", _after(clock), service)


def service_unit(clock: Clock) -> str:
    """Return the service unit of a check."""
    rows = [f"TimeoutStartSec={_limit_s(clock):g}", *LIMITED]
    service = ["Type=oneshot", *_run(clock, clock.program), *rows, *_hardening(clock)]
    return _unit("health of the model server", _after(clock), service)


def timer_unit(clock: Clock) -> str:
    """Return the timer unit, with a random delay so that the hosts of a lab do not all check at the same moment."""
    every, delay = f"{clock.every_s:g}s", f"{min(60.0, clock.every_s / 10):g}s"
    rows = ["OnBootSec=2min", f"OnActiveSec={every}", f"OnUnitActiveSec={every}", f"RandomizedDelaySec={delay}"]
    rows += ["AccuracySec=5s", "", "[Install]", "WantedBy=timers.target"]
    return _unit("health of the model server, on a schedule", [], rows, section="Timer")


def _unit(description: str, order: Sequence[str], rows: Sequence[str], *, section: str = "Service") -> str:
    """Return the text of a unit.

    Args:
        description: description of the unit, after the program's name.
        order: settings that order it after other units.
        rows: lines of the unit's own section and of the sections after it.
        section: name of the unit's own section.
    """
    head = [
        "# written by sparkwright: `sparkwright health.install`",
        "[Unit]",
        f"Description=sparkwright: {description}",
    ]
    return "\n".join([*head, *order, "", f"[{section}]", *rows]) + "\n"


def _after(clock: Clock) -> list[str]:
    return ["After=docker.service"] if clock.user else []


def _installed(clock: Clock) -> list[str]:
    return ["", "[Install]", f"WantedBy={'multi-user.target' if clock.user else 'default.target'}"]


def _run(clock: Clock, words: Sequence[str], settings: Sequence[str] = ()) -> list[str]:
    """Return the settings that run a program: the user, the command line, the given settings, and the variables."""
    return [
        *((f"User={_shown(clock.user)}",) if clock.user else ()),
        f"ExecStart={' '.join(_word(item) for item in words)}",
        *settings,
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(clock.env.items())),
    ]


def _hardening(clock: Clock) -> list[str]:
    """Return the settings that confine the services."""
    return [
        *HARDENED,
        *(CONFINED if clock.confined else ()),
        *(USERS if clock.confined and not clock.user else ()),
        *(f"ReadWritePaths={_quoted(str(path))}" for path in (clock.writes if clock.confined else ())),
        *(ROOTS if clock.user else ()),
    ]


def _limit_s(clock: Clock) -> float:
    """Return how long a check may take. In a cluster, a healing check first waits up to two intervals for the others."""
    hashing_s = HASH_S if clock.hashes else 0
    return hashing_s + (HEAL_S + 2 * clock.every_s if clock.heals else CHECK_S)


def cron_line(clock: Clock) -> str:
    """Return the crontab lines for a host without systemd: the check, and restarts of the programs that run all the time.

    Cron works in minutes and hours, so other intervals are rounded down. A program that is already running exits immediately when
    it is started again.
    """
    minutes = max(1, int(clock.every_s // 60))
    when = f"*/{minutes} * * * *" if minutes < 60 else f"0 */{min(23, minutes // 60)} * * *"
    env = ["env", *(f"{k}={v}" for k, v in sorted(clock.env.items()))] if clock.env else []
    lines = [f"{when} {join([_shown(item) for item in [*env, *clock.program]])} >/dev/null 2>&1 {CRON_MARK}"]
    for words, mark in ((clock.guard, CRON_GUARD), (clock.wake, CRON_WAKE)):
        if words:
            lines.append(f"* * * * * {join([_shown(item) for item in [*env, *words]])} >/dev/null 2>&1 {mark}")
    return "\n".join(map(_of_cron, lines))


def _of_cron(line: str) -> str:
    """Return a command line escaped for cron."""
    # cron removes the backslash before a percent sign and has no escape for a backslash, so quotes keep the two apart
    return line.replace("\\%", "\\''%").replace("%", "\\%")


def with_cron(table: str, line: str) -> str:
    """Return a crontab in which sparkwright's lines are replaced with these; an empty text removes them."""
    ours = (CRON_MARK, CRON_GUARD, CRON_WAKE)
    rows = [row for row in table.removesuffix("\n").split("\n") if not row.endswith(ours)] if table else []
    return "".join(f"{row}\n" for row in [*rows, *([line] if line else [])])


def _word(text: str) -> str:
    """Return an argument of a command for systemd, with specifiers and variables escaped."""
    return _quoted(text.replace("$", "$$"))


def _quoted(text: str) -> str:
    """Return a word of a setting as in systemd.syntax(7), quoted unless all of its characters are known to be safe."""
    plain = _shown(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return plain if _PLAIN.fullmatch(text) else f'"{plain}"'


def _shown(text: str) -> str:
    """Return a word if it can't end a line. Raises Refused for a control character, which DOCKER_HOST or a path may contain."""
    if text != one_line(text):
        raise Refused(
            f"'{one_line(text, at_most=120)}' has a control character and cannot be used in a systemd unit or crontab.",
            fix="Check DOCKER_HOST, OLLAMA_HOST, HOME and the arguments of `health.install`.",
        )
    return text
