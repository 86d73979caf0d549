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
from sparkwright.host.machine import CompletedCommand
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, server_keys, turns
from sparkwright.host.state import StateFolder
from sparkwright.shell import join
from sparkwright.trust.names import expand_home
from sparkwright.visible import one_line

Scope = Literal["user", "system", "cron"]
IN_USE_MARK = "in-use"  # file in a runtime's folder that keeps the runtime while a scheduler uses it
PASSED_VARIABLES = ("DOCKER_HOST", "OLLAMA_HOST")


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler on this host."""

    scope: Scope
    user: str
    #: settings file of the check
    settings_file: Path
    #: folder of the units; None for cron
    folder: Path | None

    @classmethod
    def from_scope(cls, scope: Scope, context: Context) -> Scheduler:
        """Return the scheduler of a scope. The user is the owner of this home, even if someone else runs this."""
        home = context.machine.home
        folders = {"user": home / ".config/systemd/user", "system": Path("/etc/systemd/system"), "cron": None}
        user = pwd.getpwuid(home.stat().st_uid).pw_name
        return cls(scope, user, context.state.path / f"{settings.NAME}.json", folders[scope])

    @property
    def files(self) -> list[Path]:
        """Return the unit files, which may not exist."""
        names = (SERVICE_UNIT, TIMER_UNIT, GUARD_UNIT, WAKE_UNIT)
        return [self.folder / name for name in names] if self.folder else []

    @property
    def is_installed(self) -> bool:
        """Return True if units of this kind are installed."""
        return any(path.exists() for path in self.files)

    def build_schedule(self, check_settings: settings.Settings, context: Context, *, confined: bool) -> Schedule:
        """Return the programs to start, the interval, and the folders that they may write to."""
        env = {name: context.machine.env[name] for name in PASSED_VARIABLES if context.machine.env.get(name)}
        # a restart renames compile caches into the trash next to them, so both must be in one mount; it may not exist yet
        share = Path(f"-{context.machine.home / own_folders.SHARE_FOLDER}")
        writable = [
            context.state.path,
            share,
            *([expand_home(check_settings.textfile)] if check_settings.textfile else []),
        ]
        user = self.user if self.scope == "system" else ""
        heals = check_settings.heal != "none"
        guard = guard_command(context.state)
        hashes = bool(check_settings.verify_every_s)
        wake_command = check_command("wake") if check_settings.wake else []
        return Schedule(
            check_command(), check_settings.every_s, writable, env, user, heals, confined, guard, hashes, wake_command
        )

    def systemctl(self, context: Context, *words: str, timeout_s: float = 60) -> CompletedCommand:
        """Run systemctl for this scope."""
        scope_arguments = ["--user"] if self.scope == "user" else []
        return context.machine.run([*_bus_environment(), "systemctl", *scope_arguments, *words], timeout_s=timeout_s)


def find_scheduler(context: Context, *, system: bool) -> Scheduler:
    """Return the scheduler of this host, which is systemd if that is PID 1, and otherwise cron."""
    has_systemd = context.machine.path("/run/systemd/system").is_dir()
    return Scheduler.from_scope("cron" if not has_systemd else "system" if system else "user", context)


def check_command(*words: str) -> list[str]:
    """Return the command line that runs a check, or with `wake` the wake service, using the running runtime."""
    script = Path(__file__).parents[1] / "runner/scheduled_checks.py"
    runtime_folder = find_runtime()
    return [sys.executable, "-I", str(script), *words, *([str(runtime_folder / "tag")] if runtime_folder else [])]


def guard_command(state: StateFolder) -> list[str]:
    """Return the command line of the memory guard."""
    return [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(service_guard.folder(state))]


def find_runtime() -> Path | None:
    """Return the folder of the running shipped runtime, or None if sparkwright is installed as a package."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "tag").exists() else None


def mark_in_use(runtime_folder: Path) -> None:
    """Keep this runtime for the scheduler, and the previous one until the scheduler uses this one, see `release_runtimes`."""
    (runtime_folder / IN_USE_MARK).touch()


def release_runtimes(runtime_folder: Path, *, keep: str = "") -> None:
    """Stop keeping runtimes for the scheduler, except the one with this name."""
    for path in runtime_folder.parent.glob(f"*/{IN_USE_MARK}"):
        if path.parent.name != keep:
            path.unlink(missing_ok=True)


def list_leftover_files(context: Context, check_settings: settings.Settings) -> Iterator[Path]:
    """Yield the files that checks leave behind, in addition to the installed ones."""
    state = context.state.path
    names = [record.LATEST_FILE, record.HISTORY_FILE, store.LOCK_FILE, store.HEAL_LOCK_FILE, textfile.FILE]
    names += [
        f"{store.HISTORY_NAME}.json",
        f"{server_keys.HEAL_TOKEN_RECORD}.json",
        f"{turns.WAKE_RECORD}.json",
        turns.LOCK,
    ]
    names += [f"{record.HISTORY_FILE}.{n}" for n in range(1, record.ROTATED_FILES + 1)]
    yield from (service_guard.folder(context.state) / name for name in service_guard.FILES)
    yield from state.glob(f"{model_hashes.STATE_PREFIX}*.json")
    folders = dict.fromkeys([state, *(server.records_folder for server in StateFolder(state).servers())])
    yield from (folder / name for folder in folders for name in names)
    if check_settings.textfile:
        shared = dict.fromkeys(["", *(server.server for server in StateFolder(state).servers())])
        yield from (expand_home(check_settings.textfile) / textfile.shared_file(name) for name in shared)


def _bus_environment() -> list[str]:
    """Return arguments that set the address of the user's systemd, which a shell without a login session may lack."""
    folder = Path(f"/run/user/{os.getuid()}")
    missing = "XDG_RUNTIME_DIR" not in os.environ and folder.is_dir()
    return ["env", f"XDG_RUNTIME_DIR={folder}"] if missing else []


# The files that schedule a host's checks: a systemd service and timer, or a crontab line.
#
# There are two sets of hardening. The first works for every unit. The second needs namespaces, which a user's systemd
# may not create if the kernel restricts them, as on Ubuntu 24.04 and therefore DGX OS 7; there `health.install` falls
# back to the first.

SERVICE_UNIT = "sparkwright-health.service"
TIMER_UNIT = "sparkwright-health.timer"
GUARD_UNIT = "sparkwright-guard.service"
WAKE_UNIT = "sparkwright-wake.service"
CRON_MARK = "# sparkwright health"
CRON_GUARD = "# sparkwright guard"
CRON_WAKE = "# sparkwright wake"

#: hardening without namespaces: privileges, system calls, address families
HARDENING: tuple[str, ...] = (
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
NAMESPACE_HARDENING: tuple[str, ...] = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
)
#: a user namespace, without which a user's systemd silently ignores the rows above
USER_NAMESPACE: tuple[str, ...] = ("PrivateUsers=yes",)
#: hardening that only root's systemd can do, without ProtectClock, which would close all devices including the GPU's
ROOT_HARDENING: tuple[str, ...] = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "KeyringMode=private",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
)
#: limits for programs that are not urgent
RESOURCE_LIMITS = ("Nice=5", "MemoryMax=2G", "TasksMax=256")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
#: time limit for a check in seconds; checks take seconds, restarts of big models minutes, and twice that if the first fails
CHECK_TIMEOUT_S = 300
HEAL_TIMEOUT_S = 7200
#: time limit for hashing model files in seconds: the time slice, and the last file started in it
HASH_TIMEOUT_S = 1500
#: how long a stop of the wake service waits for a switch in progress, in seconds
WAKE_STOP_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Schedule:
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


def render_guard_unit(schedule: Schedule) -> str:
    """Return the service unit of the memory guard."""
    rows = ["Restart=on-failure", "RestartSec=10", "LimitMEMLOCK=infinity"]
    rows += ["OOMScoreAdjust=-900"] if schedule.user else []
    description, environment = "guard of the model server's memory", ["Environment=MALLOC_ARENA_MAX=1"]
    return _render_unit(
        description,
        [],
        [
            *_run_settings(schedule, schedule.guard, environment),
            *rows,
            *_hardening_settings(schedule),
            *_install_section(schedule),
        ],
    )


def render_wake_unit(schedule: Schedule) -> str:
    """Return the unit of the service that wakes servers on request, which completes a switch in progress when it is stopped."""
    rows = [
        "Restart=on-failure",
        "RestartSec=30",
        "KillMode=mixed",
        f"TimeoutStopSec={WAKE_STOP_TIMEOUT_S}",
        *RESOURCE_LIMITS,
    ]
    service = [
        *_run_settings(schedule, schedule.wake),
        *rows,
        *_hardening_settings(schedule),
        *_install_section(schedule),
    ]
    return _render_unit("switch of the model servers on request", _ordering(schedule), service)


def render_service_unit(schedule: Schedule) -> str:
    """Return the service unit of a check."""
    rows = [f"TimeoutStartSec={_check_timeout_s(schedule):g}", *RESOURCE_LIMITS]
    service = ["Type=oneshot", *_run_settings(schedule, schedule.program), *rows, *_hardening_settings(schedule)]
    return _render_unit("health of the model server", _ordering(schedule), service)


def render_timer_unit(schedule: Schedule) -> str:
    """Return the timer unit, with a random delay so that the hosts of a lab do not all check at the same moment."""
    interval, delay = f"{schedule.every_s:g}s", f"{min(60.0, schedule.every_s / 10):g}s"
    rows = ["OnBootSec=2min", f"OnActiveSec={interval}", f"OnUnitActiveSec={interval}", f"RandomizedDelaySec={delay}"]
    rows += ["AccuracySec=5s", "", "[Install]", "WantedBy=timers.target"]
    return _render_unit("health of the model server, on a schedule", [], rows, section="Timer")


def _render_unit(description: str, order: Sequence[str], rows: Sequence[str], *, section: str = "Service") -> str:
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


def _ordering(schedule: Schedule) -> list[str]:
    return ["After=docker.service"] if schedule.user else []


def _install_section(schedule: Schedule) -> list[str]:
    return ["", "[Install]", f"WantedBy={'multi-user.target' if schedule.user else 'default.target'}"]


def _run_settings(schedule: Schedule, command: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Return the settings that run a program: the user, the command line, the given settings, and the variables."""
    return [
        *((f"User={_require_one_line(schedule.user)}",) if schedule.user else ()),
        f"ExecStart={' '.join(_escape_argument(item) for item in command)}",
        *extra,
        *(f"Environment={_quote(f'{name}={value}')}" for name, value in sorted(schedule.env.items())),
    ]


def _hardening_settings(schedule: Schedule) -> list[str]:
    """Return the settings that confine the services."""
    return [
        *HARDENING,
        *(NAMESPACE_HARDENING if schedule.confined else ()),
        *(USER_NAMESPACE if schedule.confined and not schedule.user else ()),
        *(f"ReadWritePaths={_quote(str(path))}" for path in (schedule.writes if schedule.confined else ())),
        *(ROOT_HARDENING if schedule.user else ()),
    ]


def _check_timeout_s(schedule: Schedule) -> float:
    """Return how long a check may take. In a cluster, a healing check first waits up to two intervals for the others."""
    hashing_s = HASH_TIMEOUT_S if schedule.hashes else 0
    return hashing_s + (HEAL_TIMEOUT_S + 2 * schedule.every_s if schedule.heals else CHECK_TIMEOUT_S)


def render_cron_lines(schedule: Schedule) -> str:
    """Return the crontab lines for a host without systemd: the check, and restarts of the programs that run all the time.

    Cron works in minutes and hours, so other intervals are rounded down. A program that is already running exits immediately when
    it is started again.
    """
    minutes = max(1, int(schedule.every_s // 60))
    when = f"*/{minutes} * * * *" if minutes < 60 else f"0 */{min(23, minutes // 60)} * * *"
    env = ["env", *(f"{k}={v}" for k, v in sorted(schedule.env.items()))] if schedule.env else []
    lines = [
        f"{when} {join([_require_one_line(item) for item in [*env, *schedule.program]])} >/dev/null 2>&1 {CRON_MARK}"
    ]
    for command, marker in ((schedule.guard, CRON_GUARD), (schedule.wake, CRON_WAKE)):
        if command:
            lines.append(
                f"* * * * * {join([_require_one_line(item) for item in [*env, *command]])} >/dev/null 2>&1 {marker}"
            )
    return "\n".join(map(_escape_for_cron, lines))


def _escape_for_cron(line: str) -> str:
    """Return a command line escaped for cron."""
    # cron removes the backslash before a percent sign and has no escape for a backslash, so quotes keep the two apart
    return line.replace("\\%", "\\''%").replace("%", "\\%")


def replace_cron_lines(table: str, lines: str) -> str:
    """Return a crontab in which sparkwright's lines are replaced with these; an empty text removes them."""
    markers = (CRON_MARK, CRON_GUARD, CRON_WAKE)
    rows = [row for row in table.removesuffix("\n").split("\n") if not row.endswith(markers)] if table else []
    return "".join(f"{row}\n" for row in [*rows, *([lines] if lines else [])])


def _escape_argument(text: str) -> str:
    """Return an argument of a command for systemd, with specifiers and variables escaped."""
    return _quote(text.replace("$", "$$"))


def _quote(text: str) -> str:
    """Return a word of a setting as in systemd.syntax(7), quoted unless all of its characters are known to be safe."""
    escaped = _require_one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if _PLAIN_WORD.fullmatch(text) else f'"{escaped}"'


def _require_one_line(text: str) -> str:
    """Return a word if it can't end a line. Raises Refused for a control character, which DOCKER_HOST or a path may contain."""
    if text != one_line(text):
        raise Refused(
            f"'{one_line(text, max_chars=120)}' has a control character and cannot be used in a systemd unit or crontab.",
            fix="Check DOCKER_HOST, OLLAMA_HOST, HOME and the arguments of `health.install`.",
        )
    return text
