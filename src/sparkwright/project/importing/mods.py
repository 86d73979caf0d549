"""Mods: folders of scripts that sparkrun copies into a running container before the server starts. They are never run here.

Their effect is described from the words of run.sh, if it is beside the recipe.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.importing.foreign import texts
from sparkwright.project.importing.report import DROP, Report
from sparkwright.trust.names import why_not_a_file
from sparkwright.visible import first, one_line

SCRIPT = "run.sh"
#: the effect of a script, by its words
DOES = {
    "patch": "patches files of the image",
    "git": "applies changes from a git repository",
    "curl": "downloads from the network",
    "wget": "downloads from the network",
    "pip": "installs packages",
    "uv": "installs packages",
    "apt": "installs packages",
    "apt-get": "installs packages",
    "cp": "puts files into the image",
    "sed": "edits files of the image",
    "python": "runs Python code",
    "python3": "runs Python code",
    "drop_caches": "drops the page cache in a loop",
}
MOST_SHOWN, UP = 8, 4


def refuse(given: Any, recipe: Path, report: Report) -> None:
    """Raise Refused for mods without an answer, with their effects and the ways out."""
    names = texts(given, "mods")
    if not names:
        return
    report.heard.add("mods")
    more = f"; {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    listed = "; ".join(_about(name, recipe.parent) for name in names[:MOST_SHOWN]) + more
    if report.answers.get("mods") != DROP:
        fix = (
            "Ways out: an image in which they are built in (`--answer image=REPOSITORY:TAG`), or without them; both with "
            f"`--answer mods={DROP}`."
        )
        raise Refused(f"its mods would change the container before the server starts: {listed}.", fix=fix)
    report.add("dropped", f"mods {first(names, MOST_SHOWN)}", "as answered: nothing of them is run")


def _about(name: str, folder: Path) -> str:
    shown = one_line(name, at_most=80)
    script = _script(name, folder)
    if script is None:
        return f"{shown} (its script is not here)"
    words = set(re.findall(r"[a-z][a-z0-9_-]{1,20}", "\n".join(_commands(script))))
    does = list(dict.fromkeys(what for word, what in DOES.items() if word in words))
    return f"{shown} ({', '.join(does) or 'runs a script'})"


def _commands(script: str) -> list[str]:
    return [line for line in script.splitlines() if not line.lstrip().startswith("#")]


def _script(name: str, folder: Path) -> str | None:
    """Return the mod's script, from the recipe's folder or a parent; None if it is missing or not readable."""
    if why_not_a_file(name.replace("/", "-")) or ".." in name.split("/") or name.startswith("/"):
        return None
    last = name.rpartition("/")[2]
    for above in (folder, *list(folder.parents)[:UP]):
        siblings = [above / name / SCRIPT, *(path / last / SCRIPT for path in sorted(above.glob("*-mods")))]
        for path in filter(document.is_file, siblings):
            try:
                return document.text_of(path)
            except Refused:
                return None
    return None
