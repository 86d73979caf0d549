"""The steps of the pretend engine: prompts are computed one at a time, a piece a step."""

from __future__ import annotations

import threading


class Steps:
    """One prompt is computed at a time, a piece a step, and nobody gets a token before the step is over."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.now = (0.0, 0.0)  # when the present step began, and when it ends

    def after(self, due_s: float) -> float:
        """Return the time at which a token is delivered that is due at `due_s`."""
        began_s, ends_s = self.now
        return ends_s if began_s <= due_s < ends_s else due_s
