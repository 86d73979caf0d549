"""A cache of plans, keyed by their inputs, so that a host or cluster is not planned again while these stay the same.

Planning takes two thirds of the laptop's time in a deploy without changes: Pydantic, Jinja2, the engines' rules, the compiler
(docs/decisions/0019). Plans are stored as data in the laptop's cache folder, readable by its user only. A file that is damaged,
of another version, or owned by another user is treated as missing. Secrets are not stored: the cache holds their sources, which
are read again for each run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sparkwright import here, host_side
from sparkwright.app.runs.options import DeployOptions
from sparkwright.console.events.summary import Served
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.host.state import write_atomically
from sparkwright.project import shipped_files
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.plan import Plan
from sparkwright.secret import Secret
from sparkwright.trust import bounds, private
from sparkwright.units import MIB

if TYPE_CHECKING:
    from sparkwright.project.inventory.host import Source

SCHEMA = 3
#: inputs of a plan in the project; a playbook can only include files from its own folder and shipped ones
FOLDERS, LOCK = ("hosts", "playbooks", "recipes", "templates"), "spark.lock"
#: folders of shipped files that are inputs of a plan
PLANNED = ("playbooks", "templates")
#: limits for a cached project; a larger one is planned again each time (the largest known lock has 1 MB)
MOST_FILES, MOST_BYTES = 1000, 32 * MIB
#: number and size of cached files: one per host or cluster, playbook and set of options; a plan has about 60 KB
KEPT, PLAN_BYTES = 64, 8 * MIB
ABOUT_HOST = ("name", "address", "connection", "port", "recipe", "where", "on", "server")


@dataclass(frozen=True)
class KeptSource:
    """A `host.Source` as stored in the cache."""

    env: str | None
    file: str | None
    command: tuple[str, ...] | None

    @classmethod
    def of(cls, data: Sequence[Any]) -> KeptSource:
        """Parse a cached source. Raises ValueError and TypeError."""
        env, file, command = data
        return cls(env, file, None if command is None else tuple(command))


def _source(source: Source) -> list[Any]:
    return [source.env, source.file, source.command]


@dataclass(frozen=True)
class PlannedHost:
    """The plan of a host, with everything else that is needed to run it."""

    #: the host, with its address, login and environment
    host: Host
    #: login name on the host
    user: str
    plan: Plan
    #: see app/plans/server_context.py; None for a play that verifies nothing
    restart: dict[str, Any] | None = None
    #: messages of the planner about the host
    notes: tuple[str, ...] = ()
    #: messages that are the same for other hosts and are shown once
    notices: tuple[str, ...] = ()
    #: the server as the panel shows it; None for a play that serves nothing
    serves: Served | None = None
    #: source of the server's key, and its "file:line", by the name of the secret
    keys: Mapping[str, tuple[Source, str]] = field(default_factory=dict)
    #: version and options of the image's engine in spark.lock
    engine: dict[str, Any] = field(default_factory=dict)
    #: sent with the plan, never stored
    secrets: dict[str, Secret] = field(default_factory=dict)
    #: True if the plan depends only on files, and so stays valid until one of them changes
    lasting: bool = True

    def take(self, member: Member, fleet: Fleet, serves: Callable[[Served], None]) -> Plan:
        """Prepare a member for its run of this plan, and return the plan.

        Args:
            fleet: shows the notes.
            serves: called with the server that the host is going to run.
        """
        member.secrets = self.secrets
        member.restart = member.restart if self.restart is None else self.restart
        if self.serves is not None:
            serves(self.serves)
        for note in self.notes:
            fleet.tell(member, note)
        for notice in self.notices:
            fleet.tell(member, notice, once=True)
        return self.plan

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON, the inverse of `of`."""
        host = self.host
        about = {name: getattr(host, name) for name in ABOUT_HOST}
        return {
            "host": {**about, "user": host.user, "env": dict(host.env)},
            "sources": {name: _source(secret_source) for name, secret_source in host.secret_sources.items()},
            "keys": {name: [_source(key), where] for name, (key, where) in self.keys.items()},
            "user": self.user,
            "plan": self.plan.to_json(),
            "restart": self.restart,
            "notes": self.notes,
            "notices": self.notices,
            "serves": asdict(self.serves) if self.serves else None,
            "engine": self.engine,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> PlannedHost:
        """Parse a plan. Raises ValueError, TypeError, KeyError or AttributeError for invalid data."""
        sources = {name: KeptSource.of(source) for name, source in data["sources"].items()}
        return cls(
            host=Host(**data["host"], secret_sources=sources),
            user=data["user"],
            plan=Plan.from_json(data["plan"]),
            restart=data["restart"],
            notes=tuple(data["notes"]),
            notices=tuple(data["notices"]),
            serves=Served(**data["serves"]) if data["serves"] else None,
            keys={name: (KeptSource.of(key), str(where)) for name, (key, where) in data["keys"].items()},
            engine=dict(data["engine"]),
        )


class Place:
    """The cache entry of one command's plans, with the inputs that they would be made from now."""

    def __init__(self, project: Path, playbook: str, options: DeployOptions) -> None:
        name = json.dumps([str(project.resolve()), playbook, options.key()], sort_keys=True)
        self._project = project
        self._file = host_side.cache() / "plans" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
        self._inputs = ""
        #: True if the plans of this command can be cached
        self.usable = shipped_files.find(project, f"playbooks/{playbook}.yml") is not None and options.cacheable()
        if self.usable:
            with contextlib.suppress(OSError, ValueError):
                self._inputs = inputs(project)

    def find(self) -> list[PlannedHost]:
        """Return the cached plans, of a host or of a cluster's members, if their inputs are unchanged; otherwise none."""
        if not self._inputs:
            return []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            digest, _, text = _own(self._file).partition(b"\n")
            if digest.decode() == _digest(self._inputs, text):
                return [PlannedHost.of(item) for item in bounds.parsed(text)]
        return []

    def keep(self, made: Mapping[str, PlannedHost], members: Sequence[Member]) -> None:
        """Save the plans of members that have run, unless their inputs have changed since, or a plan contains a secret."""
        names = [member.host.name for member in members if member.host.connection == "ssh"]
        if len(names) == len(members) and all(name in made and made[name].lasting for name in names):
            secrets = [secret for member in members for secret in member.secrets.values()]
            self._keep([made[member.host.name] for member in members], secrets)

    def _keep(self, made: Sequence[PlannedHost], secrets: Sequence[Secret]) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            if not self._inputs or self._inputs != inputs(self._project):
                return
            text = json.dumps([planned.to_json() for planned in made])
            if any(text.count(planned.plan.run_id) != 1 for planned in made) or any(
                _shows(text, secret.reveal()) for secret in secrets
            ):
                return
            folder = private.folder(self._file.parent)
            write_atomically(self._file, f"{_digest(self._inputs, text.encode())}\n{text}".encode())
            _prune(folder)


def _own(path: Path) -> bytes:
    """Read a file that only this user can write to. Raises OSError and ValueError."""
    found = path.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & private.OTHERS or not stat.S_ISREG(found.st_mode):
        raise ValueError("somebody else's")
    return bounds.bytes_of(path, PLAN_BYTES)


def _shows(text: str, secret: str) -> bool:
    return secret in text or json.dumps(secret)[1:-1] in text


def _digest(inputs: str, text: bytes) -> str:
    return hashlib.sha256(f"{inputs}\n".encode() + text).hexdigest()


def _prune(folder: Path) -> None:
    """Delete all but the newest plans."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in found[KEPT:]:
        path.unlink(missing_ok=True)


def inputs(project: Path) -> str:
    """Return a digest of all inputs of a plan: the program, the current folder, and the content of the project's files.

    Raises OSError and ValueError.
    """
    total = hashlib.sha256(repr([SCHEMA, *_program(), str(here.folder()), str(project)]).encode())
    size = count = 0
    for path in _files(project):
        data = bounds.bytes_of(Path(path), MOST_BYTES)
        size, count = size + len(data), count + 1
        if size > MOST_BYTES or count > MOST_FILES:
            raise ValueError("too much to look through")
        total.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    return total.hexdigest()


def _files(project: Path) -> Iterator[str]:
    lock = str(project / LOCK)
    if os.path.lexists(lock):
        yield lock
    for folder in FOLDERS:
        for at, below, names in os.walk(project / folder, followlinks=True):
            below.sort()
            yield from (f"{at}/{name}" for name in sorted(names))


def _program() -> Iterator[Any]:
    """Yield what identifies the program that plans: Python, the installed packages, and shipped files by size and time."""
    yield sys.version
    yield host_side.content_hash()
    yield os.stat(Path(yaml.__file__).parent.parent).st_mtime_ns  # noqa: PTH116
    folders = [str(top) for top in (host_side.PACKAGE, *(shipped_files.source() / name for name in PLANNED))]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda dir_entry: dir_entry.name):
                if entry.is_dir():
                    folders += [] if entry.name == "__pycache__" else [entry.path]
                else:
                    found = entry.stat()
                    yield entry.name, found.st_size, found.st_mtime_ns
