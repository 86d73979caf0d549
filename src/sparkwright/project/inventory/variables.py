"""The variables of the shipped playbooks, and a check of `vars` for misspelled names."""

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
    "reload_after": False,  # reload unloaded Ollama models once the engine is verified, if they fit
    "reserve_gib": defaults.RESERVE_GIB,  # memory that must stay free in addition to the engine's
    "guard_gib": 0,  # memory that the start guard keeps free for the host; 0: a share of its memory
    "drain_s": defaults.DRAIN_TIMEOUT_S,  # seconds to wait for open requests before the server is stopped
    "caches_gib": defaults.MAX_CACHES_GIB,  # maximum total size of a host's compile caches, GiB
    "page_cache": "drop",  # drop: drop the model's files from the page cache before each start; fit: only if memory is short
    "swap": "auto",  # beside: an interim server answers during a swap; in_place: none; auto: beside if it fits and helps
    "clock_cap_mhz": None,  # `provision`: highest SM clock of the GPU, MHz; null: unchanged
    "swappiness": None,  # `provision`: vm.swappiness
    "earlyoom_percent": None,  # `provision`: earlyoom kills processes below this percentage of free memory
    "ollama_limits": {},  # `provision`: max_loaded_models, num_parallel, context_length, keep_alive of Ollama's service
    "restart_docker": False,  # restart Docker if it occupies the server's port without a container; only if none runs
    "anyway": False,  # start even a configuration that crashed the host before; `--anyway`
    "rollback": True,  # restore the previous server if a deploy fails; `--no-rollback`
}
#: variables that must be a number of GiB
GIB_VARIABLES = frozenset({"guard_gib"})
#: similarity above which one name counts as a misspelling of another
MIN_SIMILARITY = 0.75
#: files that may use a variable anywhere; files in hosts/ may use it only in template expressions
READER_PATTERNS = ("playbooks/**/*.yml", "templates/**/*")


def check(variables: Mapping[str, Any], source: Document, section: Place, project: Path) -> None:
    """Raise Refused for a wrong type, or for a misspelled name: an unused one that is similar to one of DEFAULTS.

    A switch must be true, false or a template expression, because any other string would count as true.

    section: place of the section that contains `vars`.
    """
    for name, value in variables.items():
        where = source.where(*section, "vars", name)
        if isinstance(DEFAULTS.get(name), bool) and not isinstance(value, bool) and "{{" not in str(value):
            raise Refused(f"`vars.{name}` must be true or false.", where=where)
        if name in GIB_VARIABLES and not _is_amount(value):
            raise Refused(f"`vars.{name}` must be a number of GiB, 0 or more.", where=where)
        similar_names = (
            [] if name in DEFAULTS else get_close_matches(name.lower(), DEFAULTS, n=1, cutoff=MIN_SIMILARITY)
        )
        usage_pattern = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
        if similar_names and not any(map(usage_pattern.search, _read_texts_with_variables(project))):
            fix = f"Did you mean `{similar_names[0]}`?"
            raise Refused(f"`vars.{name}` is not used by any playbook or template.", where=where, fix=fix)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _read_texts_with_variables(project: Path) -> Iterator[str]:
    """Yield the texts that may use variables: playbooks, templates, and the expressions in hosts/."""
    for pattern in READER_PATTERNS:
        yield from _read_texts(shipped_files.list_paths(project, pattern))
    for text in _read_texts(sorted((project / "hosts").glob("*.yml"))):
        expressions = re.split(r"\{[{%]", text)[1:]
        yield " ".join(re.split(r"[%}]\}", expression, maxsplit=1)[0] for expression in expressions)


def _read_texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield document.read_text(path)
        except Refused:
            continue  # reported when the file is loaded
