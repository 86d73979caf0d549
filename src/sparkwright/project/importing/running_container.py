"""A container that runs on a host, as it was created: kept unchanged, so that a deploy finds nothing to replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.project.importing.foreign import Foreign, Report
from sparkwright.project.importing.shell_words import assignments, unwrapped

#: `container_settings` replaces secrets by this
HIDDEN = "***"


def read(settings: Mapping[str, Any], host: str, report: Report) -> Foreign:
    """Return the container as a foreign recipe.

    Args:
        settings: the result of the module `container_settings`.
        host: the host's name.
    """
    found = Foreign(
        kind=f"the container {settings['name']} of {host}",
        name=str(settings["name"]),
        image=str(settings["image"]),
        ports=list(settings["ports"]),
        volumes=list(settings["volumes"]),
        network=str(settings["network"]),
        options={**settings["options"], "name": str(settings["name"])},
        entrypoint=settings["entrypoint"],
        hosts=1,
        adopted=True,
        starts=list(settings["program"]) if settings["entrypoint"] is None else [],
    )
    env, words = assignments(unwrapped([*settings["program"], *settings["command"]]))
    found.words = words
    found.env = {name: value for name, value in {**settings["env"], **env}.items() if HIDDEN not in value}
    for name, value in settings["env"].items():
        if HIDDEN in value:
            why = "its value stays on the host: a recipe holds no secret, and a deploy replaces the container once, without it"
            report.add("secret", name, why)
    _drop_hidden(found, report)
    report.add(
        "note", found.name, f"it goes on serving: importing changed nothing on {host}; `plan` says what a deploy would"
    )
    return found


def _drop_hidden(found: Foreign, report: Report) -> None:
    """Remove labels that held a secret, and report words that held one."""
    why = "its value stays on the host: a recipe holds no secret"
    labels = found.options.get("labels") or {}
    for name in [name for name, value in labels.items() if HIDDEN in str(value)]:
        report.add("secret", f"label {name}", why)
        del labels[name]
    for word in found.words:
        if HIDDEN in word and word != HIDDEN and not word.startswith("--"):
            report.add("secret", word, "its secret stays on the host: give it by a file, or in `server_key`")
    if not labels:
        found.options.pop("labels", None)
