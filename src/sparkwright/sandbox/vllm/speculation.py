"""Speculative decoding of the simulated engine: drafts, counters and their log line.

Names and words are those of vllm/v1/spec_decode/metrics.py, the same in 0.11.2 and 0.32.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm.speculation import METHODS
from sparkwright.sandbox.vllm.command_line.arguments import crashed
from sparkwright.trust import bounds

#: share of drafts whose first token is accepted, and share of these at each further position
GOOD, BAD, FURTHER = 0.85, 0.15, 0.8
#: time of a step with drafts, relative to one without
STEP_COST = 1.25
#: interval of the log's statistics, seconds
LOG_S = 10.0
#: step size that covers [0, 1) evenly
GOLDEN = 0.618034


@dataclass
class Drafts:
    """The drafts of speculative decoding, and how many of their tokens were accepted."""

    method: str
    model: str | None  #: of the drafter; None for one without
    depth: int  #: tokens of a draft
    good: bool = True  #: most first tokens are accepted
    drafts: int = 0
    positions: list[int] = field(default_factory=list)  #: accepted tokens by position
    _logged: tuple[float, int, list[int]] = (0.0, 0, [])

    def __post_init__(self) -> None:
        self.positions = [0] * self.depth
        self._logged = (time.monotonic(), 0, list(self.positions))

    def __repr__(self) -> str:
        shown = None if METHODS[self.method].drafter == "text" else self.model
        return f"SpeculativeConfig(method={self.method!r}, model={shown!r}, num_spec_tokens={self.depth})"

    @property
    def gain(self) -> float:
        """The rate of steps with drafts, as a share of the rate without."""
        return 1 / STEP_COST

    def step(self) -> int:
        """Count a draft. Return the tokens of its step: the accepted ones and the model's own."""
        spread, share = self.drafts * GOLDEN % 1.0, GOOD if self.good else BAD
        self.drafts += 1
        accepted = 0
        while accepted < self.depth and spread < share * FURTHER**accepted:
            self.positions[accepted] += 1
            accepted += 1
        return accepted + 1

    def counters(self) -> dict[str, tuple[str, int]]:
        """Return its counters except those by position, each with its description and value."""
        accepted = sum(self.positions)
        return {
            "vllm:spec_decode_num_drafts_total": ("Number of spec decoding drafts.", self.drafts),
            "vllm:spec_decode_num_draft_tokens_total": ("Number of draft tokens.", self.drafts * self.depth),
            "vllm:spec_decode_num_accepted_tokens_total": ("Number of accepted tokens.", accepted),
        }

    def log_line(self, now_s: float) -> str:
        """Return the log line for the time since the last one; empty if that is too short or nothing was drafted."""
        since_s, drafts, positions = self._logged
        drafted, seconds = self.drafts - drafts, now_s - since_s
        if seconds < LOG_S or not drafted:
            return ""
        at = [now - before for now, before in zip(self.positions, positions, strict=True)]
        self._logged = (now_s, self.drafts, list(self.positions))
        tokens, accepted = drafted * self.depth, sum(at)
        rates = ", ".join(f"{count / drafted:.3f}" for count in at)
        return (
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafted:.2f}, "
            f"Accepted throughput: {accepted / seconds:.2f} tokens/s, Drafted throughput: {tokens / seconds:.2f} tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {tokens} tokens, Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {accepted / tokens * 100:.1f}%"
        )


def drafts_of(given: Any, model: str, folder_of: Callable[[str], Path], *, good: bool) -> Drafts | None:
    """Return the drafts of a --speculative-config, or None without one. Raises Refused if the drafter is missing.

    Args:
        given: value of the flag.
        model: the served model.
        folder_of: returns the host path of a path in the container.
        good: most first tokens are accepted; else few are.
    """
    if not isinstance(given, Mapping):
        return None
    method, drafter = str(given.get("method") or "draft_model"), given.get("model")
    depth = bounds.count_of(given.get("num_speculative_tokens")) or 1
    if method not in METHODS:
        raise crashed(f"ValueError: Unsupported speculative method: {method!r}")
    if (
        isinstance(drafter, str)
        and METHODS[method].drafter != "text"
        and not (folder_of(drafter) / "config.json").is_file()
    ):
        raise crashed(
            f"OSError: Can't load the configuration of '{drafter}'. If you were trying to load it from 'https://huggingface.co/models',"
            " make sure you don't have a local directory with the same name."
        )
    return Drafts(method, drafter if isinstance(drafter, str) else model, min(depth, 32), good)
