"""The swept flags of an experiment and their values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.engines.flags import Flags
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.trust.secret_names import is_secret
from sparkwright.visible import one_line

#: value that removes a flag from an arm
UNSET = "unset"
#: maximum number of server starts in an experiment; with a 35B model, each takes about five minutes
MAX_ARMS = 16
#: maximum number of flags that an experiment changes, because a table has two dimensions
MAX_AXES = 2
FLAG_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MAX_ARM_NAME_CHARS = 40


@dataclass(frozen=True)
class Axis:
    """A swept flag of an engine, or a key in a flag that takes JSON, with its values."""

    #: `max-num-seqs`, or `speculative-config.num_speculative_tokens`
    name: str
    #: values, one per arm; UNSET removes the whole flag
    values: tuple[Any, ...]

    @property
    def flag(self) -> str:
        """The flag, without the key inside it."""
        return self.name.partition(".")[0]

    def flag_changes(self, value: Any, flags: Mapping[str, Any], engine_flags: Flags) -> dict[str, Any]:
        """Return the flags to change for one value.

        Args:
            value: one of `values`.
            flags: the recipe's flags by their canonical names.
            engine_flags: the engine's canonical flag names.

        Returns:
            Values by flag; None removes a flag.

        Raises:
            Refused: a key was given for a flag whose value is not a JSON object.
        """
        flag, dot, key = self.name.partition(".")
        flag_name = engine_flags.canonical(flag)
        dotted_names = [name for name in flags if name.startswith(f"{flag_name}.")]
        if not dot:
            change = {flag_name: None} if value == UNSET else engine_flags.normalize({flag: value})
            return {**dict.fromkeys(dotted_names), **change}
        if value == UNSET:
            return {flag_name: None, **dict.fromkeys(dotted_names)}
        content = _copy_json_object(flag_name, flags.get(flag_name))
        for name in dotted_names:
            _set_path(content, name.partition(".")[2], flags[name])
        _set_path(content, key, value)
        return {flag_name: content, **dict.fromkeys(dotted_names)}


def parse_axes(names: Sequence[str], texts: Sequence[str]) -> tuple[Axis, ...]:
    """Return the axes described by `--flag NAME --values a,b,c`, which may be given once or twice.

    Raises:
        Refused: there are not as many names as lists of values, a name is malformed, or a list is empty or repeats a value.
    """
    if len(names) != len(texts):
        raise Refused("--flag and --values come in pairs.", fix="--flag max-num-seqs --values 4,8,16")
    if len(names) > MAX_AXES:
        raise Refused(f"--flag is given {len(names)} times: an experiment changes one flag or two.")
    return tuple(Axis(_parse_name(name), _parse_values(name, text)) for name, text in zip(names, texts, strict=True))


def combine_values(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of values by axis name, varying the last axis fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield {axis.name: value for axis, value in zip(axes, values, strict=True)}


def arm_names(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a short name for each combination: its values, without characters that are invalid in file names and labels."""
    names = ["-".join(map(_file_safe_value, values.values()))[:MAX_ARM_NAME_CHARS] for values in combinations]
    return names if len(set(names)) == len(names) else [f"{n}-{name}" for n, name in enumerate(names, 1)]


def canonical_name(name: str, engine_flags: Flags) -> str:
    """Return an axis's name with the flag's canonical spelling."""
    flag, dot, key = name.partition(".")
    return engine_flags.canonical(flag) + dot + key


def _file_safe_value(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", format_value(value)).strip("_-") or "x"


def format_value(value: Any) -> str:
    """Return a value in command line syntax."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _parse_name(text: str) -> str:
    name = text.strip().lstrip("-")
    if not FLAG_NAME_PATTERN.fullmatch(name):
        raise Refused(
            f"--flag {one_line(text, max_chars=60)} is not the name of a flag.",
            fix="Write max-num-seqs, or speculative-config.num_speculative_tokens for a key inside a flag that takes JSON.",
        )
    return name


def _parse_values(name: str, text: str) -> tuple[Any, ...]:
    if is_secret(name, text):
        raise Refused(f"--flag {name}: its values look like secrets, which results and `docker inspect` would show.")
    parsed = document.parse(f"[{text}]", Path("--values")).data
    if not isinstance(parsed, list) or not parsed or None in parsed:
        raise Refused(
            f"--values {one_line(text, max_chars=60)} is not a list of values separated by commas.",
            fix="--values 1,2,4",
        )
    values = tuple(str(value) if isinstance(value, str) else value for value in parsed)
    if len({format_value(value) for value in values}) < len(values):
        raise Refused(f"--values {one_line(text, max_chars=60)} names a value twice.")
    return values


def _copy_json_object(flag: str, value: Any) -> dict[str, Any]:
    """Return a copy of a flag's JSON object; empty if the recipe has none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = (value,)
    if value is None or isinstance(value, Mapping):
        return json.loads(json.dumps(value or {}))  # type: ignore[no-any-return]
    raise Refused(f"{flag} of the recipe is not a JSON object, so it has no key to change.", fix=f"--flag {flag}")


def _set_path(content: dict[str, Any], path: str, value: Any) -> None:
    """Set a key in nested objects, given as a dotted path."""
    *outer_keys, last_key = path.split(".")
    for key in outer_keys:
        inner_object = content.setdefault(key, {})
        if not isinstance(inner_object, dict):
            raise Refused(f"{key} in {path} is not a JSON object.")
        content = inner_object
    content[last_key] = value
