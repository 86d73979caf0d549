"""Import other tools' recipes, with open questions and a report, and export recipes in other tools' formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.app import findings
from sparkwright.app.connect import connect_hosts, select_machines
from sparkwright.app.plans.pins import load_sandbox_lock, lock_entries, missing_pins
from sparkwright.app.plans.recipes import login_user
from sparkwright.app.prompts import ask_until_valid
from sparkwright.app.queries.host_requests import query_module
from sparkwright.app.stores import lock_update
from sparkwright.console import formatters
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet.member import close_links
from sparkwright.project import export_formats, lockfile, recipe
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.importing import docker_command, format_detection, recipe_builder
from sparkwright.project.importing.container import convert_running
from sparkwright.project.importing.foreign_recipe import ROW_KINDS, ImportReport, ReportRow
from sparkwright.project.importing.recipe_builder import ImportedRecipe
from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.patterns import ALL_HOSTS
from sparkwright.project.recipe.scope import home_folder
from sparkwright.trust import secret_patterns
from sparkwright.trust.names import check_file_name
from sparkwright.visible import format_count, one_line

KIND_WIDTH = max(map(len, ROW_KINDS))
EXPORT_FORMATS = {
    "sparkrun": export_formats.render_sparkrun,
    "compose": export_formats.render_compose,
    "docker-run": export_formats.render_docker_run,
}


@dataclass(frozen=True)
class ImportSource:
    """Another tool's recipe that is being imported."""

    text: str
    #: path of the recipe's file, for messages and to read files next to it
    path: Path
    #: description of the source in the new recipe
    origin: str


def parse_source(text: str) -> ImportSource:
    """Return the source for a file's path or a docker run line. Raises Refused for anything else."""
    if docker_command.matches(text):
        return ImportSource(text, Path("docker run"), "a docker run line")
    if text.startswith(("http://", "https://", "git@")):
        fix = "Save the file and pass its path, or add its repository to registries.yml: docs/recipes-in.md."
        raise Refused(f"'{one_line(text, max_chars=120)}' is a URL, which can't be imported.", fix=fix)
    path = Path(text).expanduser()
    return ImportSource(document.read_text(path), path.absolute(), document.format_path(path.absolute()))


def parse_answers(options: Sequence[str]) -> dict[str, str]:
    """Parse `--answer KEY=VALUE` options. Raises Refused for an option without a value."""
    rows = [option.partition("=") for option in options]
    if key_without_value := next((key for key, _, value in rows if not value), ""):
        raise Refused(
            f"`--answer {one_line(key_without_value, max_chars=80)}` has no value.",
            fix="For example --answer image=REPOSITORY:TAG.",
        )
    return {key: value for key, _, value in rows}


def convert_source(source: ImportSource, name: str, answers: Mapping[str, str]) -> ImportedRecipe:
    """Convert a source to a recipe, and ask the questions that it leaves open. Without a terminal, they remain in the report."""

    def convert(report: ImportReport) -> ImportedRecipe:
        return recipe_builder.build_recipe(
            format_detection.parse(source.text, source.path, report), name, report, source.origin
        )

    return _convert_with_answers(convert, answers)


def convert_container(host: str, container: str, name: str, answers: Mapping[str, str]) -> ImportedRecipe:
    """Convert a container on a host to a recipe. The container keeps serving."""
    if not container:
        raise Refused("no container was named: pass --container NAME.", fix="`docker ps` on the host lists them.")
    selection = select_machines(connect_hosts(host))
    if len(selection.hosts) != 1:
        raise Refused(f"--from-host must name one host, got {len(selection.hosts)}.")
    member = selection.fleet.members[0]
    try:
        settings = query_module(selection.fleet, member, "container_settings", {"name": container})
    finally:
        close_links(selection.fleet.members)

    home = f"{home_folder(member.host, login_user(member.host))}/"
    settings["volumes"] = [
        f"~/{volume.removeprefix(home)}" if volume.startswith(home) else volume for volume in settings["volumes"]
    ]

    def convert(report: ImportReport) -> ImportedRecipe:
        foreign_recipe = convert_running(settings, member.host.name, report)
        return recipe_builder.build_recipe(foreign_recipe, name, report, foreign_recipe.kind)

    return _convert_with_answers(convert, answers)


def _convert_with_answers(
    convert: Callable[[ImportReport], ImportedRecipe], answers: Mapping[str, str]
) -> ImportedRecipe:
    known_answers = dict(answers)
    while True:
        try:
            imported_recipe = convert(ImportReport(known_answers))
        except Refused as error:  # the message quotes the input, which may contain a key
            raise Refused(
                secret_patterns.mask_text(error.message), where=error.where, fix=secret_patterns.mask_text(error.fix)
            ) from None
        if not imported_recipe.report.questions or not sys.stdin.isatty():
            return imported_recipe
        for question in imported_recipe.report.questions:
            known_answers[question.key] = ask_until_valid(question.text, question.choices)


def write_recipe(imported_recipe: ImportedRecipe, *, host: str, check: bool, as_json: bool) -> Exit:
    """Write the recipe, pin it, and print the report.

    Args:
        host: the host that queries the registry and the hub; empty to leave the recipe unpinned.
        check: write nothing.

    Raises:
        Refused: there are open questions, or the file exists.
    """
    if imported_recipe.report.questions:
        _refuse_open_questions(imported_recipe, as_json=as_json)
    path = _new_recipe_path(imported_recipe.name)
    if not check:
        _write_text(path, imported_recipe.text)
    if host and not check:
        pin_recipe(imported_recipe, host)
    if as_json:
        print_json_line(
            {
                "recipe": imported_recipe.name,
                "file": document.format_path(path),
                "text": imported_recipe.text,
                **imported_recipe.report.to_json(),
            }
        )
        return Exit.OK
    _print_report(imported_recipe.report)
    print_text(imported_recipe.text if check else f"{document.format_path(path)} written.")
    if not check:
        findings.print_findings_text(
            findings.check_recipes(imported_recipe.name, "", "")[0]
        )  # a recipe with errors is kept
        _print_next_steps(imported_recipe, host)
    return Exit.OK


def _print_next_steps(imported_recipe: ImportedRecipe, host: str) -> None:
    """Print the next step: set the recipe in a host's file, or in a group if it needs several hosts.

    Args:
        host: the host that was used to pin the recipe; empty if it is not pinned.
    """
    root = Project.here().root
    name = (
        imported_recipe.name
        if imported_recipe.hosts > 1
        else host
        if document.is_file(root / f"hosts/{host}.yml")
        else "NAME"
    )
    lock_step = "" if host else f"`invoke lock --host {name}` and "
    if imported_recipe.hosts == 1:
        print_text(
            f"Next: set `recipe: {imported_recipe.name}` in hosts/{name}.yml, "
            f"then {lock_step}`invoke plan --host {name}`."
        )
        return
    names = sorted({listed_host.machine for listed_host in patterns.read_ssh_hosts(root, ALL_HOSTS)})[
        : imported_recipe.hosts
    ]
    names += [f"HOST{n}" for n in range(len(names) + 1, imported_recipe.hosts + 1)]
    print_text(
        f"Next: add a cluster to hosts/groups.yml, of {imported_recipe.hosts} hosts without `recipe` in their files "
        "(docs/clusters.md):"
    )
    print_text(f"  {name}:\n    hosts: [{', '.join(names)}]\n    cluster: {{recipe: {name}, head: {names[0]}}}")
    print_text(f"then `invoke cluster.inspect --host {name} --write`, {lock_step}`invoke plan --host {name}`.")


def _refuse_open_questions(imported_recipe: ImportedRecipe, *, as_json: bool) -> None:
    """Raise Refused with the open questions, because there is no terminal on which to ask them."""
    if as_json:
        print_json_line(
            {
                "recipe": imported_recipe.name,
                "file": None,
                **imported_recipe.report.to_json(),
                "exit": int(Exit.REFUSED),
            }
        )
    else:
        _print_report(imported_recipe.report)
        for question in imported_recipe.report.questions:
            print_prose(f"  {'to answer':<{KIND_WIDTH}}  {question.text}.", file=sys.stderr)
            choices = "|".join(question.choices) or "..."
            print_text(f"  {'':<{KIND_WIDTH}}  --answer {question.key}={choices}", file=sys.stderr)
    questions = format_count(len(imported_recipe.report.questions), "question")
    raise Refused(
        f"{questions} to answer, but stdin is not a terminal.",
        fix="Nothing was written; pass --answer KEY=VALUE for each.",
    )


def _print_report(report: ImportReport) -> None:
    for row_kind in ROW_KINDS:
        for row in (row for row in report.rows if row.kind == row_kind):
            print_prose(f"  {row_kind:<{KIND_WIDTH}}  {row.subject}{f': {row.reason}' if row.reason else ''}")


def _new_recipe_path(name: str) -> Path:
    if reason := check_file_name(name):
        raise Refused(f"the recipe '{one_line(name, max_chars=80)}' {reason}.", fix="Choose another with --name.")
    path = Project.here().root / "recipes" / f"{name}.yml"
    if path.exists():
        raise Refused(f"{document.format_path(path)} already exists.", fix="Choose another name with --name.")
    return path


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"{document.format_path(path)}: {error.strerror}.") from None


def pin_recipe(imported_recipe: ImportedRecipe, host: str) -> None:
    """Pin the image and the model, and add the outcome or the reason for a failure to the import's report.

    Args:
        host: the host that queries the registry and the hub.

    Raises:
        Refused: the pattern does not match exactly one host.
    """
    selection = select_machines(connect_hosts(host))
    if len(selection.hosts) != 1:
        close_links(selection.fleet.members)
        raise Refused(f"--host must name one host, got {len(selection.hosts)}.")
    loaded_recipe = recipe.load(selection.project.root, imported_recipe.name)
    entries = lock_update.recipe_entries(selection, selection.fleet.members[0], loaded_recipe)
    lock_update.query_upstream(selection, [entry for entry in entries if not entry.is_complete], follow_tags=True)
    lock_update.write_locks([entry for entry in entries if entry.new_data is not None])
    entry_names = {f"{entry.kind} {entry.key}" for entry in entries}
    other_rows = [row for row in imported_recipe.report.rows if row.subject not in entry_names]
    entry_rows = [row for entry in entries for row in _entry_rows(entry, imported_recipe)]
    imported_recipe.report.rows = dict.fromkeys(other_rows + entry_rows)


def _entry_rows(entry: lock_update.LockEntry, imported_recipe: ImportedRecipe) -> list[ReportRow]:
    if entry.error is not None:
        fix = "Retry with `invoke lock --host NAME`, where NAME is a host that serves it."
        return [ReportRow("note", f"{entry.kind} {entry.key}", f"not pinned: {entry.error} {fix}")]
    lock_name = (
        "the sandbox's own lock, not in spark.lock" if entry.member.host.connection == "sandbox" else "spark.lock"
    )
    change = (
        "unchanged" if entry.new_data is None or entry.state == "same" else entry.format_state().removeprefix("new: ")
    )
    pinned_row = ReportRow("kept", f"{entry.kind} {entry.key}", f"pinned in {lock_name}: {change}")
    digest = (entry.new_data or entry.old_data or {}).get("digest", "")
    if entry.kind == "model" or imported_recipe.image_digest in ("", digest):
        return [pinned_row]
    digest_note = (
        f"the source pins {formatters.truncate_value(imported_recipe.image_digest)}; the tag now points to "
        f"{formatters.truncate_value(digest)}"
    )
    return [pinned_row, ReportRow("note", f"image {entry.key}", digest_note)]


def export_recipe(name: str, format_name: str, *, unpinned: bool, as_json: bool) -> None:
    """Write a recipe to standard output in another format.

    Raises Refused for an unknown format, and if spark.lock lacks a pin, unless `unpinned` is True.
    """
    if format_name not in EXPORT_FORMATS:
        raise Refused(f"no format {format_name!r}.", fix=suggest_name(format_name, EXPORT_FORMATS))
    root = Project.here().root
    loaded_recipe = recipe.load(root, name)
    pins = lock_entries(lockfile.load(root), loaded_recipe)
    missing_pin_names = missing_pins(pins)
    if missing_pin_names and not unpinned:
        missing_names = " and ".join(missing_pin_names)
        fix = "Pin it with `invoke lock --host NAME`, or pass --unpinned."
        only_simulated = set(missing_pin_names) - set(missing_pins(lock_entries(load_sandbox_lock(), loaded_recipe)))
        sandbox_note = " The sandbox's pins do not come from a real registry." if only_simulated else ""
        raise Refused(f"spark.lock has no entry for the {missing_names} of {name}.{sandbox_note}", fix=fix)
    export = export_formats.build_export(loaded_recipe, pins)
    text = EXPORT_FORMATS[format_name](export)
    if as_json:
        print_json_line({"recipe": name, "format": format_name, "text": text, "notes": export.notes})
        return
    for note in export.notes:
        print_prose(f"note: {note}.", file=sys.stderr)
    print(text, end="")
