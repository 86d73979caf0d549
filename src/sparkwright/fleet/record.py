"""The record of a rolling run and its remaining hosts, kept on the laptop: PROJECT/.sparkwright/rolling/PLAYBOOK.json.

It is written before and after every batch, so that the run can be resumed if the laptop fails in between: a host that was in
progress counts as left. It is removed when nothing is left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed, Refused
from sparkwright.host.state import write_atomically
from sparkwright.trust import private
from sparkwright.trust.bounds import bytes_of, json_of
from sparkwright.trust.shapes import Partial, line, moment
from sparkwright.units import MIB

SCHEMA = 1
FOLDER = ".sparkwright"
OLD_S = 7 * 86400.0

#: the files that a host was made from, by the user's name for them: "recipes/a.yml": its digest
Prints = Mapping[str, str]


@dataclass
class Record:
    """The record of a rolling run."""

    #: its name
    playbook: str
    #: all hosts of the run, in their order
    hosts: list[str]
    #: the other options of the command
    options: dict[str, Any] = field(default_factory=dict)
    #: the finished hosts, each with what it was made from
    done: dict[str, dict[str, str]] = field(default_factory=dict)
    #: the reason by host
    failed: dict[str, str] = field(default_factory=dict)
    #: hosts of the batch in progress
    under_way: list[str] = field(default_factory=list)
    #: seconds since the epoch
    began_s: float = field(default_factory=time.time)

    @property
    def left(self) -> list[str]:
        """The hosts that are not finished."""
        return [name for name in self.hosts if name not in self.done]


#: limit of the file; a host's row has some 1 kB
MOST_BYTES = 4 * MIB
SHAPE = Partial(
    {
        "schema": int,
        "playbook": str,
        **{key: [line] for key in ("hosts", "under_way")},
        "options": {str: object},
        "done": {str: {str: str}},
        "failed": {str: str},
        "began_s": moment,
    },
    needs=("schema", "playbook", "hosts"),
    strict=True,
)


class RecordFile:
    """The file of a record. path: see the module's docstring."""

    def __init__(self, project: Path, playbook: str) -> None:
        self._folder = project / FOLDER
        self.playbook = Path(playbook).stem
        self.path = self._folder / "rolling" / f"{self.playbook}.json"

    def save(self, record: Record) -> None:
        """Replace the file atomically; remove it if nothing is left. Raises Failed if the folder is not writable."""
        try:
            if not record.left:
                self.path.unlink(missing_ok=True)
                return
            private.folder(self._folder)
            private.folder(self.path.parent)
            write_atomically(self._folder / ".gitignore", b"*\n")
            write_atomically(self.path, json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1).encode() + b"\n")
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}.", fix="`--resume` needs it.") from None

    def load(self) -> Record:
        """Return the unfinished run. Raises Refused if there is none, or it can't be read."""
        try:
            data = SHAPE.of(json_of(bytes_of(self.path, MOST_BYTES)))
        except FileNotFoundError:
            message = f"nothing to resume: no unfinished rolling {self.playbook} in this project."
            raise Refused(message, fix="Start one without --resume.") from None
        except (OSError, ValueError):
            data = None
        if data is None or data.pop("schema") != SCHEMA:
            message = f"{self.path} is not readable by this sparkwright version."
            raise Refused(message, fix="Start again without --resume.")
        return Record(**data)


def refuse_other_hosts(record: Record, names: Sequence[str]) -> None:
    """Raise Refused if --host selects other hosts than those of the unfinished run."""
    if set(names) != set(record.hosts):
        hosts = f"{', '.join(record.hosts)}, not for {', '.join(names)}"
        fix = "Omit --host to resume it, or omit --resume to start another."
        raise Refused(f"the unfinished {record.playbook} is for {hosts}.", fix=fix)


def refuse_other(
    record: Record, options: Mapping[str, Any], prints: Callable[[str], Prints], now_s: float | None = None
) -> None:
    """Raise Refused if the run to resume differs from the one that began.

    Args:
        options: the options of the command now.
        prints: returns what a host would be made from now.
        now_s: seconds since the epoch.
    """
    anew = "Start again without --resume."
    age_s = (time.time() if now_s is None else now_s) - record.began_s
    if age_s > OLD_S:
        raise Refused(f"the unfinished {record.playbook} started {age_s / 86400:.0f} days ago.", fix=anew)
    for name, value in options.items():
        if record.options.get(name) != value:
            raise Refused(f"the unfinished {record.playbook} was started with a different {name}.", fix=anew)
    for host, before in record.done.items():
        now = prints(host)
        other = next((name for name in sorted({*before, *now}) if before.get(name) != now.get(name)), None)
        if other is not None:
            raise Refused(f"{other} has changed since {host} was done; the remaining hosts would differ.", fix=anew)
