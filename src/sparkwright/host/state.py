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
from sparkwright.trust.bounds import parsed
from sparkwright.trust.names import STEP, matched
from sparkwright.version import __version__
from sparkwright.visible import one_line

#: records of one server, by the first part of their name; with several servers, each has them below SERVERS/NAME
OF_SERVER = frozenset(
    (
        *("verified", "verified_before", "previous", "restarts", "stopping", "before_start", "restart_plans"),
        *("health-remembered", "history", "health", "drained", "interim", "lost", "guarded"),
    )
)
SERVERS = "servers"
#: format of all records together, increased when an earlier version could no longer use them; its file also names the last writer
FORMAT, FORMAT_FILE = 1, "format"
#: tolerance for a file system's clock that is ahead of the processor's
SLACK_NS = 10**9


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
    def of(cls, home: Path) -> StateFolder:
        """Return the state folder of the user with this home."""
        return cls(home / ".local/state/sparkwright")

    def of_server(self, name: str) -> StateFolder:
        """Return the same folder, for the records of one of several servers. Raises Failed for an invalid container name.

        Args:
            name: of its container; empty: of the only one. The records it had as the only server stay its own until
                `good_states.settle_records` moves
                them.
        """
        if name and not (self.path / SERVERS / matched(STEP, name, "the server's name")).is_dir():
            alone = ((self.read("verified") if not self.server else None) or {}).get("spec") or {}
            name = "" if alone.get("name") == name else name
        return StateFolder(self.path, name)

    def servers(self) -> list[StateFolder]:
        """Return this folder once per server with records: the only one's, or one for each of several."""
        found = sorted(
            path.name for path in (self.path / SERVERS).glob("*") if path.is_dir() and STEP.fullmatch(path.name)
        )
        alone = not found or (self.path / "verified.json").exists()
        return [StateFolder(self.path, name) for name in ([""] if alone else []) + found]

    @property
    def memory(self) -> Path:
        """The folder with the server's records."""
        return self.path / SERVERS / self.server if self.server else self.path

    def memory_made(self) -> Path:
        """Return the folder with the server's records; create it if missing."""
        return self.folder(SERVERS, self.server) if self.server else self.folder()

    def _below(self, name: str) -> str:
        """Return the path of NAME.json below the folder, without its suffix."""
        of_server = self.server and name.partition("/")[0] in OF_SERVER
        return f"{SERVERS}/{self.server}/{name}" if of_server else name

    def folder(self, *below: str) -> Path:
        """Return the folder, or one below it; create it, closed to others, if missing."""
        path = private.folder(self.path)
        for step in below:
            path = private.folder(path / step)
        return path

    def tighten(self) -> None:
        """Restrict access to files that an earlier version left open to others. Costs one stat if there is nothing to do."""
        with contextlib.suppress(OSError):
            private.tighten(self.path)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object stored in NAME.json, or None. Damaged parts are left out and reported on stderr."""
        path = self.path / f"{self._below(name)}.json"
        try:
            data = parsed(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            data, why = None, f"{type(error).__name__}: {error}"
        else:
            why = "some fields have the wrong type"
        found = shape_of(name).of(data)
        if found != data or data is None:
            print(f"{path} is damaged, ignoring it: {why}", file=sys.stderr, flush=True)
        return found

    def refuse_newer(self) -> None:
        """Raise Refused if a newer sparkwright has written the records in a format that this one does not know."""
        kept = self.read(FORMAT_FILE)
        if kept and kept["format"] > FORMAT:
            writer = f"sparkwright {one_line(kept['version'], at_most=40)} (format {kept['format']})"
            message = f"the records on this host are those of {writer}, and this is {__version__} (format {FORMAT})."
            raise Refused(message, fix="Upgrade sparkwright here.")

    def note_format(self) -> None:
        """Record the format of the records and the version that writes them."""
        about = {"format": FORMAT, "version": __version__}
        if self.read(FORMAT_FILE) != about:
            self.write(FORMAT_FILE, about)

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Store a JSON object in NAME.json. If the disk is full, the runs' ballast is freed first."""
        content = json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"
        try:
            self._put(name, content)
        except OSError:
            self.drop_ballast()
            self._put(name, content)

    def _put(self, name: str, content: bytes) -> None:
        file = PurePath(f"{self._below(name)}.json")
        write_atomically(self.folder(*file.parts[:-1]) / file.name, content)

    def drop_ballast(self) -> None:
        """Free the disk space that runs reserve for a full disk."""
        for ballast in (self.path / "runs").glob("*/ballast"):
            ballast.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove NAME.json."""
        (self.path / f"{self._below(name)}.json").unlink(missing_ok=True)

    def runs(self) -> Iterator[Path]:
        """Yield the folders of past and present runs, newest first."""
        yield from (plan.parent for plan in newest_first((self.path / "runs").glob("*/plan.json")))


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return files or folders by the time of their last change. Times in the future, from a wrong clock, come last."""
    now_ns, dated = time.time_ns(), []
    for path in paths:
        with contextlib.suppress(OSError):  # another run has removed it
            changed_ns = path.stat().st_mtime_ns
            dated.append((changed_ns if changed_ns <= now_ns + SLACK_NS else 0, path))
    return [path for _, path in sorted(dated, reverse=True)]


def write_atomically(
    path: Path, content: bytes, *, mode: int = private.FILE, owner: tuple[int, int] | None = None
) -> None:
    """Replace a file atomically: the new one is written beside it, fsynced and renamed.

    No one with write access to the folder can have another file written instead.

    Args:
        mode: of the new file; by default for this user only.
        owner: ids of user and group, -1 for unchanged.
    """
    try:
        _replace(path, content, mode, owner)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # not the temporary file's path


def _replace(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode & private.FILE)
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
