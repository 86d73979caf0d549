"""One play that rolls over its hosts: the next batch, the hosts that may be stopped, and the record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed, Refused
from sparkwright.fleet.guard import Guard
from sparkwright.host.state import write_atomically
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.trust import private
from sparkwright.trust.bounds import bytes_of, json_of
from sparkwright.trust.shapes import Partial, line, moment
from sparkwright.units import MIB

# The record of a rolling run and its remaining hosts, kept on the laptop: PROJECT/.sparkwright/rolling/PLAYBOOK.json.
#
# It is written before and after every batch, so that the run can be resumed if the laptop fails in between: a host that was in
# progress counts as left. It is removed when nothing is left.

RECORD_SCHEMA = 1
RECORD_FOLDER = ".sparkwright"
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
        self._folder = project / RECORD_FOLDER
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
            write_atomically(
                self.path, json.dumps({"schema": RECORD_SCHEMA, **asdict(record)}, indent=1).encode() + b"\n"
            )
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
        if data is None or data.pop("schema") != RECORD_SCHEMA:
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


@dataclass
class Roll:
    """One play that rolls over its hosts."""

    policy: RolloutPolicy
    #: number of hosts of the run, with those of an earlier, resumed part; 0: as many as the play has
    everyone: int = 0
    #: check all hosts before the first batch
    checks_first: bool = False
    #: the hosts are a cluster: none is started if the plan of one can't be made
    together: bool = False
    #: limits which hosts may stop serving
    guard: Guard | None = None
    #: the record of the run
    record: Record | None = None
    #: saves the record
    save: Callable[[Record], None] = lambda record: None
    #: returns what a host was made from
    prints: Callable[[str], Prints] = lambda host: {}
    #: hosts that are finished after this play; None: all of them
    finishes: frozenset[str] | None = None
    #: number of finished batches
    batch: int = field(default=0, init=False)
    _begun: int = field(default=0, init=False)

    def next(self, waiting: Sequence[str], proved: Sequence[str]) -> tuple[list[str], str]:
        """Return the next batch of the waiting hosts; if it is empty, why none may go.

        proved: hosts of the last batch that were seen to serve, and must still do so.
        """
        everyone = self.everyone or len(waiting) + self._begun
        wanted = list(waiting[: self.policy.size(self.batch, everyone)])
        self._begun += len(wanted)
        if self.guard is None:
            return wanted, ""
        silent = self.guard.silent(proved)
        if silent:
            return [], f"{', '.join(silent)} stopped serving after its turn"
        go, why = self.guard.may_go(wanted)
        self._begun -= len(wanted) - len(go)
        return go, "" if go else why

    def begins(self, batch: Sequence[str]) -> None:
        """Record a batch before it is touched."""
        if self.record is not None:
            self.record.under_way = list(batch)
            self.save(self.record)

    def ended(self, done: Sequence[str], failed: Mapping[str, str]) -> None:
        """Record a finished batch. failed: the reason by host."""
        self.batch += 1
        self.looked(done, failed)

    def looked(self, done: Sequence[str], failed: Mapping[str, str]) -> None:
        """Record hosts that need no change, or would be refused, before any host is touched."""
        if self.record is None:
            return
        through = [name for name in done if self.finishes is None or name in self.finishes]
        self.record.done.update({name: dict(self.prints(name)) for name in through})
        self.record.failed = {k: why for k, why in {**self.record.failed, **failed}.items() if k not in through}
        self.record.under_way = []
        self.save(self.record)
