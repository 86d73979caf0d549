"""The options of `vllm serve` by version: those of 0.32.0 from its own help, and the differences of other versions."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

Release = tuple[int, int, int]

USAGE = "usage: vllm serve [model_tag] [options]"
TABLE = Path(__file__).parent / "flags-0.32.0.txt"
SWITCH, VALUE, OPTIONAL, LIST, CHOICES, JSON = "switch", "value", "optional", "list", "choices", "json"

#: options of older versions, and the first version without each
REMOVED: tuple[tuple[tuple[str, ...], str, Release], ...] = (
    (("--calculate-kv-scales", "--no-calculate-kv-scales"), SWITCH, (0, 28, 0)),
    (("--swap-space",), VALUE, (0, 18, 0)),
    (("--max-num-partial-prefills",), VALUE, (0, 27, 0)),
    (("--max-long-partial-prefills",), VALUE, (0, 27, 0)),
    (("--override-attention-dtype",), VALUE, (0, 32, 0)),
)
#: first version with each option
ADDED: dict[str, Release] = {
    "--default-chat-template-kwargs": (0, 14, 0),
    "--mamba-cache-mode": (0, 15, 0),
    "--prefix-match-unit": (0, 26, 0),
}
#: from here on --enable-x pairs with --disable-x; --no-enable-x is hidden and works
ENABLE_DISABLE: Release = (0, 33, 0)


@dataclass(frozen=True)
class Option:
    """A command-line option."""

    #: the long name first
    names: tuple[str, ...]
    kind: str
    #: the value as the help shows it; {a,b} if only these values are accepted
    following: str = ""
    hidden: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The option's name among the settings, such as max_num_seqs."""
        return next(name for name in self.names if name.startswith("--"))[2:].replace("-", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values; empty for any."""
        braced = self.following.startswith("{") and self.following.endswith("}")
        return tuple(self.following[1:-1].split(",")) if braced else ()

    def header(self) -> str:
        """The option's line of the help."""
        shape = {SWITCH: "", LIST: f" {self.following} [{self.following} ...]", OPTIONAL: f" [{self.following}]"}
        return ", ".join(name + shape.get(self.kind, f" {self.following}") for name in self.names)


def release(version: str) -> Release:
    """Return the numbers of a version: (0, 19, 2) for "0.19.2rc1.dev134+g0"."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch


@functools.lru_cache(maxsize=8)
def options(version: str) -> tuple[Option, ...]:
    """Return all options of a version, in the help's order."""
    now = release(version)
    found = [option for option in _table() if now >= ADDED.get(option.names[0], (0, 0, 0))]
    for names, kind, gone in REMOVED:
        if now < gone:
            found.append(Option(names, kind, "" if kind == SWITCH else names[0][2:].replace("-", "_").upper()))
    return tuple(_of_its_time(option, now) for option in found)


def help_text(version: str) -> str:
    """Return the output of `vllm serve --help=all`, without the descriptions."""
    lines = [USAGE, "", "positional arguments:", "  model_tag", "", "options:"]
    return "\n".join([*lines, *(f"  {option.header()}" for option in options(version))])


def _of_its_time(option: Option, now: Release) -> Option:
    if option.names[0] == "--mamba-cache-mode" and now < (0, 32, 0):
        return replace(option, following="{align,all,none}")
    if now >= ENABLE_DISABLE and option.names[0].startswith("--enable-") and len(option.names) > 1:
        enable, no, *rest = option.names
        return replace(option, names=(enable, enable.replace("--enable-", "--disable-", 1), *rest), hidden=(no,))
    return option


@functools.lru_cache(maxsize=1)
def _table() -> tuple[Option, ...]:
    rows = (line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(Option(tuple(names.split()), kind, "".join(rest)) for names, kind, *rest in rows)
