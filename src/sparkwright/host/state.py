"""sparkwright's state folder on a host: ~/.local/state/sparkwright, with all its records."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.records.state_shapes import shape_of
from sparkwright.trust import private
from sparkwright.trust.bounds import parse_bounded_json
from sparkwright.trust.names import PATH_COMPONENT, require_match
from sparkwright.version import __version__
from sparkwright.visible import one_line

#: records that belong to one server, by the first component of their name; with several servers, they are below servers/NAME
SERVER_RECORDS = frozenset(
    (
        *("verified", "verified_before", "previous", "restarts", "stopping", "before_start", "restart_plans"),
        *("health-remembered", "history", "health", "drained", "interim", "lost", "guarded"),
    )
)
SERVERS_FOLDER = "servers"
#: format of all records, increased when an earlier version could not use them
FORMAT = 1
#: record with the format, and with the version that last wrote it
FORMAT_RECORD = "format"
#: tolerance for a file system whose clock is ahead
CLOCK_TOLERANCE_NS = 10**9


@dataclass(frozen=True, slots=True)
class StateFolder:
    """sparkwright's state folder on a host.

    Every write is atomic and fsynced. Folders have mode 0700 and files 0600, whatever the umask, because anyone with write
    access could hold the host's lock or change its records.
    """

    path: Path
    #: name of the server's container, for access to its records; if empty, the only server
    server: str = ""

    @classmethod
    def in_home(cls, home: Path) -> StateFolder:
        """Return the state folder of the user with this home folder."""
        return cls(home / ".local/state/sparkwright")

    def for_server(self, name: str) -> StateFolder:
        """Return the same folder, for the records of another server. Raises Failed for an invalid container name.

        The records of a server that was the only one stay in place until `verified_states.resolve_records` moves them.

        Args:
            name: name of the server's container; if empty, the only server.
        """
        if name:
            server_folder = self.path / SERVERS_FOLDER / require_match(PATH_COMPONENT, name, "the server's name")
            if not server_folder.is_dir() and not self.server:
                only_spec = (self.read("verified") or {}).get("spec") or {}
                name = "" if only_spec.get("name") == name else name
        return StateFolder(self.path, name)

    def servers(self) -> list[StateFolder]:
        """Return this folder for each server with records, or for the only server."""
        names = sorted(
            path.name
            for path in (self.path / SERVERS_FOLDER).glob("*")
            if path.is_dir() and PATH_COMPONENT.fullmatch(path.name)
        )
        has_only_server = not names or (self.path / "verified.json").exists()
        return [StateFolder(self.path, name) for name in ([""] if has_only_server else []) + names]

    @property
    def records_folder(self) -> Path:
        """The folder with the server's records."""
        return self.path / SERVERS_FOLDER / self.server if self.server else self.path

    def ensure_records_folder(self) -> Path:
        """Return the folder with the server's records, after creating it if it is missing."""
        return self.folder(SERVERS_FOLDER, self.server) if self.server else self.folder()

    def _record_path(self, name: str) -> Path:
        """Return the path of a record, relative to the folder."""
        is_server_record = self.server and name.partition("/")[0] in SERVER_RECORDS
        return Path(f"{SERVERS_FOLDER}/{self.server}/{name}.json" if is_server_record else f"{name}.json")

    def folder(self, *subfolders: str) -> Path:
        """Return the folder, or a nested subfolder, after creating it with access for this user only."""
        path = private.create_folder(self.path)
        for name in subfolders:
            path = private.create_folder(path / name)
        return path

    def restrict_access(self) -> None:
        """Remove other users' access to files that an earlier version wrote. Costs one stat if there are none."""
        with contextlib.suppress(OSError):
            private.restrict_tree(self.path)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a record's JSON object, or None without one. Invalid fields are left out and reported on stderr."""
        path = self.path / self._record_path(name)
        try:
            data = parse_bounded_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            data, problem = None, f"{type(error).__name__}: {error}"
        else:
            problem = "some fields have the wrong type"
        valid_data = shape_of(name).valid_part(data)
        if valid_data != data or data is None:
            print(f"{path} is damaged, ignoring it: {problem}", file=sys.stderr, flush=True)
        return valid_data

    def refuse_newer_format(self) -> None:
        """Raise Refused if the records have the format of a newer sparkwright."""
        written_format = self.read(FORMAT_RECORD)
        if written_format and written_format["format"] > FORMAT:
            writer = (
                f"sparkwright {one_line(written_format['version'], max_chars=40)} (format {written_format['format']})"
            )
            message = f"the records on this host were written by {writer}, and this is {__version__} (format {FORMAT})."
            raise Refused(message, fix="Upgrade sparkwright here.")

    def write_format(self) -> None:
        """Record the format of the records and this version."""
        record = {"format": FORMAT, "version": __version__}
        if self.read(FORMAT_RECORD) != record:
            self.write(FORMAT_RECORD, record)

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Write a record. If that fails, as on a full disk, free the runs' ballast and try again."""
        content = json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"
        try:
            self._write_file(name, content)
        except OSError:
            self.drop_ballast()
            self._write_file(name, content)

    def _write_file(self, name: str, content: bytes) -> None:
        path = self._record_path(name)
        write_atomically(self.folder(*path.parts[:-1]) / path.name, content)

    def drop_ballast(self) -> None:
        """Free the disk space that runs reserve for writing to a full disk."""
        for ballast in (self.path / "runs").glob("*/ballast"):
            ballast.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a record, if it exists."""
        (self.path / self._record_path(name)).unlink(missing_ok=True)

    def runs(self) -> Iterator[Path]:
        """Yield the folders of all runs, newest first."""
        yield from (plan.parent for plan in newest_first((self.path / "runs").glob("*/plan.json")))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return the paths, the most recently modified first. Paths with a time in the future, from a wrong clock, come last."""
    now_ns, dated_paths = time.time_ns(), []
    for path in paths:
        with contextlib.suppress(OSError):  # removed by another run
            modified_ns = path.stat().st_mtime_ns
            dated_paths.append((modified_ns if modified_ns <= now_ns + CLOCK_TOLERANCE_NS else 0, path))
    return [path for _, path in sorted(dated_paths, reverse=True)]


def write_atomically(
    path: Path, content: bytes, *, mode: int = private.FILE_MODE, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file atomically: write a temporary file in the same folder, fsync and rename it.

    A symlink that another user places in the folder is not followed.

    Args:
        mode: mode of the new file; by default, only this user has access.
        owner: ids of user and group, -1 to leave them unchanged.
    """
    try:
        _replace_file(path, content, mode, owner)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # not the temporary file's path


def _replace_file(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_file = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary_file, flags, mode & private.FILE_MODE)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary_file.replace(path)
    finally:
        temporary_file.unlink(missing_ok=True)
