"""Schedule a host's checks with the user's systemd, root's systemd or cron: units, crontab lines, and the commands in them."""

from __future__ import annotations

import contextlib
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
from sparkwright.shell import join
from sparkwright.trust.names import expand_home
from sparkwright.visible import one_line

Scope = Literal["user", "system", "cron"]
#: file in a runtime's folder that protects the runtime from removal while a scheduler uses it
IN_USE_MARK = "in-use"
PASSED_VARIABLES = ("DOCKER_HOST", "OLLAMA_HOST")
SERVICE_UNIT = "sparkwright-health.service"
TIMER_UNIT = "sparkwright-health.timer"
GUARD_UNIT = "sparkwright-guard.service"
WAKE_UNIT = "sparkwright-wake.service"
#: names of the processes of Debian's cron, of cronie and BusyBox, and of fcron
CRON_DAEMONS = ("cron", "crond", "fcron")
CRON_MARK = "# sparkwright health"
CRON_GUARD_MARK = "# sparkwright guard"
CRON_WAKE_MARK = "# sparkwright wake"

#: hardening for every unit, without namespaces: privileges, system calls, address families
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
#: hardening with mount namespaces: the programs can write only to their folders. /proc stays visible, because it shows which
#: processes hold memory. If the kernel restricts namespaces, as on Ubuntu 24.04 and DGX OS 7, a user's systemd can't create
#: them, and `health.install` omits this set
NAMESPACE_HARDENING: tuple[str, ...] = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
)
#: a user namespace, without which a user's systemd silently ignores NAMESPACE_HARDENING
USER_NAMESPACE_HARDENING: tuple[str, ...] = ("PrivateUsers=yes",)
#: hardening that requires root's systemd. ProtectClock is omitted: it would deny access to all devices, including the GPU
ROOT_HARDENING: tuple[str, ...] = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "KeyringMode=private",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
)
RESOURCE_LIMITS = ("Nice=5", "MemoryMax=2G", "TasksMax=256")
_PLAIN_WORD_PATTERN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
#: time limit for a check, in seconds
CHECK_TIMEOUT_S = 300
#: time limit for a check that may restart the server: a large model takes minutes to start, and twice that if a start fails
HEAL_TIMEOUT_S = 7200
#: time limit for hashing model files, in seconds: the time slice, and the last file that was started in it
HASH_TIMEOUT_S = 1500
#: how long stopping the wake service waits for a switch in progress, in seconds
WAKE_STOP_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Schedule:
    """The programs that a host's scheduler starts."""

    #: command line of the check
    check_command: Sequence[str]
    #: interval of the checks
    interval_s: float
    #: folders that the programs may write to
    writable_folders: Sequence[Path]
    #: environment variables, by name
    env: Mapping[str, str] = field(default_factory=dict)
    #: user that the programs run as, for root's systemd; empty for the user's own systemd
    user: str = ""
    #: True if the check may restart the server
    may_restart: bool = False
    #: True if the units are hardened with namespaces
    confined: bool = True
    #: command line of the memory guard
    guard_command: Sequence[str] = ()
    #: True if the check hashes the model's files in quiet hours
    may_hash_files: bool = False
    #: command line of the service that wakes servers on request; empty if requests may not wake servers
    wake_command: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler on this host."""

    scope: Scope
    #: owner of the home folder
    user: str
    #: settings file of the check
    settings_file: Path
    #: folder of the units; None for cron
    folder: Path | None

    @classmethod
    def from_scope(cls, scope: Scope, context: Context) -> Scheduler:
        """Return the scheduler of a scope. The checks run as the owner of the home folder, even if another user installs them."""
        home = context.machine.home
        folders = {"user": home / ".config/systemd/user", "system": Path("/etc/systemd/system"), "cron": None}
        user = pwd.getpwuid(home.stat().st_uid).pw_name
        return cls(scope, user, context.state.path / f"{settings.NAME}.json", folders[scope])

    @property
    def files(self) -> list[Path]:
        """The paths of the unit files, which may not exist; empty for cron."""
        names = (SERVICE_UNIT, TIMER_UNIT, GUARD_UNIT, WAKE_UNIT)
        return [self.folder / name for name in names] if self.folder else []

    @property
    def is_installed(self) -> bool:
        """True if units of this scope are installed; always False for cron."""
        return any(path.exists() for path in self.files)

    def build_schedule(self, check_settings: settings.Settings, context: Context, *, confined: bool) -> Schedule:
        """Return the schedule for these settings. confined: True to harden the units with namespaces."""
        env = {name: context.machine.env[name] for name in PASSED_VARIABLES if context.machine.env.get(name)}
        # a restart renames compile caches into the trash next to them, so both must be in one mount; "-": may not exist yet
        share_folder = Path(f"-{context.machine.home / own_folders.SHARE_FOLDER}")
        textfile_folder = [expand_home(check_settings.textfile)] if check_settings.textfile else []
        return Schedule(
            check_command(),
            check_settings.every_s,
            writable_folders=[context.state.path, share_folder, *textfile_folder],
            env=env,
            user=self.user if self.scope == "system" else "",
            may_restart=check_settings.heal != "none",
            confined=confined,
            guard_command=[
                sys.executable,
                "-I",
                "-S",
                start_guard.PROGRAM,
                "service",
                str(service_guard.folder(context.state)),
            ],
            may_hash_files=bool(check_settings.verify_every_s),
            wake_command=check_command("wake") if check_settings.wake else [],
        )

    def systemctl(self, context: Context, *words: str, timeout_s: float = 60) -> CompletedCommand:
        """Run systemctl for this scope."""
        scope_arguments = ["--user"] if self.scope == "user" else []
        return context.machine.run([*_bus_environment(), "systemctl", *scope_arguments, *words], timeout_s=timeout_s)


def find_scheduler(context: Context, *, system: bool) -> Scheduler:
    """Return the scheduler of this host: systemd if it is PID 1, otherwise cron. system: True for root's systemd."""
    has_systemd = context.machine.path("/run/systemd/system").is_dir()
    return Scheduler.from_scope("cron" if not has_systemd else "system" if system else "user", context)


def check_command(*words: str) -> list[str]:
    """Return the command line that runs a check (or with "wake" the wake service) with the running runtime."""
    script = Path(__file__).parents[1] / "runner/scheduled_checks.py"
    runtime_folder = find_runtime()
    return [sys.executable, "-I", str(script), *words, *([str(runtime_folder / "tag")] if runtime_folder else [])]


def find_runtime() -> Path | None:
    """Return the folder of the running uploaded runtime, or None if sparkwright is installed as a package."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "tag").exists() else None


def mark_in_use(runtime_folder: Path) -> None:
    """Protect a runtime from removal. The previous runtime remains protected until `release_runtimes`."""
    (runtime_folder / IN_USE_MARK).touch()


def release_runtimes(runtime_folder: Path, *, keep: str = "") -> None:
    """Remove the protection of all runtimes except one. keep: name of its folder; empty for none."""
    for path in runtime_folder.parent.glob(f"*/{IN_USE_MARK}"):
        if path.parent.name != keep:
            path.unlink(missing_ok=True)


def list_leftover_files(context: Context, check_settings: settings.Settings) -> Iterator[Path]:
    """Yield the files that checks, the guard and the wake service may have created. The installed files are not included."""
    servers = list(context.state.servers())
    names = [record.LATEST_FILE, record.HISTORY_FILE, store.LOCK_FILE, store.HEAL_LOCK_FILE, textfile.FILE]
    names += [
        f"{store.HISTORY_NAME}.json",
        f"{server_keys.HEAL_TOKEN_RECORD}.json",
        f"{turns.WAKE_RECORD}.json",
        turns.LOCK_FILE,
    ]
    names += [f"{record.HISTORY_FILE}.{n}" for n in range(1, record.MAX_ROTATED_FILES + 1)]
    yield from (service_guard.folder(context.state) / name for name in service_guard.FILE_NAMES)
    yield from context.state.path.glob(f"{model_hashes.STATE_PREFIX}*.json")
    folders = dict.fromkeys([context.state.path, *(server.records_folder for server in servers)])
    yield from (folder / name for folder in folders for name in names)
    if check_settings.textfile:
        server_names = dict.fromkeys(["", *(server.server for server in servers)])
        yield from (expand_home(check_settings.textfile) / textfile.shared_file(name) for name in server_names)


def _bus_environment() -> list[str]:
    """Return `env` with the address of the user's systemd, which is not set without a login session; empty if it is set."""
    folder = Path(f"/run/user/{os.getuid()}")
    is_missing = "XDG_RUNTIME_DIR" not in os.environ and folder.is_dir()
    return ["env", f"XDG_RUNTIME_DIR={folder}"] if is_missing else []


def render_guard_unit(schedule: Schedule) -> str:
    """Return the service unit of the memory guard."""
    rows = [
        *_run_settings(schedule, schedule.guard_command, ["Environment=MALLOC_ARENA_MAX=1"]),
        "Restart=on-failure",
        "RestartSec=10",
        "LimitMEMLOCK=infinity",
        *(["OOMScoreAdjust=-900"] if schedule.user else []),
        *_hardening_settings(schedule),
        *_install_section(schedule),
    ]
    return _render_unit("guard of the model server's memory", [], rows)


def render_wake_unit(schedule: Schedule) -> str:
    """Return the service unit of the wake service, which can complete a switch in progress when it is stopped."""
    rows = [
        *_run_settings(schedule, schedule.wake_command),
        "Restart=on-failure",
        "RestartSec=30",
        "KillMode=mixed",
        f"TimeoutStopSec={WAKE_STOP_TIMEOUT_S}",
        *RESOURCE_LIMITS,
        *_hardening_settings(schedule),
        *_install_section(schedule),
    ]
    return _render_unit("switch of the model servers on request", _ordering(schedule), rows)


def render_service_unit(schedule: Schedule) -> str:
    """Return the service unit of a check."""
    rows = ["Type=oneshot", *_run_settings(schedule, schedule.check_command)]
    rows += [f"TimeoutStartSec={_check_timeout_s(schedule):g}", *RESOURCE_LIMITS, *_hardening_settings(schedule)]
    return _render_unit("health of the model server", _ordering(schedule), rows)


def render_timer_unit(schedule: Schedule) -> str:
    """Return the timer unit, with a random delay that spreads the checks of a lab's hosts."""
    interval, delay = f"{schedule.interval_s:g}s", f"{min(60.0, schedule.interval_s / 10):g}s"
    rows = ["OnBootSec=2min", f"OnActiveSec={interval}", f"OnUnitActiveSec={interval}", f"RandomizedDelaySec={delay}"]
    rows += ["AccuracySec=5s", "", "[Install]", "WantedBy=timers.target"]
    return _render_unit("health of the model server, on a schedule", [], rows, section="Timer")


def _render_unit(description: str, order: Sequence[str], rows: Sequence[str], *, section: str = "Service") -> str:
    """Return the text of a unit.

    Args:
        description: description of the unit, after the program's name.
        order: settings that order the unit after others.
        rows: lines of `section` and of the sections after it.
        section: name of the section after [Unit].
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


def _run_settings(schedule: Schedule, command: Sequence[str], extra_settings: Sequence[str] = ()) -> list[str]:
    """Return the settings that run a program. extra_settings: settings that precede the environment variables."""
    return [
        *((f"User={_require_one_line(schedule.user)}",) if schedule.user else ()),
        f"ExecStart={' '.join(_escape_argument(word) for word in command)}",
        *extra_settings,
        *(f"Environment={_quote(f'{name}={value}')}" for name, value in sorted(schedule.env.items())),
    ]


def _hardening_settings(schedule: Schedule) -> list[str]:
    return [
        *HARDENING,
        *(NAMESPACE_HARDENING if schedule.confined else ()),
        *(USER_NAMESPACE_HARDENING if schedule.confined and not schedule.user else ()),
        *(f"ReadWritePaths={_quote(str(path))}" for path in (schedule.writable_folders if schedule.confined else ())),
        *(ROOT_HARDENING if schedule.user else ()),
    ]


def _check_timeout_s(schedule: Schedule) -> float:
    """Return how long a check may take. In a cluster, it may wait up to two intervals for a vote before a restart."""
    hashing_s = HASH_TIMEOUT_S if schedule.may_hash_files else 0
    return hashing_s + (HEAL_TIMEOUT_S + 2 * schedule.interval_s if schedule.may_restart else CHECK_TIMEOUT_S)


def render_cron_lines(schedule: Schedule) -> str:
    """Return the crontab lines for a host without systemd: the check, and a start of the guard and the wake service every minute.

    The guard and the wake service exit immediately if they are already running.
    """
    minutes = cron_interval_s(schedule.interval_s) // 60
    check_time_fields = f"*/{minutes} * * * *" if minutes < 60 else f"0 */{minutes // 60} * * *"
    env = ["env", *(f"{name}={value}" for name, value in sorted(schedule.env.items()))] if schedule.env else []
    lines = []
    for time_fields, command, marker in (
        (check_time_fields, schedule.check_command, CRON_MARK),
        ("* * * * *", schedule.guard_command, CRON_GUARD_MARK),
        ("* * * * *", schedule.wake_command, CRON_WAKE_MARK),
    ):
        if command:
            command_line = join([_require_one_line(word) for word in [*env, *command]])
            # the crontab's SHELL may be csh, which can't parse the redirection
            shell_command = join(["/bin/sh", "-c", f"exec {command_line} >/dev/null 2>&1"])
            lines.append(f"{time_fields} {shell_command} {marker}")
    return "\n".join(map(_escape_for_cron, lines))


def cron_interval_s(interval_s: float) -> int:
    """Return an interval that cron supports, in seconds: minutes up to 59 or hours up to 23, rounded down; at least a minute."""
    minutes = max(1, int(interval_s // 60))
    return 60 * (minutes if minutes < 60 else 60 * min(23, minutes // 60))


def is_cron_running() -> bool:
    """Return False if no process of this host has the name of a cron daemon."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended
            names.add(path.read_text().strip())
    return not names.isdisjoint(CRON_DAEMONS)


def _escape_for_cron(line: str) -> str:
    # cron removes the backslash before a percent sign and has no escape for a backslash, so quotes keep the two apart
    return line.replace("\\%", "\\''%").replace("%", "\\%")


def replace_cron_lines(crontab: str, lines: str) -> str:
    """Return a crontab with sparkwright's lines replaced. lines: the new lines; empty to remove them."""
    markers = (CRON_MARK, CRON_GUARD_MARK, CRON_WAKE_MARK)
    rows = [row for row in crontab.removesuffix("\n").split("\n") if not row.endswith(markers)] if crontab else []
    return "".join(f"{row}\n" for row in [*rows, *([lines] if lines else [])])


def _escape_argument(text: str) -> str:
    """Return an argument of a command for systemd, with specifiers and variables escaped."""
    return _quote(text.replace("$", "$$"))


def _quote(text: str) -> str:
    """Return a word of a setting in the syntax of systemd.syntax(7), quoted unless all of its characters are plain."""
    escaped = _require_one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if _PLAIN_WORD_PATTERN.fullmatch(text) else f'"{escaped}"'


def _require_one_line(text: str) -> str:
    """Return the text. Raises Refused if it contains a control character, as DOCKER_HOST or a path may."""
    if text != one_line(text):
        raise Refused(
            f"'{one_line(text, max_chars=120)}' has a control character and cannot be used in a systemd unit or crontab.",
            fix="Check DOCKER_HOST, OLLAMA_HOST, HOME and the arguments of `health.install`.",
        )
    return text
