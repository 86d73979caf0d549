"""The facts from the user's files that a diagnosis of a server uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RecipeFacts:
    """The facts from the user's files, as far as they can be read; all are optional."""

    #: its name
    container: str = ""
    #: the server's URL, for one whose container does not publish its port
    base_url: str = ""
    model: str = ""
    #: on the hub
    model_id: str = ""
    #: the rate that the recipe expects of one stream
    tok_per_s: float | None = None
    platform: Literal["gb10", "ascend"] = "gb10"
    #: how long a token may take, seconds; 0 for the limit of the health checks
    token_s: float = 0.0
    key: str = ""
