"""Import of other tools' recipes, with open questions and a report, and export in other tools' formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.app import findings
from sparkwright.app.connect import machines, reach
from sparkwright.app.plans.pins import entries, not_pinned, simulated
from sparkwright.app.plans.recipes import user_of
from sparkwright.app.prompts import answer_to
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.app.stores import lock_update
from sparkwright.console import words
from sparkwright.console.out import say, say_json, say_prose
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet.member import hang_up
from sparkwright.project import export_formats, lockfile, recipe
from sparkwright.project.documents import document
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.importing import docker_words, recipe_of, recognise
from sparkwright.project.importing.container import read_running
from sparkwright.project.importing.foreign import SORTS, Report, Row
from sparkwright.project.importing.recipe_of import Taken
from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.patterns import EVERYONE
from sparkwright.project.recipe.scope import home_of
from sparkwright.trust import secret_patterns
from sparkwright.trust.names import why_not_a_file
from sparkwright.visible import count, one_line

WIDTH = max(map(len, SORTS))


@dataclass(frozen=True)
class Source:
    """Another tool's recipe that is being imported."""

    text: str
    #: path of the recipe's file, for messages and for files next to it
    path: Path
    #: description of the source in the new recipe
    origin: str


def source_of(given: str) -> Source:
    """Return the source, which is a file or a docker run line. Raises Refused for anything else."""
    if docker_words.is_one(given):
        return Source(given, Path("docker run"), "a docker run line")
    if given.startswith(("http://", "https://", "git@")):
        fix = "Save the file and name it, or add its repository to registries.yml: docs/recipes-in.md."
        raise Refused(f"'{one_line(given, at_most=120)}' is not fetched from the network.", fix=fix)
    path = Path(given).expanduser()
    return Source(document.text_of(path), path.absolute(), document.shown(path.absolute()))


def answers_of(given: Sequence[str]) -> dict[str, str]:
    """Parse `--answer KEY=VALUE` options. Raises Refused for one without a value."""
    rows = [item.partition("=") for item in given]
    if wrong := next((key for key, equals, value in rows if not equals or not value), ""):
        raise Refused(
            f"`--answer {one_line(wrong, at_most=80)}` has no value.", fix="As --answer image=REPOSITORY:TAG."
        )
    return {key: value for key, _, value in rows}


def of_source(source: Source, name: str, answers: Mapping[str, str]) -> Taken:
    """Convert a text to a recipe, asking the open questions on the terminal.

    Without a terminal they stay open and are listed in the report.
    """

    def read(report: Report) -> Taken:
        return recipe_of.taken(recognise.read(source.text, source.path, report), name, report, source.origin)

    return _asked(read, answers)


def of_container(host: str, container: str, name: str, answers: Mapping[str, str]) -> Taken:
    """Convert a container on a host to a recipe. The container keeps serving."""
    if not container:
        raise Refused("no container was named: pass --container NAME.", fix="`docker ps` on the host lists them.")
    selection = machines(reach(host))
    if len(selection.hosts) != 1:
        raise Refused(f"--from-host must name one host, got {len(selection.hosts)}.")
    member = selection.fleet.members[0]
    try:
        settings = ask_module(selection.fleet, member, "container_settings", {"name": container})
    finally:
        hang_up(selection.fleet.members)

    home = f"{home_of(member.host, user_of(member.host))}/"
    settings["volumes"] = [
        f"~/{volume.removeprefix(home)}" if volume.startswith(home) else volume for volume in settings["volumes"]
    ]

    def read(report: Report) -> Taken:
        found = read_running(settings, member.host.name, report)
        return recipe_of.taken(found, name, report, found.kind)

    return _asked(read, answers)


def _asked(read: Callable[[Report], Taken], answers: Mapping[str, str]) -> Taken:
    known = dict(answers)
    while True:
        try:
            taken = read(Report(known))
        except Refused as error:  # the message quotes the input, which may hold a key
            raise Refused(
                secret_patterns.text(error.message), where=error.where, fix=secret_patterns.text(error.fix)
            ) from None
        if not taken.report.questions or not sys.stdin.isatty():
            return taken
        for question in taken.report.questions:
            known[question.key] = answer_to(question.sentence, question.choices)


def write(taken: Taken, *, host: str, check: bool, as_json: bool) -> Exit:
    """Report what was kept, write the recipe, and pin it.

    Args:
        host: host that queries the registry and the hub; "" for none.
        check: write nothing.

    Raises:
        Refused: there are open questions, or the file exists.
    """
    if taken.report.questions:
        _refuse_open(taken, as_json=as_json)
    path = _path(taken.name)
    if not check:
        _write(path, taken.text)
    if host and not check:
        tell(taken, host)
    if as_json:
        say_json({"recipe": taken.name, "file": document.shown(path), "text": taken.text, **taken.report.to_json()})
        return Exit.OK
    _print(taken.report)
    say(taken.text if check else f"{document.shown(path)} written.")
    if not check:
        _lint(taken.name)
        _say_next(taken, host)
    return Exit.OK


def _say_next(taken: Taken, host: str) -> None:
    """Print the next step: name the recipe in a host's file, or in a group if it needs several hosts.

    Args:
        host: the host that pinned the recipe; empty if it is not pinned.
    """
    root = Project.here().root
    name = taken.name if taken.hosts > 1 else host if document.is_file(root / f"hosts/{host}.yml") else "NAME"
    lock = "" if host else f"`invoke lock --host {name}` and "
    if taken.hosts == 1:
        return say(f"Next: `recipe: {taken.name}` in hosts/{name}.yml, then {lock}`invoke plan --host {name}`.")
    names = sorted({item.on or item.name for item in patterns.hosts(root, EVERYONE)})[: taken.hosts]
    names += [f"HOST{n}" for n in range(len(names) + 1, taken.hosts + 1)]
    say(
        f"Next: a cluster of {taken.hosts} hosts in hosts/groups.yml, without a `recipe` of their own (docs/clusters.md):"
    )
    say(f"  {name}:\n    hosts: [{', '.join(names)}]\n    cluster: {{recipe: {name}, head: {names[0]}}}")
    return say(f"then `invoke cluster.inspect --host {name} --write`, {lock}`invoke plan --host {name}`.")


def _refuse_open(taken: Taken, *, as_json: bool) -> None:
    """Raise Refused with the open questions, because there is no terminal to ask on."""
    if as_json:
        say_json({"recipe": taken.name, "file": None, **taken.report.to_json(), "exit": int(Exit.REFUSED)})
    else:
        _print(taken.report)
        for question in taken.report.questions:
            say_prose(f"  {'to answer':<{WIDTH}}  {question.sentence}.", file=sys.stderr)
            choices = "|".join(question.choices) or "..."
            say(f"  {'':<{WIDTH}}  --answer {question.key}={choices}", file=sys.stderr)
    questions = count(len(taken.report.questions), "question")
    raise Refused(
        f"{questions} to answer, and stdin is not a terminal.",
        fix="Nothing was written; pass --answer KEY=VALUE for each.",
    )


def _print(report: Report) -> None:
    for sort in SORTS:
        for row in (row for row in report.rows if row.sort == sort):
            say_prose(f"  {sort:<{WIDTH}}  {row.what}{f': {row.why}' if row.why else ''}")


def _path(name: str) -> Path:
    if reason := why_not_a_file(name):
        raise Refused(f"the recipe '{one_line(name, at_most=80)}' {reason}.", fix="Choose another with --name.")
    path = Project.here().root / "recipes" / f"{name}.yml"
    if path.exists():
        raise Refused(f"{document.shown(path)} already exists.", fix="Choose another name with --name.")
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"{document.shown(path)}: {error.strerror}.") from None


def _lint(name: str) -> None:
    """Print the findings of `lint`. The recipe is kept regardless of them."""
    findings.print_lines(findings.check(name, "", "")[0])


def tell(taken: Taken, host: str) -> None:
    """Pin the image and the model, and add the outcome to the import's report.

    An entry that could not be looked up is not pinned; the report has the reason.

    Args:
        host: the host that queries the registry and the hub.

    Raises:
        Refused: the pattern does not match exactly one host.
    """
    selection = machines(reach(host))
    if len(selection.hosts) != 1:
        hang_up(selection.fleet.members)
        raise Refused(f"--host must name one host to ask, got {len(selection.hosts)}.")
    wanted = recipe.load(selection.project.root, taken.name)
    found = lock_update.pinned_of(selection, selection.fleet.members[0], wanted)
    lock_update.ask_upstream(selection, [pinned for pinned in found if not pinned.complete], follow=True)
    lock_update.write([pinned for pinned in found if pinned.new is not None])
    keys = {f"{pinned.kind} {pinned.key}" for pinned in found}
    before = [row for row in taken.report.rows if row.what not in keys]
    taken.report.rows = before + [row for pinned in found for row in _rows(pinned, taken)]


def _lock_name(entry: lock_update.Pinned) -> str:
    return "the sandbox's own lock, not in spark.lock" if entry.member.host.connection == "sandbox" else "spark.lock"


def _rows(entry: lock_update.Pinned, taken: Taken) -> list[Row]:
    if entry.error is not None:
        fix = "`invoke lock` of a host that serves it tries again"
        return [Row("note", f"{entry.kind} {entry.key}", f"not pinned: {entry.error} {fix}")]
    how = "as before" if entry.new is None or entry.state == "same" else entry.sentence().removeprefix("new: ")
    pinned = Row("kept", f"{entry.kind} {entry.key}", f"pinned in {_lock_name(entry)}: {how}")
    digest = (entry.new or entry.old or {}).get("digest", "")
    if entry.kind == "model" or taken.image_digest in ("", digest):
        return [pinned]
    moved = f"the source pins {words.short(taken.image_digest)}; the tag now means {words.short(digest)}"
    return [pinned, Row("note", f"image {entry.key}", moved)]


FORMATS = {
    "sparkrun": export_formats.sparkrun_text,
    "compose": export_formats.compose_text,
    "docker-run": export_formats.docker_run_text,
}


def export(name: str, form: str, *, unpinned: bool, as_json: bool) -> None:
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
        aside = " The sandbox's pins do not come from a real registry." if simulates else ""
        raise Refused(f"spark.lock has no entry for the {what} of {name}.{aside}", fix=fix)
    exported = export_formats.export_of(wanted, pins)
    text = FORMATS[form](exported)
    if as_json:
        return say_json({"recipe": name, "format": form, "text": text, "notes": exported.notes})
    for note in exported.notes:
        say_prose(f"note: {note}.", file=sys.stderr)
    print(text, end="")
    return None
