"""A container's settings as they are shown: what stands under the name of a secret, or looks like one, becomes dots.

For secrets whose values nobody told this tool; redact.py hides those that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.trust.redact import DOTS
from sparkwright.trust.secret_names import is_secret, names_a_secret


def variables(env: Mapping[str, Any]) -> dict[str, Any]:
    """Environment or labels with dots for what is a secret, by its name or by its looks."""
    return {name: DOTS if names_a_secret(name) or is_secret(name, value) else value for name, value in env.items()}


def pairs(env: Sequence[str]) -> list[str]:
    """The same as NAME=VALUE, as Docker writes it."""
    shown = variables(dict(pair.partition("=")[::2] for pair in env))
    return [f"{name}={shown[name]}" if "=" in pair else name for pair in env for name in [pair.partition("=")[0]]]


def words(command: Sequence[str]) -> list[str]:
    """A command line with dots for the values of flags that are named like a secret: --flag=VALUE, --flag VALUE VALUE."""
    found: list[str] = []
    hide = False
    for word in command:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            secret = names_a_secret(name.lstrip("-"))
            hide = secret and not equals
            found.append(f"{name}={DOTS}" if secret and equals else word)
        else:
            found.append(DOTS if hide or is_secret("", word) else word)
    return found


def value(name: str, reported: Any) -> Any:
    """A field of a container, or a flag by its --name, as a difference shows it."""
    if reported is None or reported == "":
        return reported
    if isinstance(reported, Mapping):
        return variables(reported)
    if name.startswith("-") and names_a_secret(name.lstrip("-")):
        return DOTS
    return " ".join(words(reported.split(" "))) if isinstance(reported, str) else reported
