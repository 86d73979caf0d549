"""Export of a recipe in another tool's format, pinned by spark.lock."""

from __future__ import annotations

import sys

from sparkwright.app.plans.pins import entries, not_pinned, simulated
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.project import export_formats, lockfile, recipe
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project

FORMATS = {
    "sparkrun": export_formats.sparkrun_text,
    "compose": export_formats.compose_text,
    "docker-run": export_formats.docker_run_text,
}


def write(name: str, form: str, *, unpinned: bool, as_json: bool) -> None:
    """Write a recipe to standard output in another format.

    Raises Refused for an unknown format, and if spark.lock lacks a pin, unless `unpinned` is True.
    """
    if form not in FORMATS:
        raise Refused(f"no format {form!r}.", fix=nearest(form, FORMATS))
    root = Project.here().root
    wanted = recipe.load(root, name)
    pins = entries(lockfile.load(root), wanted)
    missing = not_pinned(pins)
    if missing and not unpinned:
        what = " and ".join(missing)
        fix = "Pin it with `invoke lock --host NAME`, or pass --unpinned."
        simulates = set(missing) - set(not_pinned(entries(simulated(), wanted)))
        aside = " The sandbox's pins are of no real registry." if simulates else ""
        raise Refused(f"spark.lock has no entry for the {what} of {name}.{aside}", fix=fix)
    exported = export_formats.export_of(wanted, pins)
    text = FORMATS[form](exported)
    if as_json:
        return say_json({"recipe": name, "format": form, "text": text, "notes": exported.notes})
    for note in exported.notes:
        say(f"note: {note}.", file=sys.stderr)
    print(text, end="")
    return None
