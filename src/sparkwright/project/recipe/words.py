"""Types of a recipe's values that docker has to understand: a wrong one is refused with its line, before any host is asked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from sparkwright.engines.vllm.flags import flags
from sparkwright.project.documents.checked import by
from sparkwright.protocol.container import OWN_LABELS
from sparkwright.trust import container_words
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.visible import one_line


def _not_an_image(ref: str) -> str:
    shown = f"'{one_line(ref, at_most=80)}'"
    if "@" in ref:
        return f"{shown} has a digest: use a tag; spark.lock pins its digest."
    reason = why_not_an_image(ref)
    return f"{shown} {reason}." if reason else ""


def _labels(labels: dict[str, str]) -> str:
    own = next((name for name in labels if name.startswith(OWN_LABELS)), "")
    if own:
        return f"'{one_line(own, at_most=80)}': labels that start with `{OWN_LABELS}` are reserved. Rename it."
    return _first(map(container_words.label, labels))


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _text(value: object) -> object:
    """Without quotes YAML reads 22:22 as a number, to the base of 60."""
    if isinstance(value, int | float):
        raise ValueError('quote it: "8000:8000".')
    return value


ImageName = Annotated[str, by(_not_an_image)]
Port = Annotated[str, BeforeValidator(_text), by(container_words.port)]
Gpus = Annotated[str, by(container_words.gpus)]
Ulimit = Annotated[str, by(container_words.ulimit)]
Ulimits = Annotated[dict[str, Ulimit], by(lambda limits: _first(map(container_words.limit_name, limits)))]
Volume = Annotated[str, by(container_words.volume)]
Source = Annotated[str, by(container_words.source)]
Target = Annotated[str, by(container_words.target)]
Environment = Annotated[dict[str, str], by(lambda env: _first(starmap(container_words.variable, env.items())))]
#: of vllm serve: their names are the engine's own from here on
Flags = Annotated[dict[str, Any], AfterValidator(flags.named)]
Labels = Annotated[dict[str, str], by(_labels)]
