"""Options of `vllm serve`: a table of one release (options.json), and the option names of every release in releases.json.

Kinds: `?` also accepts "" and "None". `+` accepts several words. size: a whole number, or one with a unit (32k, 1.5m, 32K). switch: --x
and --no-x. bare switch: only --x. object: a JSON object. module: NAME=PATH, or JSON.

Sources: kinds, choices and short names are from the actions of 0.32.0's parser (tests/data/vllm-0.32.0/parser.json); options of 0.11.2
and 0.22.1 have the same kinds. Limits are from the `Field` of the row's config class. They are the same in the row's release and the
later ones among 0.11.2, 0.22.1 and 0.32.0.
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
#: first later release whose choices may differ from the table
FIRST_RELEASE_WITH_UNKNOWN_CHOICES = "0.33.0"
#: oldest release that the table was compared with
OLDEST_COMPARED_RELEASE = "0.11.2"
#: releases whose options in releases.json were compared with their own `--help=all` (tests/data, and the report of 0.33.0 in
#: tests/data/engine-agreement) or, for 0.22.1, with the output of its image's parser
REFERENCE_RELEASES = OLDEST_REFERENCE_RELEASE, MIDDLE_REFERENCE_RELEASE, NEWEST_REFERENCE_RELEASE = (
    "0.22.1",
    TABLE_RELEASE,
    "0.33.0",
)


def opposite_switch(name: str) -> str:
    """Return the opposite of a switch in NEWEST_REFERENCE_RELEASE, `disable-lora` for `enable-lora`; "" for other options."""
    if name.startswith("enable-"):
        return name.replace("enable-", "disable-", 1)
    return name.replace("disable-", "enable-", 1) if name.startswith("disable-") else ""


@functools.cache
def release_options(release: str) -> frozenset[str]:
    """Return the names of the options of a release in the tables."""
    from sparkwright.engines.vllm import releases

    index = releases.release_names().index(release)
    rows = releases.release_runs("options").items()
    return frozenset(name for name, runs in rows if any(first <= index <= last for first, last in runs))


@functools.cache
def reference_options(release: str) -> frozenset[str]:
    """Return the names of the options that start a server in a release of REFERENCE_RELEASES."""
    return release_options(release) - {"help"}


@functools.cache
def all_options() -> frozenset[str]:
    """Return the names of the options of all REFERENCE_RELEASES."""
    return frozenset[str]().union(*map(reference_options, REFERENCE_RELEASES))


@functools.cache
def aliases() -> Mapping[str, str]:
    """Return the canonical names of options by their other names, short and long, without dashes."""
    return {word.lstrip("-"): option.name for option in TABLE.newest_options.values() for word in option.words[1:]}


def complete_name(name: str, names: Collection[str]) -> list[str]:
    """Return the name if it is an option, else all options that it is a prefix of. The engine accepts an unambiguous prefix.

    Observed: 0.32.0 completes --max-num-seq to --max-num-seqs, and refuses --max-num as ambiguous.
    """
    if name in names:
        return [name]
    return sorted(option for option in names if option.startswith(name) and not option.startswith("no-"))
