"""The module about a systemd unit, and access to a unit's journal."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg
from sparkwright.visible import one_line

#: systemd.unit(5)
UNIT = re.compile(
    r"(?<![A-Za-z0-9:_.\\@-])[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|socket|timer|mount|path|slice|target|swap|automount|device|scope)"
)
PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result")
STARTED = ("active", "activating", "reloading")
SETTLE_S = 1.0  # a Type=simple unit counts as started before its program is found
ENABLED = ("enabled", "enabled-runtime", "static", "alias", "generated", "indirect")


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a systemd unit."""

    #: state of the unit file
    file: files.FileState
    #: output of `systemctl show`
    properties: dict[str, str]


class SystemdUnit(StateModule["SystemdUnit.Args", Found]):
    """A systemd unit has this content, is started or stopped, and comes up at boot or does not.

    systemd is told to reload only when the file changed. Units of the user need no root.

    Returns: active_state. Fails when systemd is not there, or the unit does not come up (with its last words).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("as ollama.service")
        content: str | None = arg("the unit file; null: the one that is there", default=None)
        state: Literal["started", "stopped", "restarted", "as it is"] = arg("its wanted state", default="as it is")
        enabled: bool | None = arg("start at boot; null: unchanged", default=None)
        scope: Literal["system", "user"] = arg("whose systemd", default="system")

    def read(self, args: Args, context: Context) -> Found:
        if not UNIT.fullmatch(args.name):
            raise Refused(f"'{one_line(args.name, at_most=80)}' is not a unit name.", fix="As in: ollama.service.")
        words = [*_systemctl(args), "show", args.name, "--property", ",".join(PROPERTIES)]
        answer = context.machine.run(words)
        if not answer.ok:
            raise Failed(f"systemd does not answer: {(answer.err or answer.out).strip()[-200:]}")
        properties = dict(line.partition("=")[::2] for line in answer.out.splitlines())
        return Found(files.FileState.at(_path(args, context)), properties)

    def differences(self, args: Args, found: Found) -> list[Change]:
        changes = []
        if args.content is not None:
            changes += files.differences(files.Wanted("file", "0644", content=args.content), found.file)
        active = found.properties.get("ActiveState", "inactive")
        if args.state == "restarted" or ((args.state == "started") != (active in STARTED) and args.state != "as it is"):
            changes.append(Change("state", active, args.state))
        enabled = found.properties.get("UnitFileState", "") in ENABLED
        if args.enabled is not None and args.enabled != enabled:
            changes.append(Change("enabled", enabled, args.enabled))
        return changes

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"active_state": found.properties.get("ActiveState", "unknown")}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        fields = {change.field for change in changes}
        if args.content is not None and fields & {"content", "state", "mode"}:
            wanted = files.Wanted("file", "0644", content=args.content)
            if files.differences(wanted, found.file):
                files.bring_about(wanted, found.file)
                self._ask(args, context, "daemon-reload")
        if "enabled" in fields:
            self._ask(args, context, "enable" if args.enabled else "disable", args.name)
        verbs = {"started": "start", "stopped": "stop", "restarted": "restart"}
        if "state" in fields and args.state in verbs:
            self._ask(args, context, verbs[args.state], args.name)
            if args.state != "stopped":
                self._stays_up(args, context)
        return {"active_state": self.read(args, context).properties.get("ActiveState", "unknown")}

    def _stays_up(self, args: Args, context: Context) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline_s:
            found = self.read(args, context).properties
            if found.get("ActiveState") == "failed" or found.get("Result", "success") != "success":
                last = last_words(context, args.name, args.scope)
                raise Failed(f"{args.name} does not stay running: {last}", fix=journal(args.name, args.scope))
            time.sleep(0.1)

    @staticmethod
    def _ask(args: Args, context: Context, *words: str) -> None:
        answer = context.machine.run([*_systemctl(args), *words], timeout_s=120)
        if not answer.ok:
            denied = "authentication required" in answer.err.lower() or "access denied" in answer.err.lower()
            fix = "Add `become: true` to the task." if denied else journal(args.name, args.scope)
            raise Failed(f"systemctl {' '.join(words)}: {answer.err.strip()[-300:]}", fix=fix)


def _systemctl(args: SystemdUnit.Args) -> list[str]:
    return ["systemctl", *(["--user"] if args.scope == "user" else [])]


def _path(args: SystemdUnit.Args, context: Context) -> Path:
    if args.scope == "user":
        return context.machine.home / ".config/systemd/user" / args.name
    return context.machine.path("/etc/systemd/system") / args.name


def journal(unit: str, scope: str) -> str:
    """Return the command that shows a unit's log. scope: user or system."""
    return f"On the host: `journalctl {'--user ' if scope == 'user' else ''}-u {unit} -n 20`."


def last_words(context: Context, unit: str, scope: str) -> str:
    """Return the last lines of a unit's journal, joined."""
    who = ["--user"] if scope == "user" else []
    answer = context.machine.run(["journalctl", *who, "-u", unit, "-n", "3", "-o", "cat", "--no-pager"])
    return " ".join(answer.out.split())[-300:] or "no output"
