"""The reference texts that a host's servers generated when they were verified, under the keys of their throughput baselines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.host.records.baselines import name_of
from sparkwright.host.state import StateFolder
from sparkwright.measure import reference
from sparkwright.measure.reference import Text

FOLDER = "references"


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference texts of a server."""

    #: of reference.PROMPTS, then of LONG if it was requested
    texts: tuple[Text, ...]
    #: when they were generated, seconds since the epoch
    since: float


def read(state: StateFolder, key: Mapping[str, Any]) -> Reference | None:
    """Return the reference of this key; None if there is none for the present set of prompts."""
    kept = state.read(name_of(FOLDER, key)) or {}
    if kept.get("prompts") != reference.PROMPT_SET or len(kept.get("texts") or ()) < len(reference.PROMPTS):
        return None
    return Reference(tuple(Text.from_json(text) for text in kept["texts"]), float(kept.get("since") or 0))


def write(state: StateFolder, key: Mapping[str, Any], texts: Sequence[Text]) -> None:
    """Record the texts."""
    about = {"prompts": reference.PROMPT_SET, "since": time.time(), "key": dict(key)}
    state.write(name_of(FOLDER, key), {**about, "texts": [text.to_json() for text in texts]})
