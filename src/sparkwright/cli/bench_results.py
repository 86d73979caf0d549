"""The commands of the lab that only read results: compare, import, report, list. They touch no host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke.tasks import task

from sparkwright.app.outcome import reporting
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.trust.names import why_not_a_file
from sparkwright.trust.visible import one_line


def _find(text: str) -> Path:
    """A results file, its folder, or the name of an experiment."""
    from sparkwright.app.bench.experiment_folder import FOLDER
    from sparkwright.project.folder import Project

    path = Path(text)
    named = Project.here_or_cwd() / FOLDER / text
    return path if path.exists() or not named.exists() else named


@task(
    positional=["first", "second"],
    help={
        "first": "results: a file, or the name of an experiment; what `vllm bench serve` wrote too",
        "second": "what is held against it",
        "json": "the differences as JSON",
        "debug": "show the traceback of an error",
    },
)
@reporting
def compare(context: object, first: str, second: str, json: bool = False, debug: bool = False) -> int:
    """Two results side by side: each figure of each load that both have, and their ratio."""
    from sparkwright.bench import compare as comparing
    from sparkwright.bench import summary

    one, other = _read(first), _read(second)
    found = comparing.two_files(one, other)
    if not found:
        raise Refused(
            "these results have no load in common.", fix=f"Loads: {', '.join(comparing.unmatched(one, other))}."
        )
    if json:
        import dataclasses

        say_json([{**dataclasses.asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in found])
        return 0
    summary.show_differences(found, one.name, other.name)
    for line in comparing.unmatched(one, other):
        say(f"only one of them has: {line}")
    return 0


@task(
    name="import",
    positional=["file"],
    help={
        "file": "the JSON that `vllm bench serve --save-result` wrote, or its printed text",
        "name": "of the results; the file's name if not given",
        "json": "the results as they were taken in",
        "debug": "show the traceback of an error",
    },
)
@reporting
def take_in(context: object, file: str, name: str = "", json: bool = False, debug: bool = False) -> int:
    """Take in what `vllm bench serve` measured, to lay it beside ours."""
    from sparkwright.app.bench.experiment_folder import FOLDER
    from sparkwright.bench import results_files, summary, vllm_results
    from sparkwright.html import experiment_page
    from sparkwright.project.folder import Project

    found = vllm_results.load(Path(file))
    if name:
        found = found.model_copy(update={"name": name})
    reason = why_not_a_file(found.name)
    if reason:
        raise Refused(f"the name '{one_line(found.name, at_most=80)}' {reason}.", fix="--name OTHER")
    folder = Project.here_or_cwd() / FOLDER / found.name
    if (folder / "experiment.json").exists():
        raise Refused(f"{folder} is an experiment of the lab.", fix="--name OTHER")
    results_files.write(folder, found)
    experiment_page.write(folder, found)
    if json:
        say(results_files.to_json(found), end="")
        return 0
    summary.show(found)
    say(f"\n{folder / results_files.JSON}: `invoke bench.compare {found.name} OTHER` lays it beside others.")
    return 0


@task(
    positional=["results"],
    help={
        "results": "a results file, or the name of an experiment",
        "json": "the results themselves",
        "debug": "show the traceback of an error",
    },
)
@reporting
def report(context: object, results: str, json: bool = False, debug: bool = False) -> int:
    """Print the tables of an experiment, and make its page and its CSV again."""
    from sparkwright.bench import results_files, summary
    from sparkwright.html import experiment_page

    found, path = _read(results), _find(results)
    folder = path if path.is_dir() else path.parent
    results_files.write(folder, found)
    written = experiment_page.write(folder, found)
    if json:
        say(results_files.to_json(found), end="")
        return 0
    summary.show(found)
    say(f"\n{folder / written}")
    return 0


@task(name="list", help={"json": "one object an experiment", "debug": "show the traceback of an error"})
@reporting
def show_all(context: object, json: bool = False, debug: bool = False) -> int:
    """The experiments of this project: what was measured, where and when."""
    from sparkwright.app.bench.experiment_folder import FOLDER
    from sparkwright.bench import results_files
    from sparkwright.project.folder import Project

    for path in sorted((Project.here_or_cwd() / FOLDER).glob(f"*/{results_files.JSON}")):
        found = results_files.read(path)
        if json:
            about = {"name": found.name, "experiment": found.experiment, "host": found.host}
            say_json({**about, "cells": len(found.cells), "created_at": found.created_at})
            continue
        say(
            f"{found.name:<28} {found.experiment:<8} {found.host or '-':<20} {len(found.cells):>3} cells  {found.created_at}"
        )
    return 0


def _read(text: str) -> Any:
    """Results of ours, or what `vllm bench serve` wrote."""
    from sparkwright.bench import results_files, vllm_results

    path = _find(text)
    try:
        return results_files.read(path)
    except Refused as refused:
        if not path.is_file():
            raise
        try:
            return vllm_results.load(path)
        except Refused:
            raise refused from None


TASKS = [compare, take_in, report, show_all]
