"""sparkwright's state folder on a host: ~/.local/state/sparkwright, with all its records."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.records.state_shapes import shape_of
from sparkwright.trust import private
from sparkwright.trust.bounds import parse_bounded_json
from sparkwright.trust.names import PATH_COMPONENT, require_match
from sparkwright.version import __version__
from sparkwright.visible import one_line

#: records of one server, by the first part of their name; with several servers, each has them below SERVERS/NAME
SERVER_RECORDS = frozenset(
    (
        *("verified", "verified_before", "previous", "restarts", "stopping", "before_start", "restart_plans"),
        *("health-remembered", "history", "health", "drained", "interim", "lost", "guarded"),
    )
)
SERVERS_FOLDER = "servers"
#: format of all records together, increased when an earlier version could no longer use them; its file also names the last writer
FORMAT, FORMAT_FILE = 1, "format"
#: tolerance for a file system's clock that is ahead of the processor's
CLOCK_TOLERANCE_NS = 10**9


@dataclass(frozen=True, slots=True)
class StateFolder:
    """sparkwright's state folder on a host.

    Every write is atomic and fsynced: a reader sees the old or the new content, never half. Folders are 0700 and files 0600
    whatever the umask: write access here is enough to hold the host's lock or to change its records.
    """

    path: Path
    #: the container's name of the server whose records are meant; empty for the only server
    server: str = ""

    @classmethod
    def in_home(cls, home: Path) -> StateFolder:
        """Return the state folder of the user with this home."""
        return cls(home / ".local/state/sparkwright")

    def for_server(self, name: str) -> StateFolder:
        """Return the same folder, for the records of one of several servers. Raises Failed for an invalid container name.

        Args:
            name: of its container; empty: of the only one. The records it had as the only server stay its own until
                `verified_states.resolve_records` moves
                them.
        """
        if (
            name
            and not (self.path / SERVERS_FOLDER / require_match(PATH_COMPONENT, name, "the server's name")).is_dir()
        ):
            only_spec = ((self.read("verified") if not self.server else None) or {}).get("spec") or {}
            name = "" if only_spec.get("name") == name else name
        return StateFolder(self.path, name)

    def servers(self) -> list[StateFolder]:
        """Return this folder once per server with records: the only one's, or one for each of several."""
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
        """Return the folder with the server's records; create it if missing."""
        return self.folder(SERVERS_FOLDER, self.server) if self.server else self.folder()

    def _relative_path(self, name: str) -> str:
        """Return the path of NAME.json below the folder, without its suffix."""
        is_server_record = self.server and name.partition("/")[0] in SERVER_RECORDS
        return f"{SERVERS_FOLDER}/{self.server}/{name}" if is_server_record else name

    def folder(self, *below: str) -> Path:
        """Return the folder, or one below it; create it, closed to others, if missing."""
        path = private.create_folder(self.path)
        for step in below:
            path = private.create_folder(path / step)
        return path

    def tighten(self) -> None:
        """Restrict access to files that an earlier version left open to others. Costs one stat if there is nothing to do."""
        with contextlib.suppress(OSError):
            private.restrict_tree(self.path)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object stored in NAME.json, or None. Damaged parts are left out and reported on stderr."""
        path = self.path / f"{self._relative_path(name)}.json"
        try:
            data = parse_bounded_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            data, why = None, f"{type(error).__name__}: {error}"
        else:
            why = "some fields have the wrong type"
        valid = shape_of(name).valid_part(data)
        if valid != data or data is None:
            print(f"{path} is damaged, ignoring it: {why}", file=sys.stderr, flush=True)
        return valid

    def refuse_newer(self) -> None:
        """Raise Refused if a newer sparkwright has written the records in a format that this one does not know."""
        written = self.read(FORMAT_FILE)
        if written and written["format"] > FORMAT:
            writer = f"sparkwright {one_line(written['version'], max_chars=40)} (format {written['format']})"
            message = f"the records on this host are those of {writer}, and this is {__version__} (format {FORMAT})."
            raise Refused(message, fix="Upgrade sparkwright here.")

    def write_format(self) -> None:
        """Record the format of the records and the version that writes them."""
        record = {"format": FORMAT, "version": __version__}
        if self.read(FORMAT_FILE) != record:
            self.write(FORMAT_FILE, record)

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Store a JSON object in NAME.json. If the disk is full, the runs' ballast is freed first."""
        content = json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"
        try:
            self._write_file(name, content)
        except OSError:
            self.drop_ballast()
            self._write_file(name, content)

    def _write_file(self, name: str, content: bytes) -> None:
        file = PurePath(f"{self._relative_path(name)}.json")
        write_atomically(self.folder(*file.parts[:-1]) / file.name, content)

    def drop_ballast(self) -> None:
        """Free the disk space that runs reserve for a full disk."""
        for ballast in (self.path / "runs").glob("*/ballast"):
            ballast.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove NAME.json."""
        (self.path / f"{self._relative_path(name)}.json").unlink(missing_ok=True)

    def runs(self) -> Iterator[Path]:
        """Yield the folders of past and present runs, newest first."""
        yield from (plan.parent for plan in newest_first((self.path / "runs").glob("*/plan.json")))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return files or folders by the time of their last change. Times in the future, from a wrong clock, come last."""
    now_ns, dated = time.time_ns(), []
    for path in paths:
        with contextlib.suppress(OSError):  # another run has removed it
            changed_ns = path.stat().st_mtime_ns
            dated.append((changed_ns if changed_ns <= now_ns + CLOCK_TOLERANCE_NS else 0, path))
    return [path for _, path in sorted(dated, reverse=True)]


def write_atomically(
    path: Path, content: bytes, *, mode: int = private.FILE_MODE, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file atomically: the new one is written beside it, fsynced and renamed.

    No one with write access to the folder can have another file written instead.

    Args:
        mode: of the new file; by default for this user only.
        owner: ids of user and group, -1 for unchanged.
    """
    try:
        _replace_file(path, content, mode, owner)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # not the temporary file's path


def _replace_file(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    handle = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode & private.FILE_MODE
    )
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
