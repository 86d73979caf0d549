"""The options of `vllm serve`: a table of one release, and the names of every release that was read.

Kinds of values: `?`: also "" and "None", for none. `+`: several words. size: a whole number, or one with a unit, as 32k or 1.5m or 32K.
switch: --x and --no-x. bare switch: --x alone. object: a JSON object. module: NAME=PATH, or JSON.

Sources: kinds, choices and short names: the actions of 0.32.0's own parser (tests/data/vllm-0.32.0/parser.json). The kinds are the
same in 0.11.2 and 0.22.1 where those have the option. Limits: the `Field` of the config class that a row names, in the release it
names and all later ones that were read (0.11.2, 0.22.1, 0.32.0).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sparkwright.engines.option_table import OptionTable


def _parse_release(release: str) -> Any:
    from packaging.version import Version

    return Version(release)


TABLE = OptionTable(Path(__file__).parent, _parse_release)
#: release of the options in the table
TABLE_RELEASE = TABLE.release
#: the oldest release that the table was compared with
OLDEST = "0.11.2"
#: releases between which an option's existence is certain. Their lists were compared with their own `--help=all` (tests/data, and
#: the report of 0.33.0 in tests/data/engine-agreement), and 0.22.1's with the options that its image's parser lists
ANCHORS = OLDEST_ANCHOR, MIDDLE_ANCHOR, NEWEST = "0.22.1", TABLE_RELEASE, "0.33.0"


def opposite_switch(name: str) -> str:
    """Return the other name of a switch of NEWEST, as disable-lora for enable-lora; "" for an option without one."""
    if name.startswith("enable-"):
        return name.replace("enable-", "disable-", 1)
    return name.replace("disable-", "enable-", 1) if name.startswith("disable-") else ""


@functools.cache
def release_options(release: str) -> frozenset[str]:
    """Return the names of the options of a release that was read in full."""
    from sparkwright.engines.vllm import releases

    index = releases.release_names().index(release)
    rows = releases.release_runs("options").items()
    return frozenset(name for name, runs in rows if any(first <= index <= last for first, last in runs))


@functools.cache
def anchor_options(release: str) -> frozenset[str]:
    """Return the names of the options that start a server, in one of ANCHORS."""
    return release_options(release) - {"help"}


@functools.cache
def all_options() -> frozenset[str]:
    """Return the names of the options of all ANCHORS."""
    return frozenset[str]().union(*map(anchor_options, ANCHORS))


@functools.cache
def aliases() -> Mapping[str, str]:
    """Return the own name of each option by its short names and its other long ones, without dashes."""
    return {word.lstrip("-"): option.name for option in TABLE.newest.values() for word in option.words[1:]}


def complete_name(name: str, names: Collection[str]) -> list[str]:
    """Return the options that a name stands for: itself, or all that it is a prefix of; the engine's parser completes an
    unambiguous prefix.

    Seen: 0.32.0 takes --max-num-seq for --max-num-seqs, and calls --max-num ambiguous.
    """
    if name in names:
        return [name]
    return sorted(option for option in names if option.startswith(name) and not option.startswith("no-"))
