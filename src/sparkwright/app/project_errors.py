"""The errors in a project's files other than recipes and the lock, for `lint`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project import ejection, gateway_certificate, registries
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import collect_refusals
from sparkwright.project.inventory import inventory
from sparkwright.project.playbook import playbook
from sparkwright.project.playbook.compiler import TEMPLATE_MODULES, find_template, load_signature, split_module
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.scope import find_file
from sparkwright.protocol import expressions, signature

#: states of files that are not the project's own
FOREIGN_STATES = ("shipped", "copied")
PLAY_KEYS = {"hosts", "tasks"}


def find_errors(root: Path) -> list[Refused]:
    """Return the errors of hosts/, gateways' certificates, registries.yml and the project's own playbooks, each once.

    A playbook is checked as far as that is possible without a host.
    """
    errors = inventory.find_errors(root)
    if not errors:
        gateways = inventory.Inventory.load(root, may_be_empty=True).gateways.values()
        errors += collect_refusals(partial(gateway_certificate.check_dates, root, gateway) for gateway in gateways)
    if document.exists(root / registries.REGISTRIES_FILE):
        errors += collect_refusals([partial(registries.load, root)])
    names = [row.name for row in ejection.list_states(root) if row.state not in FOREIGN_STATES]
    playbooks = [name for name in names if name.startswith("playbooks/") and name.endswith(".yml")]
    errors += collect_refusals(partial(check_playbook, root / name, root) for name in playbooks)
    distinct_errors = {str(error): error for error in errors}  # each playbook that includes a part has the part's error
    return list(distinct_errors.values())


def find_file_errors(recipes: Iterable[Recipe]) -> list[Refused]:
    """Return the errors of missing files in `files` of recipes."""
    return collect_refusals(partial(find_file, recipe, path) for recipe in recipes for path in recipe.file.files)


def check_playbook(path: Path, project: Path) -> None:
    """Check keys, modules, and arguments without expressions of a playbook or a part (a list of tasks that playbooks include).

    Raises Refused for the first mistake.
    """
    source = document.load(path)
    is_part = isinstance(source.data, list) and not any(
        isinstance(item, dict) and item.keys() & PLAY_KEYS for item in source.data
    )
    if is_part:
        source = playbook.splice_includes(source, project)
        playbook.check_steps(source, source.data, ())
        playbook.refuse_secrets(source)
        _check_modules(source, source.data, (), project)
        return
    for play in playbook.load(path, project).plays:
        _check_modules(play.document, play.file.tasks, (*play.place, "tasks"), project)
        _check_modules(play.document, play.file.handlers, (*play.place, "handlers"), project)


def _check_modules(source: Document, steps: list[dict[str, Any]], place: Place, project: Path) -> None:
    """Check the modules of a list of tasks and blocks, at any depth. place: place of the list."""
    for n, step in enumerate(steps):
        step_place = (*place, n)
        if "block" not in step:
            _check_module(source, step, step_place, project)
            continue
        for key in ("block", "rescue", "always"):
            _check_modules(source, step.get(key, []), (*step_place, key), project)


def _check_module(source: Document, task: dict[str, Any], place: Place, project: Path) -> None:
    module, arguments = split_module(source, task, place)
    if module in TEMPLATE_MODULES and "src" in arguments:
        name = arguments.pop("src")
        if not expressions.has_expression(name):
            find_template(project, str(name), source.where(*place, module, "src"))
        arguments["content"] = "{{ the rendered template }}"
    unresolved = frozenset(key for key, value in arguments.items() if expressions.has_expression(value))
    try:
        signature.validate_arguments(load_signature(module), arguments, module=module, unresolved=unresolved)
    except Refused as error:
        names = (name for name in arguments if f"`{name}`" in error.message or f"{module}.{name}" in error.message)
        where = source.where(*place, module, *list(names)[:1])
        raise Refused(error.message, where=where, fix=error.fix) from None
