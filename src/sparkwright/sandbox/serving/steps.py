"""The steps of the simulated engine: prompts are computed one at a time, one chunk a step."""

from __future__ import annotations

import threading


class Steps:
    """The current step. One prompt is computed at a time, a chunk a step, and tokens are delivered after the step."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.now = (0.0, 0.0)  # beginning and end of the current step

    def after(self, due_s: float) -> float:
        """Return the time at which a token is delivered that is due at `due_s`."""
        began_s, ends_s = self.now
        return ends_s if began_s <= due_s < ends_s else due_s
