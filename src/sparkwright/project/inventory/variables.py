"""The variables that the shipped playbooks read, and the check for misspelt ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sparkwright import defaults
from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place

#: the variables that a host may set under `vars:`, with their defaults
DEFAULTS: dict[str, Any] = {
    "ollama": "unload",  # unload, stop or leave
    "reload_after": False,  # what was unloaded comes back once the engine is verified, if it fits
    "reserve_gib": defaults.RESERVE_GIB,  # memory that must stay free in addition to the engine's
    "guard_gib": 0,  # memory that the guard over a start keeps for the host; 0: a share of its memory
    "drain_s": defaults.DRAIN_TIMEOUT_S,  # how long requests may take to end before the server is stopped
    "caches_gib": defaults.MAX_CACHES_GIB,  # what all compile caches of a host together may hold, GiB
    "page_cache": "drop",  # drop: the model's files leave it before each start; fit: only where it does not fit beside
    "swap": "auto",  # beside: a second server takes the requests meanwhile; in_place; auto: beside where it fits and helps
    "clock_cap_mhz": None,  # `provision`: highest SM clock of the GPU, MHz; null: as it is
    "swappiness": None,  # `provision`: vm.swappiness
    "earlyoom_percent": None,  # `provision`: earlyoom acts below this share of memory
    "ollama_limits": {},  # `provision`: of Ollama's service: max_loaded_models, num_parallel, context_length, keep_alive
    "restart_docker": False,  # restart a Docker Engine that holds the server's port for nobody, where no container runs
    "anyway": False,  # start a configuration that took the host down; `--anyway`
    "rollback": True,  # a deploy that fails restores the previous server; `--no-rollback`
}
#: variables in GiB
GIB_VARIABLES = frozenset({"guard_gib"})
#: similarity above which one name counts as a misspelling of another
MIN_SIMILARITY = 0.75
#: files that may read a variable; in hosts/ only expressions do
READER_PATTERNS = ("playbooks/**/*.yml", "templates/**/*")


def check(variables: Mapping[str, Any], source: Document, at: Place, project: Path) -> None:
    """Raise Refused with the line of a variable that nothing reads and whose name is close to one that is read.

    A switch of DEFAULTS must be true or false: a text would count as true.
    """
    for name, value in variables.items():
        where = source.where(*at, "vars", name)
        if isinstance(DEFAULTS.get(name), bool) and not isinstance(value, bool) and "{{" not in str(value):
            raise Refused(f"`vars.{name}` must be true or false.", where=where)
        if name in GIB_VARIABLES and not _is_amount(value):
            raise Refused(f"`vars.{name}` must be a number of GiB, 0 or more.", where=where)
        similar = [] if name in DEFAULTS else get_close_matches(name.lower(), DEFAULTS, n=1, cutoff=MIN_SIMILARITY)
        usage = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
        if similar and not any(map(usage.search, _reading_texts(project))):
            fix = f"Did you mean `{similar[0]}`?"
            raise Refused(f"`vars.{name}` is not used by any playbook or template.", where=where, fix=fix)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _reading_texts(project: Path) -> Iterator[str]:
    """Yield the texts that may read a variable: playbooks, templates, and the expressions in the inventory's own values."""
    for pattern in READER_PATTERNS:
        yield from _read_texts(shipped_files.list_paths(project, pattern))
    for text in _read_texts(sorted((project / "hosts").glob("*.yml"))):
        expressions = re.split(r"\{[{%]", text)[1:]
        yield " ".join(re.split(r"[%}]\}", item, maxsplit=1)[0] for item in expressions)


def _read_texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield document.read_text(path)
        except Refused:
            continue  # the code that needs the file reports its error
