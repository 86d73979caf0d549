"""Types of a recipe's values that docker has to understand: a wrong one is refused with its line, before any host is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from sparkwright.engines.vllm.flags import flags
from sparkwright.protocol.container import OWN_LABELS
from sparkwright.trust import container_words
from sparkwright.trust.image_name import why_not_an_image
from sparkwright.visible import one_line


def _by(why_not: Callable[[str], str]) -> AfterValidator:
    def check(text: str) -> str:
        reason = why_not(text)
        if reason:
            raise ValueError(reason)
        return text

    return AfterValidator(check)


def _not_an_image(ref: str) -> str:
    shown = f"'{one_line(ref, at_most=80)}'"
    if "@" in ref:
        return f"{shown} has a digest: use a tag; spark.lock pins its digest."
    reason = why_not_an_image(ref)
    return f"{shown} {reason}." if reason else ""


def _environment(env: dict[str, str]) -> dict[str, str]:
    reason = next((reason for name, value in env.items() if (reason := container_words.variable(name, value))), "")
    if reason:
        raise ValueError(reason)
    return env


def _labels(labels: dict[str, str]) -> dict[str, str]:
    own = next((name for name in labels if name.startswith(OWN_LABELS)), "")
    if own:
        raise ValueError(
            f"'{one_line(own, at_most=80)}': labels that start with `{OWN_LABELS}` are reserved. Rename it."
        )
    reason = next((reason for name in labels if (reason := container_words.label(name))), "")
    if reason:
        raise ValueError(reason)
    return labels


def _limits(limits: dict[str, str]) -> dict[str, str]:
    reason = next((reason for name in limits if (reason := container_words.limit_name(name))), "")
    if reason:
        raise ValueError(reason)
    return limits


def _text(value: object) -> object:
    """Without quotes YAML reads 22:22 as a number, to the base of 60."""
    if isinstance(value, int | float):
        raise ValueError('quote it: "8000:8000".')
    return value


ImageName = Annotated[str, _by(_not_an_image)]
Size = Annotated[str, _by(container_words.size)]
Port = Annotated[str, BeforeValidator(_text), _by(container_words.port)]
Gpus = Annotated[str, _by(container_words.gpus)]
Ipc = Annotated[str, _by(container_words.ipc)]
Ulimit = Annotated[str, _by(container_words.ulimit)]
Ulimits = Annotated[dict[str, Ulimit], AfterValidator(_limits)]
Volume = Annotated[str, _by(container_words.volume)]
Source = Annotated[str, _by(container_words.source)]
Target = Annotated[str, _by(container_words.target)]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]
#: of vllm serve: their names are the engine's own from here on
Flags = Annotated[dict[str, Any], AfterValidator(flags.named)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
