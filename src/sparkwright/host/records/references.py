"""The texts that a host's servers generated when they were verified, each under the key of its throughput baseline."""

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
    """The texts of reference.PROMPTS, then of LONG if it was asked. since: when they were generated, seconds since the epoch."""

    texts: tuple[Text, ...]
    since: float


def read(state: StateFolder, key: Mapping[str, Any]) -> Reference | None:
    """The reference of this key; None when there is none for today's prompts."""
    kept = state.read(name_of(FOLDER, key)) or {}
    if kept.get("prompts") != reference.PROMPT_SET or len(kept.get("texts") or ()) < len(reference.PROMPTS):
        return None
    return Reference(tuple(Text.from_json(text) for text in kept["texts"]), float(kept.get("since") or 0))


def write(state: StateFolder, key: Mapping[str, Any], texts: Sequence[Text]) -> None:
    """Keep them."""
    about = {"prompts": reference.PROMPT_SET, "since": time.time(), "key": dict(key)}
    state.write(name_of(FOLDER, key), {**about, "texts": [text.to_json() for text in texts]})
