"""Docker's container states, in English."""

from __future__ import annotations


def status_of(status: str) -> str:
    """Return a state as the rest of a sentence: "has exited", "is paused"."""
    return {"exited": "has exited", "created": "was created but never started"}.get(status, f"is {status}")
