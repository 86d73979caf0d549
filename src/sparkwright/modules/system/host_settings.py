"""Modules about files, packages, groups and settings of the host."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host import settings_table as table
from sparkwright.host.module import Context, StateModule
from sparkwright.host.settings_table import Setting
from sparkwright.protocol.result import Change, arg
from sparkwright.trust import bounds


class File(StateModule["File.Args", files.FileState]):
    """Create a file or a folder with this content, mode and owner, or remove it.

    A file is written to a temporary name and renamed, so that a reader sees either the old or the new content. A folder is
    created with its parents, and removed with everything in it. Fails without permission (the message recommends `become`).
    """

    @dataclass(frozen=True)
    class Args:
        path: str = arg("path; ~ is the user's home")
        state: Literal["file", "directory", "absent"] = arg("file, directory or absent", default="file")
        content: str | None = arg("the content of a file; null: leave it unchanged", default=None)
        mode: str = arg('permissions, such as "0644"', default="")
        owner: str = arg("owner", default="")
        group: str = arg("group", default="")

    def read(self, args: Args, context: Context) -> files.FileState:
        if args.content is not None and args.state == "directory":
            raise Refused(f"{args.path}: a directory has no `content`.", fix="Leave it out, or say `state: file`.")
        return files.FileState.read(context.machine.expand(args.path))

    def differences(self, args: Args, observed: files.FileState) -> list[Change]:
        return files.differences(self._intended_state(args), observed)

    def describe(self, args: Args, observed: files.FileState) -> dict[str, Any]:
        return {"path": str(observed.path)}

    def act(self, args: Args, observed: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        files.apply(self._intended_state(args), observed)
        return {}

    @staticmethod
    def _intended_state(args: Args) -> files.IntendedState:
        return files.IntendedState(args.state, args.mode, args.owner, args.group, args.content)


class Template(StateModule["Template.Args", files.FileState]):
    """Write a rendered template to a file.

    `src` in a playbook names a file in templates/; its rendered text arrives here as content. `validate` is a command that
    gets the new file's path as its last argument and must succeed before the existing file is replaced.
    """

    @dataclass(frozen=True)
    class Args:
        content: str = arg("the rendered template (in a playbook: `src`)")
        dest: str = arg("path; ~ is the user's home")
        mode: str = arg('permissions, such as "0644"', default="")
        owner: str = arg("owner", default="")
        group: str = arg("group", default="")
        validate: list[str] = arg("a command that checks the new file, as a list", default_factory=list)

    def read(self, args: Args, context: Context) -> files.FileState:
        return files.FileState.read(context.machine.expand(args.dest))

    def differences(self, args: Args, observed: files.FileState) -> list[Change]:
        return files.differences(self._intended_state(args), observed)

    def describe(self, args: Args, observed: files.FileState) -> dict[str, Any]:
        return {"path": str(observed.path)}

    def act(self, args: Args, observed: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        if args.validate:
            self._validate(args, context)
        files.apply(self._intended_state(args), observed)
        return {}

    @staticmethod
    def _intended_state(args: Args) -> files.IntendedState:
        return files.IntendedState("file", args.mode, args.owner, args.group, args.content)

    @staticmethod
    def _validate(args: Args, context: Context) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".new") as file:
            file.write(args.content)
            file.flush()
            answer = context.machine.run([*args.validate, file.name])
        if not answer.ok:
            raise Failed(f"{args.validate[0]} refuses the new {args.dest}: {(answer.err or answer.out).strip()[-300:]}")


#: on a Spark driver, firmware, kernel and CUDA come in pairs from the Dashboard's updates; apt can split them.
#: Source: NVIDIA's DGX OS update notes, NVCheckup.
PROTECTED_PACKAGES = ("nvidia-*", "libnvidia-*", "linux-image-*", "linux-modules-*", "cuda*", "dgx-*")


class Package(StateModule["Package.Args", dict[str, bool]]):
    """Install or remove Debian packages. Nothing is ever upgraded.

    Driver, kernel and CUDA packages are refused: on a Spark they are updated together with the firmware, from the DGX
    Dashboard.

    Fails without root (the message recommends `become`), for an unknown package, and if apt is locked for longer than a
    minute.
    """

    @dataclass(frozen=True)
    class Args:
        name: list[str] | str = arg("name of a package, or a list")
        state: Literal["present", "absent"] = arg("present or absent", default="present")
        allow_driver_packages: bool = arg("allow driver, kernel and CUDA packages", default=False)

    def read(self, args: Args, context: Context) -> dict[str, bool]:
        names = [args.name] if isinstance(args.name, str) else args.name
        for name in names:
            if not args.allow_driver_packages and any(fnmatch.fnmatch(name, pattern) for pattern in PROTECTED_PACKAGES):
                fix = "Update it through the DGX Dashboard, or set `allow_driver_packages: true`."
                why = "apt can leave it mismatched with the firmware"
                raise Refused(f"{name} is a driver, kernel or CUDA package; {why}.", fix=fix)
        answer = context.machine.run(["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names])
        installed = {row.split()[0] for row in answer.out.splitlines() if row.endswith(" installed")}
        return {name: name in installed for name in names}

    def differences(self, args: Args, observed: dict[str, bool]) -> list[Change]:
        intended = args.state == "present"
        words = {True: "installed", False: None}
        return [Change(name, words[there], words[intended]) for name, there in observed.items() if there != intended]

    def act(self, args: Args, observed: dict[str, bool], changes: list[Change], context: Context) -> dict[str, Any]:
        names = [change.field for change in changes]
        if args.state == "absent":
            self._apt(context, ["remove", *names])
            return {}
        install = ["install", "--no-install-recommends", "--no-upgrade", *names]
        try:
            self._apt(context, install)
        except Failed:
            context.note("not found or not reachable: refreshing the package lists")
            self._apt(context, ["update"])
            self._apt(context, install)
        return {}

    @staticmethod
    def _apt(context: Context, words: list[str]) -> None:
        base = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=60"]
        answer = context.machine.run([*base, *words], timeout_s=900)
        if answer.ok:
            return
        last = [line for line in answer.err.splitlines() if line.startswith("E:")] or answer.err.splitlines()
        if "are you root" in answer.err or "Permission denied" in answer.err:
            raise Failed(f"apt-get {words[0]} needs root.", fix="Add `become: true` to the task.")
        raise Failed(f"apt-get {words[0]}: {last[-1] if last else answer.code}")


@dataclass(frozen=True, slots=True)
class UserGroupState:
    """A group and the user's membership."""

    #: whether the group exists
    exists: bool
    #: membership in the group database, which a new login reads
    member: bool


class UserGroup(StateModule["UserGroup.Args", UserGroupState]):
    """Add a user to a group, or remove them. It takes effect at the user's next login.

    Returns: new_login_needed. Fails if the group does not exist, or without root (the message recommends `become`).
    """

    @dataclass(frozen=True)
    class Args:
        user: str = arg("the user's name")
        group: str = arg("the group's name")
        state: Literal["present", "absent"] = arg("member or not", default="present")

    def read(self, args: Args, context: Context) -> UserGroupState:
        answer = context.machine.run(["getent", "group", args.group])
        members = answer.out.strip().rpartition(":")[2].split(",")
        own = context.machine.run(["id", "-gn", args.user]).out.strip()
        return UserGroupState(answer.ok, args.user in members or own == args.group)

    def differences(self, args: Args, observed: UserGroupState) -> list[Change]:
        intended = args.state == "present"
        if observed.member == intended:
            return []
        words, why = {True: "member", False: None}, "takes effect at next login"
        return [Change(f"{args.user} in {args.group}", words[observed.member], words[intended], why)]

    def describe(self, args: Args, observed: UserGroupState) -> dict[str, Any]:
        return {"new_login_needed": observed.member != (args.state == "present")}

    def act(self, args: Args, observed: UserGroupState, changes: list[Change], context: Context) -> dict[str, Any]:
        if not observed.exists:
            fix = "Install the package that creates it (docker: docker.io)."
            raise Failed(f"there is no group {args.group}.", fix=fix)
        add = ["usermod", "-aG", args.group, args.user]
        answer = context.machine.run(add if args.state == "present" else ["gpasswd", "-d", args.user, args.group])
        if not answer.ok:
            fix = "Add `become: true` to the task." if "ermission denied" in answer.err else ""
            raise Failed(f"{args.user} and {args.group}: {answer.err.strip()}", fix=fix)
        return {"msg": "log in again for it to take effect"}


RECORD_FILE = "/var/lib/sparkwright/host-settings.json"
MAX_BYTES = 1 << 20
#: folders that are created with their first file and removed with the last
OWN_FOLDERS = ("ollama.service.d", "sparkwright")


@dataclass(frozen=True, slots=True)
class HostSettingsState:
    """The host's settings, and the record of what sparkwright changed."""

    #: content of the file of each setting; None if there is none
    files: Mapping[str, str | None] = field(default_factory=dict)
    #: current kernel values
    live: Mapping[str, str] = field(default_factory=dict)
    #: for each setting, what was there before
    record: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class HostSettings(StateModule["HostSettings.Args", HostSettingsState]):
    """Apply settings that keep the host cool and its memory free: one file each and the command that applies it.

    The previous state is first saved in /var/lib/sparkwright/host-settings.json, owned by root. `undo` restores exactly
    that; a file that somebody changed since is left alone, and reported by name after the others were restored. A setting
    that is null is not changed. Needs root (`become: true`); nothing is installed.

    Returns: settings (those in force, by the record). Fails if earlyoom is not installed, or a command fails.
    """

    @dataclass(frozen=True)
    class Args:
        clock_cap_mhz: int | None = arg(
            "highest SM clock, MHz (nvidia-smi -lgc), now and at boot; null: unchanged", default=None
        )
        swappiness: int | None = arg("vm.swappiness, 0 to 200; null: unchanged", default=None)
        earlyoom_percent: int | None = arg("earlyoom acts below this share of memory; null: unchanged", default=None)
        ollama_limits: dict[str, Any] = arg(
            "of Ollama's service: max_loaded_models, num_parallel (requests of a model, each with a context), context_length "
            "(tokens), keep_alive (as 5m); empty: as it is",
            default_factory=dict,
        )
        undo: bool = arg("restore the previous state instead", default=False)

    def read(self, args: Args, context: Context) -> HostSettingsState:
        try:
            settings = table.build_settings(
                args.clock_cap_mhz, args.swappiness, args.earlyoom_percent, args.ollama_limits
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        record = _read_record(context)
        names = {*record, *(setting.name for setting in settings)}
        texts = {name: _read_text(context, table.PATHS[name]) for name in table.PATHS if name in names}
        live = {
            name: (_read_text(context, path) or "").strip() for name, path in table.LIVE_PATHS.items() if name in names
        }
        return HostSettingsState(texts, live, record)

    def differences(self, args: Args, observed: HostSettingsState) -> list[Change]:
        if args.undo:
            return [Change(name, "set", "as before", table.PATHS[name]) for name in observed.record]
        changes = []
        for setting in _intended_settings(args):
            before, live = observed.files.get(setting.name), observed.live.get(setting.name, "")
            if setting.needs_file and before is None:
                raise Failed(f"{setting.name}: {table.PATHS[setting.name]} is missing.", fix=setting.needs_file)
            # its command failed, or the run was killed
            was_interrupted = not observed.record.get(setting.name, {}).get("applied", True)
            if before != setting.content(before or "") or was_interrupted or live not in ("", setting.value_text):
                current = live or setting.read_value(before or "")
                changes.append(Change(setting.name, current, setting.value_text, table.PATHS[setting.name]))
        return changes

    def describe(self, args: Args, observed: HostSettingsState) -> dict[str, Any]:
        return {"settings": sorted(observed.record)}

    def act(self, args: Args, observed: HostSettingsState, changes: list[Change], context: Context) -> dict[str, Any]:
        fields = {change.field for change in changes}
        if args.undo:
            return self._undo(observed, context)
        record = {name: dict(value) for name, value in observed.record.items()}
        for setting in _intended_settings(args):
            if setting.name not in fields:
                continue
            before = observed.files.get(setting.name)
            after = setting.content(before or "")
            entry = record.setdefault(setting.name, {"before": before, "live": observed.live.get(setting.name, "")})
            entry |= {"wrote": _digest(after), "applied": False}
            _write_record(context, record)
            _write_or_remove(context, table.PATHS[setting.name], after)
            _run_commands(context, setting.apply)
            entry["applied"] = True
            _write_record(context, record)
        return {"settings": sorted(record)}

    @staticmethod
    def _undo(observed: HostSettingsState, context: Context) -> dict[str, Any]:
        record, changed = {name: dict(value) for name, value in observed.record.items()}, []
        for name, kept in observed.record.items():
            now = observed.files.get(name)
            if not _is_restorable(now, kept):
                changed.append(table.PATHS[name])
                continue
            _run_commands(context, table.BEFORE_UNDO.get(name, ()) if now is not None else ())
            _write_or_remove(context, table.PATHS[name], kept.get("before"))
            _run_commands(context, table.undo_commands(name, str(kept.get("live") or "")))
            del record[name]
            _write_record(context, record)
        if changed:
            raise Refused(
                f"{' and '.join(changed)} {'were' if len(changed) > 1 else 'was'} changed since; nothing else is left to undo.",
                fix=f"Restore or remove by hand, or delete the entry in {RECORD_FILE}.",
            )
        return {"settings": sorted(record)}


def _is_restorable(now: str | None, entry: Mapping[str, Any]) -> bool:
    """Return True if a file is as sparkwright wrote it, is gone, or was never written because the run was killed before."""
    return (
        now is None or _digest(now) == entry.get("wrote") or (not entry.get("applied") and now == entry.get("before"))
    )


def _intended_settings(args: HostSettings.Args) -> list[Setting]:
    return table.build_settings(args.clock_cap_mhz, args.swappiness, args.earlyoom_percent, args.ollama_limits)


def _read_text(context: Context, path: str) -> str | None:
    """Read a file, None if it is unreadable. Raises Refused for one that could not be restored as it is."""
    try:
        content = context.machine.path(path).read_bytes()
    except OSError:
        return None
    if len(content) > MAX_BYTES:
        raise Refused(f"{path} is larger than {MAX_BYTES >> 20} MiB; it is left alone.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Refused(f"{path} is not a UTF-8 text file; it is left alone.") from None


def _read_record(context: Context) -> dict[str, dict[str, Any]]:
    text = _read_text(context, RECORD_FILE)
    try:
        record = bounds.parse_json((text or "{}").encode())
    except ValueError:
        raise Refused(
            f"{RECORD_FILE} is damaged: what was before is not known.", fix="Restore the host's settings by hand."
        ) from None
    rows = record.items() if isinstance(record, dict) else ()
    return {name: row for name, row in rows if name in table.PATHS and isinstance(row, dict)}


def _write_record(context: Context, record: Mapping[str, Any]) -> None:
    _write_or_remove(context, RECORD_FILE, json.dumps(record, indent=1) if record else None)


def _write_or_remove(context: Context, path: str, text: str | None) -> None:
    """Write a file with this content; remove it for None."""
    target = context.machine.path(path)
    if text is not None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    intended = files.IntendedState("file", "0644", content=text) if text is not None else files.IntendedState("absent")
    current = files.FileState.read(target)
    if files.differences(intended, current):
        files.apply(intended, current)
    if text is None and target.parent.name in OWN_FOLDERS:
        with contextlib.suppress(OSError):  # it holds another file
            target.parent.rmdir()


def _run_commands(context: Context, commands: tuple[tuple[str, ...], ...]) -> None:
    for argv in commands:
        answer = context.machine.run(list(argv))
        if not answer.ok:
            raise Failed(f"`{' '.join(argv)}` failed: {(answer.err or answer.out).strip()[-200:]}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
