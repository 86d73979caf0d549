"""The command line of `vllm serve`, as version 0.32.0 takes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ..."""

#: options of older versions: name -> the first version without it
REMOVED = {"calculate-kv-scales": (0, 28), "swap-space": (0, 18)}
SWITCHES_REMOVED = ("calculate-kv-scales",)


class Refused(Exception):
    """The process ends before it starts: its last words and its exit code."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.code = code


@dataclass
class Arguments:
    """values: of options by name; a switch is True or False."""

    model: str = "Qwen/Qwen3-0.6B"
    values: dict[str, str | bool] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """An option's value."""
        return str(self.values.get(name, default))

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        return int(str(self.values.get(name, default)))

    def switch(self, name: str, default: bool) -> bool:
        """A switch."""
        return bool(self.values.get(name, default))


def parse(argv: Sequence[str], version: str) -> Arguments:
    """The arguments, or Refused with argparse's words."""
    found, words, unknown = Arguments(), list(argv), []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            found.model = word
            continue
        name, given, value = word[2:].replace("_", "-").partition("=")
        kind = _options(version).get(name)
        if kind is None:
            unknown.append(word)
            while words and not words[0].startswith("--"):
                unknown.append(words.pop(0))
        elif kind == "switch" and given:
            raise Refused(f"{USAGE}\nvllm serve: error: argument --{name}: ignored explicit argument {value!r}", 2)
        elif kind == "switch":
            found.values[name.removeprefix("no-")] = not name.startswith("no-")
        else:
            if not given and (not words or words[0].startswith("--")):
                raise Refused(f"{USAGE}\nvllm serve: error: argument --{name}: expected one argument", 2)
            found.values[name] = value if given else words.pop(0)
    if unknown:
        raise Refused(f"{USAGE}\nvllm: error: unrecognized arguments: {' '.join(unknown)}", 2)
    if found.switch("enable-auto-tool-choice", False) and "tool-call-parser" not in found.values:
        raise Refused("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", 1)
    found.model = str(found.values.pop("model", found.model))
    return found


def release(version: str) -> tuple[int, int]:
    """(0, 32) of "0.32.0"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@functools.lru_cache(maxsize=8)
def _options(version: str) -> dict[str, str]:
    text = (Path(__file__).parent.parent / "flags-0.32.0.txt").read_text()
    known = dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))
    for name, gone in REMOVED.items():
        if release(version) < gone:
            known[name] = "switch" if name in SWITCHES_REMOVED else "value"
    return known
