"""Roll a play out to its hosts: select the batches, enforce `min_serving`, and record the progress for --resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed, Refused
from sparkwright.fleet.guard import Guard
from sparkwright.host.state import write_atomically
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.trust import private
from sparkwright.trust.bounds import parse_json, read_bytes
from sparkwright.trust.shapes import Partial, line, moment
from sparkwright.units import MIB

# The record of a rolling run, on the laptop: PROJECT/.sparkwright/rolling/PLAYBOOK.json.
#
# It is written before and after every batch, so that the run can be resumed if the laptop fails. A host that was in progress
# counts as unfinished. The file is removed when all hosts are finished.

RECORD_SCHEMA = 2
RECORD_FOLDER = ".sparkwright"
MAX_RECORD_AGE_S = 7 * 86400.0
#: size limit of the file, in which a host takes about 1 kB
MAX_RECORD_BYTES = 4 * MIB
RECORD_SHAPE = Partial(
    {
        "schema": int,
        "playbook": str,
        "pattern": line,
        **{key: [line] for key in ("hosts", "under_way")},
        "options": {str: object},
        "done": {str: {str: str}},
        "failed": {str: str},
        "began_s": moment,
    },
    required=("schema", "playbook", "hosts"),
    strict=True,
)

#: digests of a host's inputs, keyed by names such as "recipes/a.yml"
Fingerprints = Mapping[str, str]


@dataclass
class RolloutRecord:
    """The record of a rolling run."""

    #: name of the playbook
    playbook: str
    #: all hosts of the run, in order
    hosts: list[str]
    #: the pattern that selected them (`--host`); empty in a record of an earlier version
    pattern: str = ""
    #: options of the command that must be the same when the run is resumed
    options: dict[str, Any] = field(default_factory=dict)
    #: finished hosts, with the fingerprints of their inputs
    done: dict[str, dict[str, str]] = field(default_factory=dict)
    #: messages of failed hosts, by host
    failed: dict[str, str] = field(default_factory=dict)
    #: hosts of the batch in progress
    under_way: list[str] = field(default_factory=list)
    #: start of the run, in seconds since the epoch
    began_s: float = field(default_factory=time.time)

    @property
    def unfinished_hosts(self) -> list[str]:
        """The hosts that are not finished."""
        return [name for name in self.hosts if name not in self.done]

    def remove_unfinished(self, names: Collection[str]) -> list[str]:
        """Remove the unfinished hosts that are not among these names, and return them."""
        removed_names = [name for name in self.unfinished_hosts if name not in names]
        self.hosts = [name for name in self.hosts if name not in removed_names]
        return removed_names


class RecordFile:
    """The file that contains the record of a playbook's last rolling run."""

    def __init__(self, project: Path, playbook: str) -> None:
        self._folder = project / RECORD_FOLDER
        self.playbook = Path(playbook).stem
        self.path = self._folder / "rolling" / f"{self.playbook}.json"

    def save(self, record: RolloutRecord) -> None:
        """Replace the file, or remove it if all hosts are finished. Raises Failed if it can't be written."""
        try:
            if not record.unfinished_hosts:
                self.path.unlink(missing_ok=True)
                return
            private.create_folder(self._folder)
            private.create_folder(self.path.parent)
            write_atomically(self._folder / ".gitignore", b"*\n")
            write_atomically(
                self.path, json.dumps({"schema": RECORD_SCHEMA, **asdict(record)}, indent=1).encode() + b"\n"
            )
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}.", fix="`--resume` requires this file.") from None

    def load(self) -> RolloutRecord:
        """Read the record. Raises Refused if there is none, or if it is invalid."""
        try:
            data = RECORD_SHAPE.valid_part(parse_json(read_bytes(self.path, MAX_RECORD_BYTES)))
        except FileNotFoundError:
            message = f"nothing to resume: this project has no unfinished rolling run of {self.playbook}."
            raise Refused(message, fix="Start one without --resume.") from None
        except (OSError, ValueError):
            data = None
        if data is None or data.pop("schema") != RECORD_SCHEMA:
            message = f"{self.path} is not readable by this version of sparkwright."
            raise Refused(message, fix="Start again without --resume.")
        return RolloutRecord(**data)


def refuse_other_hosts(record: RolloutRecord, names: Sequence[str]) -> None:
    """Raise Refused if the hosts that --host selects are not those of the unfinished run."""
    if set(names) != set(record.hosts):
        hosts = f"{', '.join(record.hosts)}, not for {', '.join(names)}"
        fix = "Omit --host to resume it, or omit --resume to start another run."
        raise Refused(f"the unfinished run of {record.playbook} is for {hosts}.", fix=fix)


def refuse_changed_run(
    record: RolloutRecord,
    options: Mapping[str, Any],
    compute_fingerprints: Callable[[str], Fingerprints],
    now_s: float | None = None,
) -> None:
    """Raise Refused if the run is too old to be resumed, or its options or the inputs of finished hosts have changed.

    Args:
        options: the current options.
        compute_fingerprints: returns the current fingerprints of a host.
        now_s: seconds since the epoch; None for the current time.
    """
    fix = "Start again without --resume."
    age_s = (time.time() if now_s is None else now_s) - record.began_s
    if age_s > MAX_RECORD_AGE_S:
        raise Refused(f"the unfinished run of {record.playbook} started {age_s / 86400:.0f} days ago.", fix=fix)
    for name, value in options.items():
        if record.options.get(name) != value:
            difference = "different options" if name == "extra" else f"a different `--{name.replace('_', '-')}`"
            raise Refused(f"the unfinished run of {record.playbook} was started with {difference}.", fix=fix)
    for host, recorded_digests in record.done.items():
        current_digests = compute_fingerprints(host)
        changed_input = next(
            (
                name
                for name in sorted({*recorded_digests, *current_digests})
                if recorded_digests.get(name) != current_digests.get(name)
            ),
            None,
        )
        if changed_input is not None:
            message = f"{changed_input} has changed since {host} was done; the remaining hosts would differ."
            raise Refused(message, fix=fix)


@dataclass
class PlayRollout:
    """The rollout of a play to its hosts."""

    policy: RolloutPolicy
    #: number of hosts in the run, including those finished before it was resumed; 0 to use the number of hosts in the play
    host_count: int = 0
    #: True to check all hosts before the first batch
    checks_first: bool = False
    #: True for a cluster: no member is started unless a plan can be built for every member
    all_or_none: bool = False
    #: enforces `min_serving`; None if no group has a minimum
    guard: Guard | None = None
    #: record of the run; None for a run without a record
    record: RolloutRecord | None = None
    #: saves the record
    save: Callable[[RolloutRecord], None] = lambda record: None
    #: fingerprints of the hosts' inputs at the start of the play
    fingerprints: Mapping[str, Fingerprints] = field(default_factory=dict)
    #: hosts for which this play is the last one; None for all
    final_hosts: frozenset[str] | None = None
    #: number of finished batches
    finished_batch_count: int = field(default=0, init=False)
    _begun_host_count: int = field(default=0, init=False)

    def next_batch(self, waiting_hosts: Sequence[str], verified_hosts: Sequence[str]) -> tuple[list[str], str]:
        """Return the next batch of the waiting hosts and, if it is empty, the reason.

        Args:
            verified_hosts: hosts of the last batch that passed verification and must still be serving.
        """
        host_count = self.host_count or len(waiting_hosts) + self._begun_host_count
        candidates = list(waiting_hosts[: self.policy.size(self.finished_batch_count, host_count)])
        self._begun_host_count += len(candidates)
        if self.guard is None:
            return candidates, ""
        failed = self.guard.find_not_serving(verified_hosts)
        if failed:
            return [], f"{', '.join(failed)} stopped serving after being changed"
        allowed_hosts, reason = self.guard.select_stoppable(candidates)
        self._begun_host_count -= len(candidates) - len(allowed_hosts)
        return allowed_hosts, "" if allowed_hosts else reason

    def record_batch(self, batch: Sequence[str]) -> None:
        """Record the hosts of a batch before they are changed."""
        if self.record is not None:
            self.record.under_way = list(batch)
            self.save(self.record)

    def finish_batch(self, done_hosts: Sequence[str], failure_messages: Mapping[str, str]) -> None:
        """Record the outcomes of a batch: finished hosts, and the messages of failed ones by host."""
        self.finished_batch_count += 1
        self.record_outcomes(done_hosts, failure_messages)

    def record_outcomes(self, done_hosts: Sequence[str], failure_messages: Mapping[str, str]) -> None:
        """Record finished hosts, and the messages of failed ones by host."""
        if self.record is None:
            return
        finished_hosts = [name for name in done_hosts if self.final_hosts is None or name in self.final_hosts]
        self.record.done.update({name: dict(self.fingerprints.get(name, {})) for name in finished_hosts})
        self.record.failed = {
            name: message
            for name, message in {**self.record.failed, **failure_messages}.items()
            if name not in finished_hosts
        }
        self.record.under_way = []
        self.save(self.record)
