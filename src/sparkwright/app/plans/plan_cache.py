"""A cache of plans, keyed by their inputs, so that a host or cluster is planned again only if the inputs change.

Planning (Pydantic, Jinja2, the engines' rules, the compiler) takes two thirds of the laptop's time in a deploy without changes
(docs/decisions/0019). Plans are stored as data in the user's cache folder and are readable only by the user. A file that is
damaged, from another version, or owned by another user is ignored. Secrets are not stored, only their sources, which are read
again for each run.
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
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.console.events.summary import ServerSummary
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

CACHE_SCHEMA = 5
#: inputs of a plan in the project; a playbook can only include files from its own folder and shipped ones
INPUT_FOLDERS, LOCK_FILE = ("hosts", "playbooks", "recipes", "templates"), "spark.lock"
#: inputs of a plan among the shipped files
SHIPPED_INPUT_FOLDERS = ("playbooks", "templates")
#: limits for the inputs; plans of a larger project are not cached (the largest known lock is 1 MB)
MAX_INPUT_FILES, MAX_INPUT_BYTES = 1000, 32 * MIB
#: limits for the number and size of cache files, one per host or cluster, playbook and set of options; a plan is about 60 KB
MAX_CACHED_PLANS, MAX_PLAN_BYTES = 64, 8 * MIB
HOST_FIELDS = ("name", "address", "connection", "port", "recipe", "where", "shared_machine", "server")


@dataclass(frozen=True)
class CachedSource:
    """A `host.Source` as stored in the cache."""

    env: str | None
    file: str | None
    command: tuple[str, ...] | None

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> CachedSource:
        """Parse a cached source. Raises ValueError or TypeError for invalid data."""
        env, file, command = data
        return cls(env, file, None if command is None else tuple(command))


def _source_json(source: Source) -> list[Any]:
    return [source.env, source.file, source.command]


@dataclass(frozen=True)
class PlannedHost:
    """A host's plan, with everything else that is needed to run it."""

    host: Host
    #: login name on the host
    user: str
    plan: Plan
    #: restart plan, see app/plans/server_context.py; None if the play does not store one on the host
    restart_plan: dict[str, Any] | None = None
    #: notes about the host
    notes: tuple[str, ...] = ()
    #: notes that may be the same for several hosts, and are then shown once
    notices: tuple[str, ...] = ()
    #: the server for the panel; None if the play starts none
    server: ServerSummary | None = None
    #: source of the server's key and its "file:line", by secret name
    key_sources: Mapping[str, tuple[Source, str]] = field(default_factory=dict)
    #: the image, with its digest, engine version and options in spark.lock
    engine_facts: dict[str, Any] = field(default_factory=dict)
    #: sent with the plan, never stored
    secrets: dict[str, Secret] = field(default_factory=dict)
    #: True if the plan depends only on files that `input_digest` includes
    is_cacheable: bool = True

    def prepare_member(self, member: Member, fleet: Fleet, store_server: Callable[[ServerSummary], None]) -> Plan:
        """Prepare a member for a run of this plan, emit the notes, and return the plan.

        Args:
            store_server: called with the server that the play starts, if any.
        """
        member.secrets = self.secrets
        member.restart = member.restart if self.restart_plan is None else self.restart_plan
        if self.server is not None:
            store_server(self.server)
        for note in self.notes:
            fleet.add_note(member, note)
        for notice in self.notices:
            fleet.add_note(member, notice, one_host_only=True)
        return self.plan

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON, the inverse of `from_json`."""
        host = self.host
        host_fields = {name: getattr(host, name) for name in HOST_FIELDS}
        return {
            "host": {**host_fields, "user": host.user, "env": dict(host.env)},
            "sources": {name: _source_json(secret_source) for name, secret_source in host.secret_sources.items()},
            "key_sources": {name: [_source_json(key), where] for name, (key, where) in self.key_sources.items()},
            "user": self.user,
            "plan": self.plan.to_json(),
            "restart": self.restart_plan,
            "notes": self.notes,
            "notices": self.notices,
            "server": asdict(self.server) if self.server else None,
            "engine": self.engine_facts,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedHost:
        """Parse a plan. Raises ValueError, TypeError, KeyError or AttributeError for invalid data."""
        sources = {name: CachedSource.from_json(source) for name, source in data["sources"].items()}
        return cls(
            host=Host(**data["host"], secret_sources=sources),
            user=data["user"],
            plan=Plan.from_json(data["plan"]),
            restart_plan=data["restart"],
            notes=tuple(data["notes"]),
            notices=tuple(data["notices"]),
            server=ServerSummary(**data["server"]) if data["server"] else None,
            key_sources={
                name: (CachedSource.from_json(key), str(where)) for name, (key, where) in data["key_sources"].items()
            },
            engine_facts=dict(data["engine"]),
        )


class PlanCacheEntry:
    """The cache entry for the plans of a command with given options."""

    def __init__(self, project: Path, playbook: str, options: DeployOptions) -> None:
        name = json.dumps([str(project.resolve()), playbook, options.cache_key()], sort_keys=True)
        self._project = project
        self._path = host_side.cache_folder() / "plans" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
        #: empty if the command's plans can't be cached
        self._input_digest = ""
        if shipped_files.find_file(project, f"playbooks/{playbook}.yml") is not None and options.is_cacheable():
            with contextlib.suppress(OSError, ValueError):
                self._input_digest = input_digest(project)

    def find(self) -> list[PlannedHost]:
        """Return the cached plans of a host or of a cluster's members; empty if there are none or their inputs have changed."""
        if not self._input_digest:
            return []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            digest, _, text = _read_own_file(self._path).partition(b"\n")
            if digest.decode() == _digest(self._input_digest, text):
                return [PlannedHost.from_json(plan) for plan in bounds.parse_bounded_json(text)]
        return []

    def save(self, plans: Mapping[str, PlannedHost], members: Sequence[Member]) -> None:
        """Save the members' plans, unless a plan is not cacheable or contains a secret, or the inputs have since changed."""
        planned_hosts = [plans[member.host.name] for member in members if member.host.name in plans]
        if len(planned_hosts) < len(members):
            return
        if not all(
            planned_host.is_cacheable and planned_host.host.connection == "ssh" for planned_host in planned_hosts
        ):
            return
        secrets = [secret.reveal() for member in members for secret in member.secrets.values()]
        with contextlib.suppress(OSError, ValueError, TypeError):
            if not self._input_digest or self._input_digest != input_digest(self._project):
                return
            text = json.dumps([planned_host.to_json() for planned_host in planned_hosts])
            is_run_id_unique = all(text.count(planned_host.plan.run_id) == 1 for planned_host in planned_hosts)
            if not is_run_id_unique or any(_contains_secret(text, secret) for secret in secrets):
                return
            folder = private.create_folder(self._path.parent)
            write_atomically(self._path, f"{_digest(self._input_digest, text.encode())}\n{text}".encode())
            _prune_cache(folder)


def _read_own_file(path: Path) -> bytes:
    """Read a file that this user owns and others can't access. Raises OSError or ValueError."""
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & private.OTHERS_MASK or not stat.S_ISREG(status.st_mode):
        raise ValueError("not a private file of this user")
    return bounds.read_bytes(path, MAX_PLAN_BYTES)


def _contains_secret(text: str, secret: str) -> bool:
    return secret in text or json.dumps(secret)[1:-1] in text


def _digest(input_digest: str, text: bytes) -> str:
    return hashlib.sha256(f"{input_digest}\n".encode() + text).hexdigest()


def _prune_cache(folder: Path) -> None:
    """Delete all but the newest files."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in paths[MAX_CACHED_PLANS:]:
        path.unlink(missing_ok=True)


def input_digest(project: Path) -> str:
    """Return a digest of a plan's inputs: the program, the current folder, and the project's files.

    Raises OSError, or ValueError if the project exceeds the limits.
    """
    digest = hashlib.sha256(
        repr([CACHE_SCHEMA, *_program_identity(), str(here.project_folder()), str(project)]).encode()
    )
    total_bytes = file_count = 0
    for path in _list_input_files(project):
        data = bounds.read_bytes(Path(path), MAX_INPUT_BYTES)
        total_bytes, file_count = total_bytes + len(data), file_count + 1
        if total_bytes > MAX_INPUT_BYTES or file_count > MAX_INPUT_FILES:
            raise ValueError("the project is too large")
        digest.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    return digest.hexdigest()


def _list_input_files(project: Path) -> Iterator[str]:
    lock = str(project / LOCK_FILE)
    if os.path.lexists(lock):
        yield lock
    for folder in INPUT_FOLDERS:
        for parent, subfolders, names in os.walk(project / folder, followlinks=True):
            subfolders.sort()
            yield from (f"{parent}/{name}" for name in sorted(names))


def _program_identity() -> Iterator[Any]:
    """Yield values that change with the program: Python, the installed packages, and the size and time of shipped files."""
    yield sys.version
    yield host_side.content_hash()
    yield os.stat(Path(yaml.__file__).parent.parent).st_mtime_ns  # noqa: PTH116
    folders = [
        str(top)
        for top in (
            host_side.PACKAGE_FOLDER,
            *(shipped_files.shipped_folder() / name for name in SHIPPED_INPUT_FOLDERS),
        )
    ]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda dir_entry: dir_entry.name):
                if entry.is_dir():
                    folders += [] if entry.name == "__pycache__" else [entry.path]
                else:
                    status = entry.stat()
                    yield entry.name, status.st_size, status.st_mtime_ns
