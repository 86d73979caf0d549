"""The errors in a project's files other than recipes and the lock, for `lint`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project import ejection, registries
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import collect_refusals
from sparkwright.project.inventory import inventory
from sparkwright.project.playbook import check

#: states of files that are not the project's own
FOREIGN_STATES = ("shipped", "copied")


def find_errors(root: Path) -> list[Refused]:
    """Return the errors of hosts/, registries.yml and the project's own playbooks and parts, each once.

    A playbook is checked as far as that is possible without a host.
    """
    errors = inventory.find_errors(root)
    if document.exists(root / registries.REGISTRIES_FILE):
        errors += collect_refusals([partial(registries.load, root)])
    names = [row.name for row in ejection.list_states(root) if row.state not in FOREIGN_STATES]
    playbooks = [name for name in names if name.startswith("playbooks/") and name.endswith(".yml")]
    errors += collect_refusals(partial(check.check_file, root / name, root) for name in playbooks)
    return list(
        {str(error): error for error in errors}.values()
    )  # a part's error is found in each playbook that uses it
