"""Stored measurements of a host: throughput baselines, reference texts, and the lab's results.

Baselines and reference texts are stored under a hash of the key that makes them comparable (`build_key`).
"""

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
from sparkwright.measure import reference, throughput
from sparkwright.measure.reference import GeneratedText
from sparkwright.measure.throughput import Baseline
from sparkwright.protocol.container import group_options
from sparkwright.trust.image_name import digest_of

FOLDER = "baselines"
REFERENCES_FOLDER = "references"
#: the lab's results, ~/.local/state/sparkwright/bench/SERIES/KEY.json; a series is one experiment
CELLS_FOLDER = "bench"
MAX_SERIES = 20
#: field of a key that contains the members of a cluster; throughput depends on them, reference texts do not
MEMBERS_FIELD = "members"


@dataclass(frozen=True, slots=True)
class NearestBaseline:
    """A baseline with another key, and the differing fields."""

    baseline: Baseline
    differing_fields: tuple[str, ...]


@dataclass(frozen=True)
class Baselines:
    """The throughput baselines of a host."""

    #: the host's state folder
    state: StateFolder

    def read(self, key: Mapping[str, Any]) -> Baseline | None:
        """Return the baseline with this key; None if there is none."""
        record = self.state.read(record_name(FOLDER, key))
        return Baseline.from_json(record) if record else None

    def write(self, key: Mapping[str, Any], baseline: Baseline, conditions: Mapping[str, Any]) -> None:
        """Record a baseline.

        Args:
            conditions: information that is not part of the key, such as the driver and versions.
        """
        self.state.write(record_name(FOLDER, key), {**baseline.to_json(), "key": dict(key), "about": dict(conditions)})

    def read_conditions(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return the additional information of a baseline, such as its kernels and the GPU's power; empty if there is none."""
        record = self.state.read(record_name(FOLDER, key)) or {}
        return dict(record.get("about") or {})

    def add_conditions(self, key: Mapping[str, Any], conditions: Mapping[str, Any]) -> None:
        """Add information to a baseline, if there is one with this key."""
        record = self.state.read(record_name(FOLDER, key))
        if record:
            self.state.write(
                record_name(FOLDER, key), {**record, "about": {**(record.get("about") or {}), **conditions}}
            )

    def remove(self, key: Mapping[str, Any]) -> None:
        """Remove a baseline, for example after its server turned out to generate nonsense."""
        self.state.remove(record_name(FOLDER, key))

    def find_nearest(self, key: Mapping[str, Any]) -> NearestBaseline | None:
        """Return the baseline of the same model whose key differs in the fewest fields, at least one; None if there is none."""
        candidates: list[NearestBaseline] = []
        for path in sorted((self.state.path / FOLDER).glob("*.json")):
            record = self.state.read(f"{FOLDER}/{path.stem}") or {}
            other_key = record.get("key") or {}
            differing_fields = tuple(name for name in key if other_key.get(name) != key[name])
            if differing_fields and other_key.get("model") == key.get("model"):
                candidates.append(NearestBaseline(Baseline.from_json(record), differing_fields))
        return min(candidates, key=lambda nearest: len(nearest.differing_fields), default=None)


def record_name(folder: str, key: Mapping[str, Any]) -> str:
    """Return the name of a key's record in the state folder."""
    return f"{folder}/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def build_key(configuration: Mapping[str, Any], machine: Machine, http: Http) -> dict[str, Any]:
    """Return the key that makes measurements comparable: the configuration, host, speculation, prompts and client version.

    Arguments are sorted, and an image with a digest is reduced to the digest.

    Args:
        configuration: image, model, arguments and environment of the server.
    """
    key = {name: _canonicalize(value) for name, value in configuration.items()}
    return {
        **key,
        "host": _host_id(machine),
        "speculation": throughput.has_speculation(http, configuration),
        "prompts": throughput.PROMPT_SET,
        "client": throughput.CLIENT_VERSION,
    }


def _host_id(machine: Machine) -> str:
    """Return /etc/machine-id, or else the host name."""
    try:
        return machine.path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _canonicalize(value: Any) -> Any:
    if isinstance(value, str) and "@sha256:" in value:
        return digest_of(value)
    return sorted(group_options(value)) if isinstance(value, list | tuple) else value


# -- the lab's results: one file per cell (a configuration of an experiment), so that an experiment can be resumed -----


def read_cell(state: StateFolder, series: str, key: str) -> dict[str, Any] | None:
    """Return the result of a cell; None if it was not measured."""
    return state.read(f"{CELLS_FOLDER}/{series}/{key}")


def write_cell(state: StateFolder, series: str, key: str, cell: dict[str, Any]) -> None:
    """Record the result of a cell. Keeps the newest MAX_SERIES series."""
    state.write(f"{CELLS_FOLDER}/{series}/{key}", cell)
    for old_series in newest_first((state.path / CELLS_FOLDER).iterdir())[MAX_SERIES:]:
        shutil.rmtree(old_series, ignore_errors=True)


def read_cells(state: StateFolder, series: str, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the results by key, without the cells that were not measured."""
    cells = {key: read_cell(state, series, key) for key in keys}
    return {key: cell for key, cell in cells.items() if cell is not None}


# -- reference texts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference texts of a server."""

    #: one per prompt of reference.PROMPTS, and one for LONG if requested
    texts: tuple[GeneratedText, ...]
    #: when they were generated, seconds since the epoch
    since: float


def read_reference(state: StateFolder, key: Mapping[str, Any]) -> Reference | None:
    """Return the reference texts with this key; None if there are none for the current set of prompts."""
    record = state.read(record_name(REFERENCES_FOLDER, key)) or {}
    if record.get("prompts") != reference.PROMPT_SET or len(record.get("texts") or ()) < len(reference.PROMPTS):
        return None
    return Reference(tuple(GeneratedText.from_json(text) for text in record["texts"]), float(record.get("since") or 0))


def write_reference(state: StateFolder, key: Mapping[str, Any], texts: Sequence[GeneratedText]) -> None:
    """Record reference texts, generated now."""
    header = {"prompts": reference.PROMPT_SET, "since": time.time(), "key": dict(key)}
    state.write(record_name(REFERENCES_FOLDER, key), {**header, "texts": [text.to_json() for text in texts]})
