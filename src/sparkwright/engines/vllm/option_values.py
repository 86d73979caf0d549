"""Validate option values as the parser and config classes of `vllm serve` do, and read the shapes of options from its help output."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from sparkwright.engines.option_table import MAX_SHOWN_CHARS, ListedOptions, Option, is_within_limit
from sparkwright.engines.vllm import options
from sparkwright.visible import join_first, one_line

_OPTION_LINE_PATTERN = re.compile(r"^  -\S.*", re.M)
_NAME_PATTERN = re.compile(r"(?:^|, )--([a-zA-Z0-9][\w.-]*)")
_CHOICES_PATTERN = re.compile(r"\{([^{}]+)\}(.*)")
#: marks after the choices in a shape: "..." if the option accepts several words, "*" if it also accepts other words
MANY_MARK, OPEN_MARK = "...", "*"
#: kinds for the shapes of options that are not in the table: a "word" may have any value
_KINDS_BY_SHAPE = {
    "switch": "switch",
    "bare switch": "bare switch",
    "word": "",
    "word?": "text or nothing",
    "words": "text?+",
}


def parse_options(help_text: str) -> dict[str, str]:
    """Return the shapes of the options in a help text by full name, without dashes: "switch", "word", "{auto,fp8}*"; may be empty."""
    rows = (_parse_shape(line.strip()) for line in _OPTION_LINE_PATTERN.findall(help_text))
    return {name: shape for names, shape in rows for name in names}


@functools.lru_cache(maxsize=1)
def reference_shapes() -> Mapping[str, str]:
    """Return the shapes of the options in the table."""
    shapes = {name: _option_shape(option) for name, option in known_options().items()}
    aliases = (word[2:] for option in known_options().values() for word in option.words[1:] if word.startswith("--"))
    return {**shapes, "help": "bare switch", **{name: shapes[options.aliases()[name]] for name in aliases}}


STORED_OPTIONS = ListedOptions(options.TABLE_RELEASE, reference_shapes)


def find_option(name: str, shapes: Collection[str]) -> Option | None:
    """Return an option with the values that it accepts; None if unknown.

    Args:
        name: full name of the option.
        shapes: shapes of the options in the engine's own help, or only their names. If empty, the table is used.
    """
    known_option = known_options().get(name)
    shape = shapes.get(name) if isinstance(shapes, Mapping) else None
    if shape is None:
        return None if shapes and name not in shapes else known_option
    if known_option is not None and _option_shape(known_option) == shape:
        return known_option
    base, choices = known_option or Option(""), _CHOICES_PATTERN.fullmatch(shape)
    if choices is None:
        return replace(base, kind=_KINDS_BY_SHAPE.get(shape, ""), choices=(), names=())
    kind = "text?"
    if choices[2] == MANY_MARK:
        kind = "text?+"
    elif known_option is not None and _plain_shape(known_option) == "word":
        kind = known_option.kind
    words, is_open = tuple(choices[1].split(",")), choices[2] == OPEN_MARK
    return replace(base, kind=kind, choices=() if is_open else words, names=words if is_open else ())


def _parse_shape(line: str) -> tuple[list[str], str]:
    head = re.split(r"\s{2,}", line)[0]
    all_names = _NAME_PATTERN.findall(head)
    names = [name for name in all_names if not name.startswith("no-") or name.removeprefix("no-") not in all_names]
    placeholder = re.split(r", (?=-)", head)[0].partition(" ")[2]
    if not placeholder:
        return names, "switch" if len(all_names) > 1 else "bare switch"
    choices = _CHOICES_PATTERN.match(placeholder)
    if choices is None:
        is_optional = re.fullmatch(r"\[\w+\]", placeholder)
        return names, "words" if placeholder.endswith("...]") else "word?" if is_optional else "word"
    words = ",".join(word for word in choices[1].split(",") if word != "None")
    mark = MANY_MARK if choices[2].endswith("...]") else OPEN_MARK if choices[2] else ""
    return names, f"{{{words}}}{mark}"


def _option_shape(option: Option) -> str:
    words = option.choices or (option.names if option.listed else ())
    mark = MANY_MARK if option.takes_many else OPEN_MARK if option.names else ""
    return f"{{{','.join(words)}}}{mark}" if words else _plain_shape(option)


def _plain_shape(option: Option) -> str:
    if "switch" in option.kind:
        return option.kind
    return "words" if option.kind.endswith("+") else "word?" if option.kind.endswith("nothing") else "word"


# Values are validated as the words that `flags.argv` creates from them. An unknown option accepts any value.

LimitKind = Literal["kind", "choice", "name", "range"]
MIN_SIMILARITY, MAX_SHOWN_CHOICES = 0.6, 12

_DECIMAL_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE_PATTERN = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT])")
_SIZE_IN_JSON_PATTERN = re.compile(r'"(?:[^"\\]|\\.)*"|\b(\d+(?:\.\d+)?[kKmMgGtT])\b')


class InvalidValue(NamedTuple):
    """A value that an option does not accept."""

    #: the violated limit
    limit: LimitKind
    #: problem as a predicate, such as "must be at least 1, got -3"
    reason: str
    #: probably intended value; "" if unknown
    intended: str = ""


def known_options() -> Mapping[str, Option]:
    """Return the options in the table by name."""
    return options.TABLE.newest_options


def find_broken_limit(name: str, value: float, version: tuple[int, int, int]) -> tuple[str, str] | None:
    """Return the config class and the first limit (such as ">=1") that a value violates in a release, or None."""
    option = known_options().get(name)
    if option is None or not option.limits or version < tuple(map(int, option.since.split("."))):
        return None
    limits = " ".join(option.limits).split()
    return next(((option.source, limit) for limit in limits if not is_within_limit(value, limit)), None)


def parse_size(text: str) -> int:
    """Parse an integer like vLLM's `human_readable_int`: "32k" is 32,000, "32K" is 32,768. Raises ValueError."""
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, unit = match.groups()
    return int(number) * _BINARY_UNITS[unit] if unit in _BINARY_UNITS else int(float(number) * _DECIMAL_UNITS[unit])


def is_repeated(name: str) -> bool:
    """Return True if an option must be repeated for each of its values."""
    option = known_options().get(name)
    return option is not None and option.kind.endswith("repeated")


def find_invalid_value(name: str, value: Any, option: Option | None = None) -> InvalidValue | None:
    """Return the problem with a value; None if it is valid or the option is unknown. `option` defaults to the table's option."""
    option = option or known_options().get(name)
    if value is None or option is None or not option.kind or "switch" in option.kind:
        return None
    if isinstance(value, bool):
        is_bare = value and option.kind == "text or nothing"
        return None if is_bare else InvalidValue("kind", f"needs a value, got {str(value).lower()}")
    if (
        isinstance(value, list | tuple)
        and not option.takes_many
        and option.kind.rstrip("?") != "json"
        and len(value) > 1
    ):
        return InvalidValue("kind", f"takes one value, got {len(value)}")
    problems = (_check_word(word, option) for word in value_words(value, option))
    return next((problem for problem in problems if problem), None)


def value_words(value: Any, option: Option | None) -> list[str]:
    """Return the command-line words for a value. For a JSON option, a list is a single word."""
    is_json_list = option is not None and option.kind.rstrip("?") == "json" and isinstance(value, list | tuple)
    elements = value if isinstance(value, list | tuple) and not is_json_list else [value]
    return [
        json.dumps(element, separators=(",", ":")) if is_json_list or isinstance(element, Mapping) else str(element)
        for element in elements
    ]


def _check_word(word: str, option: Option) -> InvalidValue | None:
    received_text = f"got {one_line(repr(word), max_chars=MAX_SHOWN_CHARS)}"
    if _looks_like_option(word):
        return InvalidValue("kind", f"can't begin with a dash, {received_text}")
    if "?" in option.kind and word in ("", "None"):
        return None
    base_kind = re.split(r"[?+]| repeated| or nothing", option.kind)[0]
    try:
        value = VALUE_PARSERS[base_kind][0](word)
    except (ValueError, RecursionError):
        return InvalidValue("kind", f"must be {VALUE_PARSERS[base_kind][1]}, {received_text}")
    normalized = word.lower().replace("-", "_") if option.folded else str(value)
    limits: tuple[tuple[LimitKind, tuple[str, ...]], ...] = (
        ("choice", option.choices),
        ("name", option.names if word else ()),
    )
    for limit, allowed in limits:
        if allowed and normalized not in allowed:
            return InvalidValue(
                limit,
                f"must be one of {join_first(allowed, MAX_SHOWN_CHOICES)}, {received_text}",
                _find_closest(word, allowed),
            )
    violation = option.describe_violation(value)
    return InvalidValue("range", f"{violation}, got {one_line(word, max_chars=MAX_SHOWN_CHARS)}") if violation else None


def _find_closest(word: str, allowed: tuple[str, ...]) -> str:
    """Return the allowed value that a word probably misspells, or "".

    The part before the first _, - or dot, a parser's model family, must be similar too: qwen3_json does not match nemotron_json.
    """
    family = _model_family(word)
    similar = [
        name for name in allowed if difflib.SequenceMatcher(None, family, _model_family(name)).ratio() >= MIN_SIMILARITY
    ]
    return next(iter(difflib.get_close_matches(word, similar, n=1, cutoff=MIN_SIMILARITY)), "")


def _model_family(name: str) -> str:
    return re.split(r"[_.-]", name.lower(), maxsplit=1)[0]


def _looks_like_option(word: str) -> bool:
    """Return True if vLLM's parser treats a word as an option.

    Observed on 0.32.0: a negative integer is a value, but a word with a dot is parsed as a key of a mapping, like --config.key.
    """
    if not word.startswith("-") or len(word) == 1:
        return False
    return "." in word or (" " not in word and re.fullmatch(r"-\d+", word) is None)


def _parse_size_or_auto(word: str) -> int:
    return -1 if word.strip() == "-1" or word.strip().lower() == "auto" else parse_size(word)


def _parse_object(word: str) -> Any:
    """Parse a JSON object whose numbers may have units. Raises ValueError."""
    value = json.loads(
        _SIZE_IN_JSON_PATTERN.sub(lambda match: str(parse_size(match[1])) if match[1] else match[0], word)
    )
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _parse_text_or_json(word: str) -> Any:
    return json.loads(word) if re.fullmatch(r"(?s)\s*{.*}\s*", word) else word


def _parse_lora_module(word: str) -> Any:
    """Parse a LoRA module like vLLM's parser. Raises ValueError."""
    if "=" in word and "," not in word:
        return word
    module = json.loads(word)
    if not isinstance(module, dict) or not {"name", "path"} <= module.keys():
        raise ValueError("name or path is missing")
    return module


VALUE_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "size": (parse_size, "a whole number, or one with a unit such as 32k"),
    "size or auto": (_parse_size_or_auto, "a whole number, one with a unit such as 32k, or auto"),
    "float": (float, "a number"),
    "text": (str, "text"),
    "text or json": (_parse_text_or_json, "text, or a mapping"),
    "json": (json.loads, "a mapping or a list, as YAML or as JSON"),
    "module": (_parse_lora_module, "NAME=PATH, or a mapping with name and path"),
    "object": (_parse_object, "a mapping, as YAML or as JSON"),
}
