"""Option shapes from an engine's own `vllm serve --help=all`, stored as the difference from flag_types.VERSION.

A shape is "switch" (--x and --no-x), "bare switch", "word", "word?" (one or none), "words", or "{a,b}" for a full list of
choices: followed by "..." it takes more than one of them, by "*" a plugin may add choices. The help does not tell a number from a
text: flag_types does, if the shape is the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from sparkwright.engines.vllm.flags import flag_types
from sparkwright.engines.vllm.flags.flag_values import Option, known

_OPTION_LINE = re.compile(r"^  -\S.*", re.M)
_NAME = re.compile(r"(?:^|, )--([a-zA-Z0-9][\w.-]*)")
_CHOICES = re.compile(r"\{([^{}]+)\}(.*)")
MANY, OPEN = "...", "*"
#: kinds of options that are only in the help: a "word" may have any value
_KINDS = {"switch": "switch", "bare switch": "bare switch", "word": "", "word?": "text or nothing", "words": "text?+"}


def listed(help_text: str) -> dict[str, str]:
    """Return the shape of each option by its own name, without dashes; empty if the text is not a list of options."""
    rows = (_shape(line.strip()) for line in _OPTION_LINE.findall(help_text))
    return {name: shape for names, shape in rows for name in names}


@functools.lru_cache(maxsize=1)
def usual() -> Mapping[str, str]:
    """Return the shapes of flag_types.VERSION."""
    shapes = {name: _shape_of(name, option) for name, option in known().items()}
    return {**shapes, "help": "bare switch", **{alias: shapes[name] for alias, name in flag_types.ALIASES.items()}}


def difference(shapes: Mapping[str, str]) -> dict[str, Any]:
    """Return the difference from the usual shapes: {"like": VERSION, "differ": {name: shape, or None if it has none}}."""
    gone: dict[str, str | None] = dict.fromkeys(name for name in usual() if name not in shapes)
    new = {name: shape for name, shape in shapes.items() if usual().get(name) != shape}
    return {"like": flag_types.VERSION, "differ": {**gone, **new}}


def is_current(difference: Mapping[str, Any] | None) -> bool:
    """Return True if `applied` can use the stored difference, or the engine listed no options; else ask the engine again."""
    return difference is None or difference.get("like") == flag_types.VERSION


def applied(difference: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the shapes from a stored difference; empty if none was stored, or the release it refers to is no longer known here."""
    if difference is None or not is_current(difference):
        return {}
    shapes = {**usual(), **difference["differ"]}
    return {name: shape for name, shape in shapes.items() if shape}


def option(name: str, shapes: Collection[str]) -> Option | None:
    """Return the values that an option takes; None if nothing is known.

    shapes: the engine's own, from `listed`; if empty, flag_types alone decides. A list without shapes only says which options
    exist.
    """
    here = known().get(name)
    shape = shapes.get(name) if isinstance(shapes, Mapping) else None
    if shape is None:
        return None if shapes and name not in shapes else here
    if here is not None and _shape_of(name, here) == shape:
        return here
    choices = _CHOICES.fullmatch(shape)
    if choices is None:
        return Option(_KINDS.get(shape, ""))
    words, open_to_more = tuple(choices[1].split(",")), choices[2] == OPEN
    kind = "text?+" if choices[2] == MANY else here.kind if here is not None and _plain(here) == "word" else "text?"
    return Option(kind, names=words) if open_to_more else Option(kind, words)


def _shape(line: str) -> tuple[list[str], str]:
    head = re.split(r"\s{2,}", line)[0]
    names = _NAME.findall(head)
    own = [name for name in names if not name.startswith("no-") or name.removeprefix("no-") not in names]
    takes = re.split(r", (?=-)", head)[0].partition(" ")[2]
    if not takes:
        return own, "switch" if len(names) > 1 else "bare switch"
    choices = _CHOICES.match(takes)
    if choices is None:
        one_or_none = re.fullmatch(r"\[\w+\]", takes)
        return own, "words" if takes.endswith("...]") else "word?" if one_or_none else "word"
    words = ",".join(word for word in choices[1].split(",") if word != "None")
    more = MANY if choices[2].endswith("...]") else OPEN if choices[2] else ""
    return own, f"{{{words}}}{more}"


def _shape_of(name: str, option: Option) -> str:
    words = option.choices or (option.names if name in flag_types.LISTED else ())
    more = MANY if option.many else OPEN if option.names else ""
    return f"{{{','.join(words)}}}{more}" if words else _plain(option)


def _plain(option: Option) -> str:
    if "switch" in option.kind:
        return option.kind
    return "words" if option.kind.endswith("+") else "word?" if option.kind.endswith("nothing") else "word"
