"""The files that schedule a host's checks: a systemd service and timer, or a line of cron. Pure.

There are two sets of hardening. The first works for every unit. The second needs namespaces of its own, which a user's systemd
may not create if the kernel restricts them (Ubuntu 24.04, and so DGX OS 7, does): there `health.install` falls back to the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.shell import join
from sparkwright.visible import one_line

SERVICE = "sparkwright-health.service"
TIMER = "sparkwright-health.timer"
GUARD = "sparkwright-guard.service"
WAKE = "sparkwright-wake.service"
CRON_MARK = "# sparkwright health"
CRON_GUARD = "# sparkwright guard"
CRON_WAKE = "# sparkwright wake"

#: without namespaces: privileges, system calls, address families
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
#: with mount namespaces: the check writes its state folder, and reads the rest. /proc stays visible: it shows who holds memory
CONFINED: tuple[str, ...] = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
)
#: without a user namespace a user's systemd silently ignores the rows above
USERS: tuple[str, ...] = ("PrivateUsers=yes",)
#: only root's systemd can do these. Not ProtectClock: it closes every device, the GPU's too
ROOTS: tuple[str, ...] = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "KeyringMode=private",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
)
_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")
#: a check takes seconds; a restart of a big model takes minutes, twice if the first fails
CHECK_S = 300
HEAL_S = 7200
#: hashing model files: a slice of time, and the one file that was begun in it
HASH_S = 1500
#: a stop of the wake service waits so long for a switch that it has begun, seconds
WAKE_STOP_S = 60


@dataclass(frozen=True, slots=True)
class Clock:
    """The programs that a host's scheduler starts."""

    #: the words of the check
    program: Sequence[str]
    every_s: float
    #: folders that the programs may write to
    writes: Sequence[Path]
    #: environment variables, by name
    env: Mapping[str, str] = field(default_factory=dict)
    #: the user it runs as, for root's systemd; empty for the user's own systemd
    user: str = ""
    heals: bool = False
    #: with the namespaces
    confined: bool = True
    #: the words of the memory guard, which runs all the time
    guard: Sequence[str] = ()
    #: it hashes the model's files in quiet hours
    hashes: bool = False
    #: the words of the service that wakes servers on request; empty if no request may
    wake: Sequence[str] = ()


def guard(clock: Clock) -> str:
    """Return the service of the memory guard."""
    rows = [
        "# written by sparkwright: `sparkwright health.install`",
        "[Unit]",
        "Description=sparkwright: guard of the memory beside the model server",
        "",
        "[Service]",
        *((f"User={_shown(clock.user)}",) if clock.user else ()),
        f"ExecStart={' '.join(_word(item) for item in clock.guard)}",
        "Environment=MALLOC_ARENA_MAX=1",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(clock.env.items())),
        "Restart=on-failure",
        "RestartSec=10",
        "LimitMEMLOCK=infinity",
        *(("OOMScoreAdjust=-900",) if clock.user else ()),
        *_hardening(clock),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if clock.user else 'default.target'}",
    ]
    return "\n".join(rows) + "\n"


def wake(clock: Clock) -> str:
    """Return the service that wakes servers on request. Stopped, it ends the switch that it has begun."""
    rows = [
        "# written by sparkwright: `sparkwright health.install`",
        "[Unit]",
        "Description=sparkwright: switch of the model servers on request",
        *(("After=docker.service",) if clock.user else ()),
        "",
        "[Service]",
        *((f"User={_shown(clock.user)}",) if clock.user else ()),
        f"ExecStart={' '.join(_word(item) for item in clock.wake)}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(clock.env.items())),
        "Restart=on-failure",
        "RestartSec=30",
        "KillMode=mixed",
        f"TimeoutStopSec={WAKE_STOP_S}",
        "Nice=5",
        "MemoryMax=2G",
        "TasksMax=256",
        *_hardening(clock),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if clock.user else 'default.target'}",
    ]
    return "\n".join(rows) + "\n"


def _hardening(clock: Clock) -> list[str]:
    """Return the settings that confine the services."""
    return [
        *HARDENED,
        *(CONFINED if clock.confined else ()),
        *(USERS if clock.confined and not clock.user else ()),
        *(f"ReadWritePaths={_quoted(str(path))}" for path in (clock.writes if clock.confined else ())),
        *(ROOTS if clock.user else ()),
    ]


def service(clock: Clock) -> str:
    """Return the service of one check."""
    rows = [
        "# written by sparkwright: `sparkwright health.install`",
        "[Unit]",
        "Description=sparkwright: health of the model server",
        *(("After=docker.service",) if clock.user else ()),
        "",
        "[Service]",
        "Type=oneshot",
        *((f"User={_shown(clock.user)}",) if clock.user else ()),
        f"ExecStart={' '.join(_word(item) for item in clock.program)}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(clock.env.items())),
        f"TimeoutStartSec={_limit_s(clock):g}",
        "Nice=5",
        "MemoryMax=2G",
        "TasksMax=256",
        *_hardening(clock),
    ]
    return "\n".join(rows) + "\n"


def _limit_s(clock: Clock) -> float:
    """Return how long a check may take. In a cluster one that heals first waits for the others, up to two intervals."""
    hashing_s = HASH_S if clock.hashes else 0
    return hashing_s + (HEAL_S + 2 * clock.every_s if clock.heals else CHECK_S)


def timer(clock: Clock) -> str:
    """Return the timer, with a random delay: not all hosts of a lab at the same moment."""
    every = f"{clock.every_s:g}s"
    rows = [
        "# written by sparkwright: `sparkwright health.install`",
        "[Unit]",
        "Description=sparkwright: health of the model server, on a schedule",
        "",
        "[Timer]",
        "OnBootSec=2min",
        f"OnActiveSec={every}",
        f"OnUnitActiveSec={every}",
        f"RandomizedDelaySec={min(60.0, clock.every_s / 10):g}s",
        "AccuracySec=5s",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return "\n".join(rows) + "\n"


def cron_line(clock: Clock) -> str:
    """Return the lines for a host without systemd: the check, and the restart of the programs that run all the time.

    Cron counts in minutes and hours; an interval in between is rounded down. A program that finds another one running exits at
    once.
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
    # cron removes the backslash before a percent sign, and has no escape for a backslash: quotes keep the two apart
    return line.replace("\\%", "\\''%").replace("%", "\\%")


def with_cron(table: str, line: str) -> str:
    """Return a crontab with these lines as sparkwright's only ones; an empty text removes them."""
    ours = (CRON_MARK, CRON_GUARD, CRON_WAKE)
    rows = [row for row in table.removesuffix("\n").split("\n") if not row.endswith(ours)] if table else []
    return "".join(f"{row}\n" for row in [*rows, *([line] if line else [])])


def _word(text: str) -> str:
    """Return a word of a command for systemd, with its specifiers and variables escaped."""
    return _quoted(text.replace("$", "$$"))


def _quoted(text: str) -> str:
    """Return a word of a setting, by systemd.syntax(7): in quotes unless all of its characters are known to be plain."""
    plain = _shown(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return plain if _PLAIN.fullmatch(text) else f'"{plain}"'


def _shown(text: str) -> str:
    """Return a word that can't end a line. Raises Refused for a control character, which DOCKER_HOST or a path may hold."""
    if text != one_line(text):
        raise Refused(
            f"'{one_line(text, at_most=120)}' has a control character and cannot be used in a systemd unit or crontab.",
            fix="Check DOCKER_HOST, OLLAMA_HOST, HOME and the arguments of `health.install`.",
        )
    return text
