"""A host's measurements: baselines under the key that makes them comparable, reference texts, and the lab's cells."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.http import Http
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder, newest_first
from sparkwright.measure import reference, smoke
from sparkwright.measure.reference import GeneratedText
from sparkwright.measure.smoke import Baseline
from sparkwright.protocol.container import group_options
from sparkwright.trust.image_name import digest_of

FOLDER = "baselines"
#: the members, in a cluster's key: its texts do not depend on them, but its throughput does
MEMBERS = "members"


@dataclass(frozen=True, slots=True)
class NearestBaseline:
    """A baseline with another key, and the differing fields."""

    baseline: Baseline
    differing_fields: tuple[str, ...]


@dataclass(frozen=True)
class Baselines:
    """The baselines of a host."""

    #: the host's state folder
    state: StateFolder

    def read(self, key: Mapping[str, Any]) -> Baseline | None:
        """Return the baseline of this key; None if there is none."""
        record = self.state.read(record_name(FOLDER, key))
        return Baseline.from_json(record) if record else None

    def write(self, key: Mapping[str, Any], baseline: Baseline, about: Mapping[str, Any]) -> None:
        """Record a baseline.

        Args:
            about: information that is not part of the key: driver, versions.
        """
        self.state.write(record_name(FOLDER, key), {**baseline.to_json(), "key": dict(key), "about": dict(about)})

    def read_about(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return the information recorded with a baseline; empty if there is none.

        Its kernel path, the GPU's power and utilization.
        """
        record = self.state.read(record_name(FOLDER, key)) or {}
        return dict(record.get("about") or {})

    def add_about(self, key: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Record more information about a baseline, which itself stays unchanged; nothing without one."""
        record = self.state.read(record_name(FOLDER, key))
        if record:
            self.state.write(record_name(FOLDER, key), {**record, "about": {**(record.get("about") or {}), **about}})

    def remove(self, key: Mapping[str, Any]) -> None:
        """Remove the baseline of a server that turned out to generate nonsense."""
        self.state.remove(record_name(FOLDER, key))

    def find_nearest(self, key: Mapping[str, Any]) -> NearestBaseline | None:
        """Return the baseline of the same model whose key differs least; None if there is none."""
        candidates: list[NearestBaseline] = []
        for path in sorted((self.state.path / FOLDER).glob("*.json")):
            record = self.state.read(f"{FOLDER}/{path.stem}") or {}
            other = record.get("key") or {}
            differs = tuple(name for name in key if other.get(name) != key[name])
            if differs and other.get("model") == key.get("model"):
                candidates.append(NearestBaseline(Baseline.from_json(record), differs))
        return min(candidates, key=lambda nearest: len(nearest.differing_fields), default=None)


def record_name(folder: str, key: Mapping[str, Any]) -> str:
    """Return the name in the state folder for a key's record."""
    return f"{folder}/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def build_key(configuration: Mapping[str, Any], machine: Machine, http: Http) -> dict[str, Any]:
    """Return the key that makes measurements comparable: host, model, digest, arguments, environment, prompts, client.

    The order of arguments does not count, nor does the tag before a digest.

    Args:
        http: of the measured engine.
    """
    key = {name: _canonicalize(value) for name, value in configuration.items()}
    return {
        **key,
        "host": _host_id(machine),
        "speculation": smoke.has_speculation(http, configuration),
        "prompts": smoke.PROMPT_SET,
        "client": smoke.CLIENT_VERSION,
    }


def _host_id(machine: Machine) -> str:
    """Return the machine's id; its host name if it has none."""
    try:
        return machine.path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _canonicalize(value: Any) -> Any:
    if isinstance(value, str) and "@sha256:" in value:
        return digest_of(value)
    return sorted(group_options(value)) if isinstance(value, list | tuple) else value


# The lab's measurements on this host: one file per cell, so that a finished cell is never measured twice.
#
# ~/.local/state/sparkwright/bench/SERIES/KEY.json; a series is one experiment, from its first command to its last cell.

CELLS_FOLDER = "bench"
MAX_SERIES = 20


def read_cell(state: StateFolder, series: str, key: str) -> dict[str, Any] | None:
    """Return a finished cell; None if it is not finished."""
    return state.read(f"{CELLS_FOLDER}/{series}/{key}")


def write_cell(state: StateFolder, series: str, key: str, cell: dict[str, Any]) -> None:
    """Record a finished cell, and remove the oldest series."""
    state.write(f"{CELLS_FOLDER}/{series}/{key}", cell)
    for old in newest_first((state.path / CELLS_FOLDER).iterdir())[MAX_SERIES:]:
        shutil.rmtree(old, ignore_errors=True)


def read_cells(state: StateFolder, series: str, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the finished ones of these cells, by key."""
    cells = {key: read_cell(state, series, key) for key in keys}
    return {key: cell for key, cell in cells.items() if cell is not None}


REFERENCES_FOLDER = "references"


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference texts of a server."""

    #: of reference.PROMPTS, then of LONG if it was requested
    texts: tuple[GeneratedText, ...]
    #: when they were generated, seconds since the epoch
    since: float


def read_reference(state: StateFolder, key: Mapping[str, Any]) -> Reference | None:
    """Return the reference of this key; None if there is none for the present set of prompts."""
    record = state.read(record_name(REFERENCES_FOLDER, key)) or {}
    if record.get("prompts") != reference.PROMPT_SET or len(record.get("texts") or ()) < len(reference.PROMPTS):
        return None
    return Reference(tuple(GeneratedText.from_json(text) for text in record["texts"]), float(record.get("since") or 0))


def write_reference(state: StateFolder, key: Mapping[str, Any], texts: Sequence[GeneratedText]) -> None:
    """Record the texts."""
    header = {"prompts": reference.PROMPT_SET, "since": time.time(), "key": dict(key)}
    state.write(record_name(REFERENCES_FOLDER, key), {**header, "texts": [text.to_json() for text in texts]})
