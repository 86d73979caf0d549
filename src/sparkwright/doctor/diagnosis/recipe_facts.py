"""What is asked of a diagnosis: what the user's files say of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RecipeFacts:
    """What the user's files say, as far as they can be read; nothing of it is needed.

    container: its name. tok_per_s: what the recipe expects of one stream. model_id: on the hub. base_url: where the server
    answers, for one whose container does not publish its port. token_s: how long a token may take, 0 as the checks have it.
    """

    container: str = ""
    base_url: str = ""
    model: str = ""
    model_id: str = ""
    tok_per_s: float | None = None
    platform: Literal["gb10", "ascend"] = "gb10"
    token_s: float = 0.0
    key: str = ""
