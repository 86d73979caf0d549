"""An engine's resolved settings: parse its settings dump, and compare it with another dump or with a command line's flags."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines.engine import Engine
from sparkwright.engines.log.log_format import LogFormat, ResolutionRules
from sparkwright.engines.log.state import EngineState

OPENING_BRACKETS, CLOSING_BRACKETS = "([{<", ")]}>"
#: levels of nested objects to parse; no real dump has more than four
MAX_DEPTH = 6
_QUOTED_PAIR_PATTERN = re.compile(
    r"""^\s*(?:'(?P<key>[^']{1,200})'|"(?P<double_quoted_key>[^"]{1,200})")\s*:(?P<value>.*)$""", re.DOTALL
)
_PAIR_PATTERN = re.compile(r"^\s*(?P<key>[A-Za-z_]\w{0,199})=(?P<value>.*)$", re.DOTALL)
_OBJECT_PATTERN = re.compile(r"^(?:[A-Za-z_][\w.]{0,199})?\((?P<inside>.*)\)$", re.DOTALL)
_MAPPING_PATTERN = re.compile(r"^\{(?P<inside>.*)\}$", re.DOTALL)

#: values that let the engine choose, and therefore match any resolved value
UNDECIDED_VALUES = frozenset(("auto", "none", "default", "-1", ""))
MAX_SHOWN_CHARS = 80

#: "same" means that all changed flags appear in the dumps, and that the dumps are equal
Verdict = Literal["differs", "same", "not shown"]
NestedValue = str | dict[str, "NestedValue"]


def split_parts(text: str) -> Iterator[str]:
    """Yield the parts of a text, which is split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in OPENING_BRACKETS:
            depth += 1
        elif character in CLOSING_BRACKETS:
            depth -= 1
        elif character == "," and depth <= 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def parse_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each pair in `name=value, ...` or `'name': value, ...`."""
    for part in split_parts(text):
        match = _PAIR_PATTERN.match(part) or _QUOTED_PAIR_PATTERN.match(part)
        if match:
            groups = match.groupdict()
            yield groups["key"] or groups.get("double_quoted_key") or "", match["value"].strip()


def parse_nested(value: str, depth: int = MAX_DEPTH) -> NestedValue:
    """Return a printed object or dictionary as a mapping, any other value as its text."""
    value = value.strip()
    match = _OBJECT_PATTERN.match(value) or _MAPPING_PATTERN.match(value)
    inside = dict(parse_pairs(match["inside"])) if match and depth else {}
    if not inside:
        return value
    return {name: parse_nested(text, depth - 1) for name, text in inside.items()}


def value_spellings(value: str) -> tuple[str, ...]:
    """Return the forms in which a value may be printed, without quotes; for an enum member, its name and its value."""
    value = value.strip()
    enum_member = re.match(r"^<[\w.]{0,200}?(\w+): (.{1,200})>$", value)
    if enum_member:
        return enum_member[1], enum_member[2].strip("'\"")
    return (value.strip("'\"").removeprefix("torch."),)


# Comparison of the settings dumps of two starts.
#
# Not all flags appear in the dump. Equal dumps prove nothing about a flag that is not in them.


def find_differences(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings that differ, each with both values; None for a missing setting."""
    names = [*first, *(name for name in second if name not in first)]
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


def evaluate_settings(
    first: Mapping[str, str], second: Mapping[str, str], changed_flags: Collection[str], engine: Engine
) -> Verdict:
    """Return the verdict on the settings of two starts. changed_flags: the flags that differ between the two commands."""
    if find_differences(first, second):
        return "differs"
    return "same" if first and all(_is_in_dump(flag, first, engine) for flag in changed_flags) else "not shown"


def _is_in_dump(flag: str, settings: Mapping[str, str], engine: Engine) -> bool:
    return any(setting in settings for setting in _setting_names(engine.flags.canonical(flag), engine))


def _setting_names(flag: str, engine: Engine) -> Sequence[str]:
    return engine.log.setting_names.get(flag, (flag.replace("-", "_"),))


def compare_dumps(
    baseline: dict[str, Any] | None, settings: dict[str, str], changed_flags: list[str], engine: Engine
) -> dict[str, Any]:
    """Return the verdict and the differences as JSON; the verdict is empty without a baseline."""
    if not baseline:
        return {"verdict": "", "same": False, "differs": {}}
    verdict = evaluate_settings(baseline, settings, changed_flags, engine)
    differing = {name: list(values) for name, values in find_differences(baseline, settings).items()}
    return {"verdict": verdict, "same": verdict == "same", "differs": differing}


# Comparison of a command line's flags with the settings and kernels that the engine resolved them to.
#
# A flag that appears neither in the settings dump nor in the lines after it is not compared.


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A flag that the engine resolved to a value other than the one requested."""

    flag: str
    requested: str
    resolved: str
    evidence: str  # the log line

    @property
    def sentence(self) -> str:
        return f"{self.flag} {self.requested} was requested, but the engine resolved it to {self.resolved}"


def find_mismatches(
    flags: Mapping[str, Any], state: EngineState, settings: Mapping[str, str], engine: Engine
) -> list[Mismatch]:
    """Return the flags whose resolved value differs from the requested one.

    Args:
        flags: flags of the running command, by canonical name, with JSON values parsed.
        state: state from the log of this start.
        settings: settings dump of this start; empty if there is none.
        engine: the engine that wrote the log.
    """
    rules = engine.log.resolution
    mismatches: list[Mismatch] = []
    for name, requested in flags.items():
        if name not in rules.ignored_flags:
            parsed = rules.value_parsers[name](requested) if name in rules.value_parsers else requested
            mismatches += _find_flag_mismatch(name, parsed, state, settings, engine)
    return mismatches


def _find_flag_mismatch(
    name: str, requested: Any, state: EngineState, settings: Mapping[str, str], engine: Engine
) -> Iterator[Mismatch]:
    rules = engine.log.resolution
    if name in rules.kernels:
        yield from _find_kernel_mismatch(name, requested, state, rules)
        return
    reading = state.reading(rules.readings.get(name) or rules.negated_readings.get(name, ""))
    if reading.value is not None:
        resolved: NestedValue = str(reading.value)
        requested = not requested if name in rules.negated_readings and isinstance(requested, bool) else requested
        yield from _find_value_mismatch(name, requested, resolved, reading.evidence, rules)
        return
    for setting in _setting_names(name, engine):
        if setting in settings:
            resolved = parse_nested(settings[setting])
            yield from _find_value_mismatch(name, requested, resolved, f"{setting}={settings[setting]}", rules)
            return


def _find_kernel_mismatch(name: str, requested: Any, state: EngineState, rules: ResolutionRules) -> Iterator[Mismatch]:
    """Yield a mismatch if none of the kernels in use is the requested one. A draft model may use another kernel."""
    resolved = state.kernels.get(rules.kernels[name], {})
    requested_name = _normalize(str(requested))
    if not resolved or str(requested).casefold() in UNDECIDED_VALUES:
        return
    if any(_normalize(rules.ignored_name_parts.sub("", kernel)).startswith(requested_name) for kernel in resolved):
        return
    yield Mismatch(name, str(requested), ", ".join(sorted(resolved)), next(iter(resolved.values())))


def _find_value_mismatch(
    name: str, requested: Any, resolved: NestedValue, evidence: str, rules: ResolutionRules
) -> Iterator[Mismatch]:
    if isinstance(requested, Mapping):
        if isinstance(resolved, dict):
            for key, value in requested.items():
                inner = resolved.get(str(key).replace("-", "_"))
                if inner is not None:
                    yield from _find_value_mismatch(f"{name}.{key}", value, inner, evidence, rules)
        return
    if isinstance(resolved, dict) or (isinstance(requested, Sequence) and not isinstance(requested, str)):
        return
    if (
        requested is None
        or str(requested).casefold() in UNDECIDED_VALUES
        or _is_equivalent(requested, value_spellings(resolved), rules)
    ):
        return
    yield Mismatch(name, _format_setting(requested), _format_setting(value_spellings(resolved)[0]), evidence)


def _is_equivalent(requested: Any, resolved: tuple[str, ...], rules: ResolutionRules) -> bool:
    """Return True if the requested value equals a spelling of the resolved value or cannot be compared with it."""
    if isinstance(requested, bool):
        words = {word.casefold() for word in resolved}
        return not words & {"true", "false"} or str(requested).casefold() in words
    if isinstance(requested, int | float):
        numbers = [number for number in map(_parse_number, resolved) if number is not None]
        return not numbers or float(requested) in numbers
    requested_text = str(requested).casefold().removeprefix("torch.")
    equivalents = next(
        (group for group in rules.equivalent_values if requested_text in group), frozenset((requested_text,))
    )
    return any(word.casefold() in equivalents or _normalize(word) == _normalize(requested_text) for word in resolved)


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _normalize(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def _format_setting(value: Any) -> str:
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    text = {"True": "on", "False": "off"}.get(text, text)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} ..."


# -- the kernel path ---------------------------------------------------------------------------------------------------


def kernel_path(state: EngineState, log_format: LogFormat) -> dict[str, list[str]]:
    """Return the names of the kernels and modes in use, by kind."""
    path = {kind: sorted(names) for kind, names in state.kernels.items() if names}
    for kind, reading in log_format.kernel_readings:
        value = state.value(reading)
        if value is not None:
            path[kind] = [str(value)]
    return path


def format_kernel_path(path: Mapping[str, Sequence[str]]) -> str:
    """Return a kernel path as text, such as "MoE MARLIN, attention FLASHINFER"."""
    return ", ".join(f"{kind} {' and '.join(names)}" for kind, names in path.items())


def describe_kernel_changes(
    previous: Mapping[str, Sequence[str]], current: Mapping[str, Sequence[str]], log_format: LogFormat
) -> list[str]:
    """Return a clause for each kind of kernel that differs between two starts and is in both paths."""
    pattern, cost = log_format.weight_only
    changes = []
    for kind, names in current.items():
        previous_names = list(previous.get(kind) or ())
        if not previous_names or set(previous_names) == set(names):
            continue
        is_worse = any(map(pattern.search, names)) and not any(map(pattern.search, previous_names))
        note = f" (weight-only: {cost})" if is_worse else ""
        changes.append(f"{kind} {' and '.join(names)} instead of {' and '.join(previous_names)}{note}")
    return changes
