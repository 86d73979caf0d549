"""Formatting of figures and names as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sparkwright import units


def amount(done: float, total: float, unit: str) -> str:
    """Return the progress as text, for example "1.2 GB of 9.0 GB", "64 of 128 tokens" or "12s of 15m00s"."""
    say = {"bytes": units.size, "s": units.duration}.get(unit, "{:g}".format)
    tail = f" {unit}" if unit not in ("bytes", "s", "") else ""
    return f"{say(done)} of {say(total)}{tail}" if total else f"{say(done)}{tail}"


def names(given: Sequence[str], most: int = 12) -> str:
    """Return names as "spark1, spark2 and spark3"; if there are very many, the first ones and the number of others."""
    shown = [*given[:most], *([f"{len(given) - most} more"] if len(given) > most else [])]
    return " and ".join([*([", ".join(shown[:-1])] if shown[1:] else []), *shown[-1:]])


SIMULATED = "a simulated Spark without GPU or real model"


def simulated(host: str) -> str:
    """Return the sentence that introduces a sandbox."""
    return f"{host} is the sandbox: {SIMULATED}."


def as_of(host: str) -> str:
    """Return the sentence for a host that failed for the same reason as another."""
    return f"same reason as {host}"


def line(value: Any) -> str:
    """Return any value as one line, with a digest shortened to its first twelve characters."""
    text = "absent" if value is None else value if isinstance(value, str) else str(value)
    return re.sub(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}", r"\1…", text.replace("\n", "⏎"))


def short(value: Any, width: int = 88) -> str:
    """Return a value as one line of at most this many characters."""
    text = line(value)
    return text if len(text) <= width else text[: width - 1] + "…"
