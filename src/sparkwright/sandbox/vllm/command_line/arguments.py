"""The command line of `vllm serve`, parsed and refused as by argparse."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.vllm.flags import flag_values
from sparkwright.sandbox.vllm.command_line import flags
from sparkwright.sandbox.vllm.command_line.flags import JSON, LIST, OPTIONAL, SWITCH, Option, release

OUTER_USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ..."""
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
COMPLETE = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "port")
FRACTIONS = ("gpu_memory_utilization",)


class Refused(Exception):
    """The process exits before it serves: its last log lines and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def crashed(message: str) -> Refused:
    """Return an uncaught exception: the end of its traceback, and exit code 1."""
    return Refused(f"Traceback (most recent call last):\n{message}", 1)


@dataclass
class Arguments:
    """The parsed arguments of `vllm serve`."""

    #: the model to serve
    model: str = DEFAULT_MODEL
    #: the model was the positional argument
    tag: bool = False
    #: option values by name, such as max_num_seqs
    values: dict[str, Any] = field(default_factory=dict)

    def text(self, key: str, default: str = "") -> str:
        """Return the value of an option; the first of several."""
        value = self.values.get(key, default)
        return str(value[0] if isinstance(value, list) else value)

    def number(self, key: str, default: int) -> int:
        """Return the value of an option as an integer."""
        return int(self.values.get(key, default))

    def switch(self, key: str, default: bool) -> bool:
        """Return the value of a switch."""
        return bool(self.values.get(key, default))

    def not_default(self, version: str) -> dict[str, Any]:
        """Return the arguments that the start-up log lists as non-default args."""
        shown = dict(self.values)
        if "api_key" in shown and release(version) >= (0, 32, 0):
            shown["api_key"] = "***"
        model = {"model_tag": self.model} if self.tag else {}
        return {**model, "model": self.model, **shown}


def parse(argv: Sequence[str], version: str) -> Arguments:
    """Return the arguments. Raises Refused with argparse's message."""
    found, words, unknown = Arguments(), [_plain(word) for word in argv], list[str]()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            _model(found, unknown, word)
            continue
        name, given, value = word.partition("=")
        has_parts = name.startswith(("--", "-cc", "-ac", "-sc", "-dc"))
        name, dot, inner = name.partition(".") if has_parts else (name, "", "")
        name = _completed(name, version)
        option = _by_name(version).get(name)
        if option is None or (dot and option.kind != JSON):
            unknown += [word, *_following(words)]
        elif option.kind == SWITCH:
            _switch(found, option, name, value if given else None)
        else:
            rest = [value] if given else _taken(option, words)
            _keep(found, option, rest, inner.split(".") if dot else [])
    if unknown:
        raise Refused(f"{OUTER_USAGE}\nvllm: error: unrecognized arguments: {' '.join(unknown)}", 2)
    if found.switch("enable_auto_tool_choice", False) and "tool_call_parser" not in found.values:
        raise Refused("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", 1)
    found.model = str(found.values.pop("model", found.model))
    return found


def _plain(word: str) -> str:
    """Return a word with underscores and -O3 spelled as vLLM's parser does before it parses."""
    if re.fullmatch(r"-O=?\d", word):
        return f"--optimization-level={word[-1]}"
    name, given, value = word.partition("=")
    return name.replace("_", "-") + given + value if name.startswith("--") else word


def _model(found: Arguments, unknown: list[str], word: str) -> None:
    if found.tag or "model" in found.values:
        unknown.append(word)
    else:
        found.model, found.tag = word, True


def _completed(name: str, version: str) -> str:
    """Return the option that this abbreviates. Raises Refused if it abbreviates several."""
    known = _by_name(version)
    if name in known or not name.startswith("--"):
        return name
    meant = [option for option in known if option.startswith(name)]
    if len(meant) > 1:
        message = f"ambiguous option: {name} could match {', '.join(meant)}"
        raise Refused(f"{flags.USAGE}\nvllm serve: error: {message}", 2)
    return meant[0] if meant else name


def _following(words: list[str]) -> list[str]:
    """Return the words up to the next option."""
    taken = []
    while words and not _looks_like_an_option(words[0]):
        taken.append(words.pop(0))
    return taken


def _looks_like_an_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d*)?|-", word)


def _taken(option: Option, words: list[str]) -> list[str]:
    if option.kind == LIST:
        rest = _following(words)
        if not rest:
            raise _refuse(option, "expected at least one argument")
        return rest
    if words and not _looks_like_an_option(words[0]):
        return [words.pop(0)]
    if option.kind == OPTIONAL:
        return []
    raise _refuse(option, "expected one argument")


def _switch(found: Arguments, option: Option, name: str, given: str | None) -> None:
    if given is not None:
        raise _refuse(option, f"ignored explicit argument {given!r}")
    against = name in option.hidden or (len(option.names) > 1 and name == option.names[1] and name.startswith("--"))
    found.values[option.key] = not against


def _keep(found: Arguments, option: Option, words: list[str], inner: list[str]) -> None:
    for word in words:
        if option.choices and word not in option.choices:
            raise _refuse(option, f"invalid choice: {word!r} (choose from {', '.join(option.choices)})")
    if option.kind == LIST:
        found.values[option.key] = words
    elif option.kind == JSON:
        _merge(found, option, words[0], inner)
    else:
        found.values[option.key] = _typed(option, words[0]) if words else True


def _merge(found: Arguments, option: Option, word: str, inner: list[str]) -> None:
    """Merge a dotted option: --compilation-config '{"mode": 3}' and --compilation-config.mode 3 are equal."""
    try:
        value = json.loads(word)
    except ValueError:
        if not inner:
            raise _refuse(option, f"Value {word} cannot be converted to <function loads>.") from None
        value = word
    for key in reversed(inner):
        value = {key.replace("-", "_"): value}
    before = found.values.get(option.key)
    found.values[option.key] = {**before, **value} if isinstance(before, dict) and inner else value


def _typed(option: Option, word: str) -> Any:
    known = flag_values.known().get(option.key.replace("_", "-"))
    kinds: dict[str, type[Any]] = {**dict.fromkeys(COMPLETE, int), **dict.fromkeys(FRACTIONS, float)}
    kind = kinds.get(option.key) or {"int": int, "float": float}.get(known.kind if known else "")
    if kind is None:
        return int(word) if re.fullmatch(r"-?\d+", word) else word
    scale = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
    if kind is int and re.fullmatch(r"\d+[kKmM]", word):
        return int(word[:-1]) * scale[word[-1]]
    try:
        return kind(word)
    except ValueError:
        raise _refuse(option, f"invalid {kind.__name__} value: {word!r}") from None


def _refuse(option: Option, message: str) -> Refused:
    return Refused(f"{flags.USAGE}\nvllm serve: error: argument {'/'.join(option.names)}: {message}", 2)


@functools.lru_cache(maxsize=8)
def _by_name(version: str) -> dict[str, Option]:
    found = flags.options(version)
    return {name: option for option in found for name in (*option.names, *option.hidden)}
