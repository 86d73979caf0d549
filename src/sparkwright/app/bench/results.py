"""Results of experiments on the screen: compare, import, report, list."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sparkwright.app.bench.experiment_folder import FOLDER
from sparkwright.bench import compare as comparing
from sparkwright.bench import results_files, summary, vllm_results
from sparkwright.bench.results_models import Results
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.html import experiment_page
from sparkwright.project.folder import Project
from sparkwright.trust.names import why_not_a_file
from sparkwright.visible import one_line


def compare(first: str, second: str, *, json: bool) -> None:
    """Print two results side by side. Raises Refused if they have no load in common."""
    results, other = _read(first), _read(second)
    found = comparing.two_files(results, other)
    only = comparing.unmatched(results, other)
    if not found:
        raise Refused("these results have no load in common.", fix=f"Loads: {', '.join(only)}.")
    if json:
        say_json([{**dataclasses.asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in found])
        return
    summary.show_differences(found, results.name, other.name)
    for line in only:
        say(f"only one of them has: {line}")


def take_in(file: str, name: str, *, json: bool) -> None:
    """Import the output of `vllm bench serve`.

    Args:
        name: name of the results; empty for the file's name.

    Raises:
        Refused: the name can't be a folder's.
    """
    found = vllm_results.load(Path(file))
    if name:
        found = found.model_copy(update={"name": name})
    reason = why_not_a_file(found.name)
    if reason:
        raise Refused(f"the name '{one_line(found.name, at_most=80)}' {reason}.", fix="--name OTHER")
    folder = Project.here_or_cwd() / FOLDER / found.name
    if (folder / "experiment.json").exists():
        raise Refused(f"{folder} is an experiment of the lab.", fix="--name OTHER")
    _write(folder, found)
    if json:
        say(results_files.to_json(found), end="")
        return
    summary.show(found)
    say(f"\n{folder / results_files.JSON}: compare it with `invoke bench.compare {found.name} OTHER`.")


def report(name: str, *, json: bool) -> None:
    """Print the tables of an experiment, and rebuild its page and its CSV file."""
    found, path = _read(name), _find(name)
    folder = path if path.is_dir() else path.parent
    written = _write(folder, found)
    if json:
        say(results_files.to_json(found), end="")
        return
    summary.show(found)
    say(f"\n{folder / written}")


def show_all(*, json: bool) -> None:
    """List the experiments of this project: what was measured, where and when."""
    for path in sorted((Project.here_or_cwd() / FOLDER).glob(f"*/{results_files.JSON}")):
        found = results_files.read(path)
        if json:
            about = {name: getattr(found, name) for name in ("name", "experiment", "host")}
            say_json({**about, "cells": len(found.cells), "created_at": found.created_at})
        else:
            cells = f"{len(found.cells):>3} cells"
            say(f"{found.name:<28} {found.experiment:<8} {found.host or '-':<20} {cells}  {found.created_at}")


def _write(folder: Path, found: Results) -> str:
    """Write the files and the page of results. Return the name of the page."""
    results_files.write(folder, found)
    return experiment_page.write(folder, found)


def _find(text: str) -> Path:
    """Find results by file, folder, or the name of an experiment."""
    path = Path(text)
    named = Project.here_or_cwd() / FOLDER / text
    return path if path.exists() or not named.exists() else named


def _read(text: str) -> Results:
    """Read results of sparkwright or of `vllm bench serve`."""
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
