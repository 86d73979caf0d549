"""Modules for the host's files, packages, groups and settings."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host import settings_table as table
from sparkwright.host.module import Context, StateModule
from sparkwright.host.settings_table import Setting
from sparkwright.protocol.result import Change, arg
from sparkwright.protocol.signature import FileMode
from sparkwright.trust import bounds
from sparkwright.visible import one_line

#: on a Spark these match the firmware only if the DGX Dashboard updates them together; apt can leave them mismatched.
#: Source: NVIDIA's DGX OS update notes, NVCheckup.
PROTECTED_PACKAGES = ("nvidia-*", "libnvidia-*", "linux-image-*", "linux-modules-*", "cuda*", "dgx-*")

RECORD_FILE = "/var/lib/sparkwright/host-settings.json"
MAX_FILE_BYTES = 1 << 20
#: folders with files of sysctl and systemd; a file hides those of the same name in the folders before
CONFIGURATION_FOLDERS = ("/usr/lib", "/usr/local/lib", "/run", "/etc")
#: names of folders that are removed with their last file
OWN_FOLDERS = ("ollama.service.d", "sparkwright")


class File(StateModule["File.Args", files.FileState]):
    """Create a file or a folder with the given content, mode and owner, or remove it.

    A file is written to a temporary name and renamed, so that a reader sees either the old or the new content. A folder is
    created with its parents, and removed with its contents.

    Returns: path. Fails without permission (the message recommends `become`).
    """

    @dataclass(frozen=True)
    class Args:
        path: str = arg("path; ~ is the user's home")
        state: Literal["file", "directory", "absent"] = arg("file, directory or absent", default="file")
        content: str | None = arg("content of the file; null: unchanged", default=None)
        mode: FileMode = arg('permissions, such as "0644"', default="")
        owner: str = arg("owner", default="")
        group: str = arg("group", default="")

    def read(self, args: Args, context: Context) -> files.FileState:
        if args.content is not None and args.state == "directory":
            raise Refused(f"{args.path}: a directory has no `content`.", fix="Remove it, or set `state: file`.")
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

    `src` in a playbook names a file in templates/; its rendered text is passed as `content`. The command in `validate` is
    run with the new file's path as its last argument; if it fails, the existing file is kept.

    Returns: path.
    """

    @dataclass(frozen=True)
    class Args:
        content: str = arg("the rendered template (in a playbook: `src`)")
        dest: str = arg("path; ~ is the user's home")
        mode: FileMode = arg('permissions, such as "0644"', default="")
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
            completed = context.machine.run([*args.validate, file.name])
        if not completed.ok:
            raise Failed(
                f"{args.validate[0]} rejects the new {args.dest}: {(completed.err or completed.out).strip()[-300:]}"
            )


class Package(StateModule["Package.Args", dict[str, bool]]):
    """Install or remove Debian packages. Nothing is ever upgraded.

    Driver, kernel and CUDA packages are refused: on a Spark the DGX Dashboard updates them together with the firmware.

    Fails without root (the message recommends `become`), for an unknown package, and if apt stays locked for a minute.
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
                reason = "apt can leave it mismatched with the firmware"
                raise Refused(f"{name} is a driver, kernel or CUDA package; {reason}.", fix=fix)
        completed = context.machine.run(
            ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names]
        )
        installed_packages = {row.split()[0] for row in completed.out.splitlines() if row.endswith(" installed")}
        return {name: name in installed_packages for name in names}

    def differences(self, args: Args, observed: dict[str, bool]) -> list[Change]:
        intended = args.state == "present"
        labels = {True: "installed", False: None}
        return [
            Change(name, labels[is_installed], labels[intended])
            for name, is_installed in observed.items()
            if is_installed != intended
        ]

    def act(self, args: Args, observed: dict[str, bool], changes: list[Change], context: Context) -> dict[str, Any]:
        names = [change.field for change in changes]
        if args.state == "absent":
            self._apt(context, ["remove", *names])
            return {}
        install_words = ["install", "--no-install-recommends", "--no-upgrade", *names]
        try:
            self._apt(context, install_words)
        except Failed:
            context.note("package not found, or download failed: refreshing the package lists")
            self._apt(context, ["update"])
            self._apt(context, install_words)
        return {}

    @staticmethod
    def _apt(context: Context, words: list[str]) -> None:
        base_argv = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=60"]
        completed = context.machine.run([*base_argv, *words], timeout_s=900)
        if completed.ok:
            return
        if "are you root" in completed.err or "Permission denied" in completed.err:
            raise Failed(f"apt-get {words[0]} needs root.", fix="Add `become: true` to the task.")
        errors = [line for line in completed.err.splitlines() if line.startswith("E:")] or completed.err.splitlines()
        raise Failed(f"apt-get {words[0]}: {errors[-1] if errors else f'exit code {completed.code}'}")


@dataclass(frozen=True, slots=True)
class UserGroupState:
    """A group and the user's membership."""

    group_exists: bool
    #: membership in the group database; a running login keeps its old groups
    is_member: bool


class UserGroup(StateModule["UserGroup.Args", UserGroupState]):
    """Add a user to a group, or remove them. It takes effect at the user's next login.

    Returns: new_login_needed. Fails if the group does not exist, or without root (the message recommends `become`).
    """

    @dataclass(frozen=True)
    class Args:
        user: str = arg("the user's name")
        group: str = arg("the group's name")
        state: Literal["present", "absent"] = arg("present: member; absent: not a member", default="present")

    def read(self, args: Args, context: Context) -> UserGroupState:
        completed = context.machine.run(["getent", "group", args.group])
        members = completed.out.strip().rpartition(":")[2].split(",")
        primary_group = context.machine.run(["id", "-gn", args.user]).out.strip()
        return UserGroupState(completed.ok, args.user in members or primary_group == args.group)

    def differences(self, args: Args, observed: UserGroupState) -> list[Change]:
        intended = args.state == "present"
        if observed.is_member == intended:
            return []
        labels, reason = {True: "member", False: None}, "takes effect at next login"
        return [Change(f"{args.user} in {args.group}", labels[observed.is_member], labels[intended], reason)]

    def describe(self, args: Args, observed: UserGroupState) -> dict[str, Any]:
        return {"new_login_needed": observed.is_member != (args.state == "present")}

    def act(self, args: Args, observed: UserGroupState, changes: list[Change], context: Context) -> dict[str, Any]:
        if not observed.group_exists:
            fix = "Install the package that creates it (docker: docker.io)."
            raise Failed(f"there is no group {args.group}.", fix=fix)
        add_command = ["usermod", "-aG", args.group, args.user]
        completed = context.machine.run(
            add_command if args.state == "present" else ["gpasswd", "-d", args.user, args.group]
        )
        if not completed.ok:
            fix = "Add `become: true` to the task." if "ermission denied" in completed.err else ""
            raise Failed(f"{args.user} and {args.group}: {completed.err.strip()}", fix=fix)
        return {"msg": "log in again for it to take effect"}


@dataclass(frozen=True, slots=True)
class HostSettingsState:
    """The host's settings, and the record of their previous state, each by the setting's name."""

    #: content of its file; None if it has no file
    contents: Mapping[str, str | None] = field(default_factory=dict)
    #: current kernel value
    live_values: Mapping[str, str] = field(default_factory=dict)
    #: row of RECORD_FILE
    record: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: place and text of the line in another file that overrides the intended value
    overrides: Mapping[str, str] = field(default_factory=dict)


class HostSettings(StateModule["HostSettings.Args", HostSettingsState]):
    """Apply settings that keep the host cool and its memory free.

    For each setting, one file is written and one command is run. The previous state is first saved in
    /var/lib/sparkwright/host-settings.json, owned by root, and `undo` restores it. A file that has been changed since is
    kept; an error lists it after all other settings are restored. A setting that is null is not changed. Needs root
    (`become: true`); nothing is installed.

    Returns: settings (names of the recorded ones). Fails if earlyoom is not installed, or a command fails.
    """

    @dataclass(frozen=True)
    class Args:
        clock_cap_mhz: int | None = arg(
            "highest SM clock, MHz (nvidia-smi -lgc), now and at boot; null: unchanged", default=None
        )
        swappiness: int | None = arg("vm.swappiness, 0 to 200; null: unchanged", default=None)
        earlyoom_percent: int | None = arg(
            "available memory below which earlyoom kills processes, percent; null: unchanged", default=None
        )
        ollama_limits: dict[str, Any] = arg(
            "limits of Ollama's service: max_loaded_models, num_parallel (requests per model, each with its own context), "
            "context_length (tokens), keep_alive (such as 5m); empty: unchanged",
            default_factory=dict,
        )
        undo: bool = arg("restore the previous state instead", default=False)

    def read(self, args: Args, context: Context) -> HostSettingsState:
        record = _read_record(context)
        names = {*record, *(setting.name for setting in _intended_settings(args))}
        contents = {
            name: _read_text(context, table.SETTING_PATHS[name]) for name in table.SETTING_PATHS if name in names
        }
        live_values = {
            name: (_read_text(context, path) or "").strip() for name, path in table.LIVE_PATHS.items() if name in names
        }
        settings = [] if args.undo else _intended_settings(args)
        overrides = {setting.name: text for setting in settings if (text := _find_override(context, setting))}
        return HostSettingsState(contents, live_values, record, overrides)

    def differences(self, args: Args, observed: HostSettingsState) -> list[Change]:
        if args.undo:
            return [Change(name, "set", "as before", table.SETTING_PATHS[name]) for name in observed.record]
        changes = []
        for setting in _intended_settings(args):
            current_content, live_value = (
                observed.contents.get(setting.name),
                observed.live_values.get(setting.name, ""),
            )
            if setting.missing_file_fix and current_content is None:
                raise Failed(
                    f"{setting.name}: {table.SETTING_PATHS[setting.name]} is missing.", fix=setting.missing_file_fix
                )
            if setting.name in observed.overrides:
                raise Refused(
                    f"{observed.overrides[setting.name]}, which overrides {table.SETTING_PATHS[setting.name]}.",
                    fix=f"Remove it there, or change the value of {setting.name} in the host's `vars`.",
                )
            # the command failed, or the run was killed before the command ran
            was_interrupted = not observed.record.get(setting.name, {}).get("applied", True)
            if (
                current_content != setting.build_content(current_content or "")
                or was_interrupted
                or live_value not in ("", setting.value_text)
            ):
                current_value = live_value or setting.read_value(current_content or "")
                if current_value == setting.value_text:
                    current_value += " (not applied)" if was_interrupted else " (its file differs)"
                changes.append(
                    Change(setting.name, current_value, setting.value_text, table.SETTING_PATHS[setting.name])
                )
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
            current_content = observed.contents.get(setting.name)
            new_content = setting.build_content(current_content or "")
            entry = record.setdefault(
                setting.name, {"before": current_content, "live": observed.live_values.get(setting.name, "")}
            )
            entry |= {"wrote": _digest(new_content), "applied": False}
            _write_record(context, record)
            _write_or_remove(context, table.SETTING_PATHS[setting.name], new_content)
            _run_commands(context, setting.apply_commands)
            entry["applied"] = True
            _write_record(context, record)
        return {"settings": sorted(record)}

    @staticmethod
    def _undo(observed: HostSettingsState, context: Context) -> dict[str, Any]:
        record, changed_paths = {name: dict(value) for name, value in observed.record.items()}, []
        for name, entry in observed.record.items():
            content = observed.contents.get(name)
            if not _is_restorable(content, entry):
                changed_paths.append(table.SETTING_PATHS[name])
                continue
            _run_commands(context, table.COMMANDS_BEFORE_UNDO.get(name, ()) if content is not None else ())
            _write_or_remove(context, table.SETTING_PATHS[name], entry.get("before"))
            _run_commands(context, table.undo_commands(name, str(entry.get("live") or "")))
            del record[name]
            _write_record(context, record)
        if changed_paths:
            verb = "have" if len(changed_paths) > 1 else "has"
            raise Failed(
                f"{' and '.join(changed_paths)} {verb} been changed since; all other settings are restored.",
                fix=f"Restore or remove by hand, or delete the entry in {RECORD_FILE}.",
            )
        return {"settings": sorted(record)}


def _is_restorable(content: str | None, entry: Mapping[str, Any]) -> bool:
    """Return True if the file is as sparkwright wrote it, was removed, or was not yet written when a run was killed."""
    if content is None or _digest(content) == entry.get("wrote"):
        return True
    return not entry.get("applied") and content == entry.get("before")


def _intended_settings(args: HostSettings.Args) -> list[Setting]:
    try:
        return table.build_settings(args.clock_cap_mhz, args.swappiness, args.earlyoom_percent, args.ollama_limits)
    except ValueError as error:
        raise Refused(str(error)) from None


def _find_override(context: Context, setting: Setting) -> str:
    """Return the line that overrides a setting, and its place; empty if there is none.

    Of the files of sysctl and of a unit, the last by name wins, and of those with the same name the one in the last of
    CONFIGURATION_FOLDERS. `systemctl edit` writes override.conf.
    """
    path = PurePath(table.SETTING_PATHS[setting.name])
    folders = [str(path.parent).replace("/etc", top, 1) for top in CONFIGURATION_FOLDERS if setting.variables]
    later_paths = {
        file.name: f"{folder}/{file.name}"
        for folder in folders
        for file in context.machine.path(folder).glob("*.conf")
        if file.name > path.name
    }
    lines = {}
    for _, later_path in sorted(later_paths.items()):
        for name, (number, line, value) in setting.find_assignments(_read_text(context, later_path) or "").items():
            lines[name] = value, f"{later_path}:{number} says `{one_line(line, max_chars=120)}`"
    return next((text for name, (value, text) in lines.items() if value != setting.variables[name]), "")


def _read_text(context: Context, path: str) -> str | None:
    """Read a file; None if it is missing or unreadable. Raises Refused if it could not be restored byte for byte."""
    try:
        content = context.machine.path(path).read_bytes()
    except OSError:
        return None
    if len(content) > MAX_FILE_BYTES:
        raise Refused(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; it is left alone.")
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
            f"{RECORD_FILE} is damaged: the previous settings are unknown.", fix="Restore the host's settings by hand."
        ) from None
    rows = record.items() if isinstance(record, dict) else ()
    return {name: row for name, row in rows if name in table.SETTING_PATHS and isinstance(row, dict)}


def _write_record(context: Context, record: Mapping[str, Any]) -> None:
    _write_or_remove(context, RECORD_FILE, json.dumps(record, indent=1) if record else None)


def _write_or_remove(context: Context, path: str, text: str | None) -> None:
    """Write a file with this text, or remove it if the text is None."""
    target = context.machine.path(path)
    if text is not None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    intended = files.IntendedState("file", "0644", content=text) if text is not None else files.IntendedState("absent")
    current = files.FileState.read(target)
    if files.differences(intended, current):
        files.apply(intended, current)
    if text is None and target.parent.name in OWN_FOLDERS:
        with contextlib.suppress(OSError):  # it contains another file
            target.parent.rmdir()


def _run_commands(context: Context, commands: tuple[tuple[str, ...], ...]) -> None:
    for argv in commands:
        completed = context.machine.run(list(argv))
        if not completed.ok:
            lines = (completed.err or completed.out).strip().splitlines()
            reason = one_line(lines[0], max_chars=200) if lines else f"exit code {completed.code}"
            raise Failed(f"`{' '.join(argv)}` failed: {reason}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
