"""The `bench.*` commands: an experiment on a host or at a URL, and its results on the screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkwright.app.bench import experiment_plans, run_local
from sparkwright.app.bench.experiment_folder import FOLDER
from sparkwright.app.connect import reach
from sparkwright.app.plans import clusters
from sparkwright.bench import axis, results_file, summary, vllm_results
from sparkwright.bench import compare as comparing
from sparkwright.bench.order import Order
from sparkwright.bench.results_file import Results
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.html import experiment_page
from sparkwright.project.folder import Project
from sparkwright.trust.names import why_not_a_file
from sparkwright.visible import listed, one_line


def run(command: str, given: dict[str, Any]) -> int:
    """Run a bench command and return its exit code."""
    order = order_of(command, given).checked()
    if bool(given.get("url")) == bool(given["host"]):
        other = "where: --host NAME, or --url of a server." if "url" in given else "which host: --host NAME."
        raise Refused(f"say {other}")
    if given.get("url"):
        place = {"root": Project.here_or_cwd(), "quiet": given["json"]}
        return _shown(*run_local.at_url(given["url"], given["model"], order, **place), given)
    selection = reach(given["host"])
    how = {"json": given["json"], "wait": given["wait"]}
    if order.has_arms and clusters.one_of(selection):
        clusters.refuse_part_or_others(selection)
        results, code, folder = experiment_plans.on_cluster(selection, order, lambda: reach(given["host"]), **how)
    else:
        selection = clusters.answering(selection, f"bench.{command}")
        results, code, folder = experiment_plans.on_host(selection, order, **how)
    return _shown(results, code, folder, given) if results is not None else code


def _shown(results: Results, code: int, folder: Path, given: dict[str, Any]) -> int:
    written = experiment_page.write(folder, results)
    if given["json"]:
        if given.get("url"):
            say(results_file.to_json(results), end="")
        return code
    say()
    summary.show(results)
    if given.get("spark_arena"):
        say("\n" + summary.table(results))
    say(f"\n{folder / results_file.JSON}, {results_file.CSV}, {written}")
    return code


def order_of(command: str, given: dict[str, Any]) -> Order:
    """Convert the options of a command to the lab's order."""

    def numbers(name: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
        text = str(given.get(name) or "")
        try:
            return tuple(number for word in listed(text) for number in _span(word, kind))
        except ValueError:
            raise Refused(f"--{name.replace('_', '-')} {text}: numbers, separated by commas.") from None

    plain = (
        "a",
        "b",
        "flag",
        "recipe",
        "requests",
        "prompt_tokens",
        "output_tokens",
        "long_tokens",
        "dataset",
        "depth",
        "streams",
    )
    about = {name: given[name] for name in (*plain, "repeat", "seed", "name", "again") if name in given}
    names, texts = (_all(given.get(name)) for name in ("flag", "values"))
    if texts or command == "sweep":
        about["flag"] = ""
    return Order(
        command,
        **about,
        axes=axis.parsed(names, texts) if texts or command == "sweep" else (),
        sizes=numbers("max_num_batched_tokens", int),
        concurrency=numbers("concurrency", int),
        rates=numbers("rate", float),
        temperatures=numbers("temperature", float),
        loads=tuple(listed(str(given.get("loads") or ""))),
    )


def _all(given: Any) -> list[str]:
    """Return the texts of an option that may be given once or several times."""
    texts = given if isinstance(given, list) else [given]
    return [str(text) for text in texts if text]


def _span(word: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Parse one number, or a range that doubles: 1..16 is 1, 2, 4, 8, 16."""
    first, dots, last = word.partition("..")
    if not dots:
        return (kind(word),)
    found, end = [kind(first)], kind(last)
    if found[0] <= 0:
        raise ValueError(word)
    while found[-1] * 2 <= end:
        found.append(found[-1] * 2)
    return (*found, *((end,) if found[-1] < end else ()))


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
        say(results_file.to_json(found), end="")
        return
    summary.show(found)
    say(f"\n{folder / results_file.JSON}: compare it with `invoke bench.compare {found.name} OTHER`.")


def report(name: str, *, json: bool) -> None:
    """Print the tables of an experiment, and rebuild its page and its CSV file."""
    found, path = _read(name), _find(name)
    folder = path if path.is_dir() else path.parent
    written = _write(folder, found)
    if json:
        say(results_file.to_json(found), end="")
        return
    summary.show(found)
    say(f"\n{folder / written}")


def show_all(*, json: bool) -> None:
    """List the experiments of this project: what was measured, where and when."""
    for path in sorted((Project.here_or_cwd() / FOLDER).glob(f"*/{results_file.JSON}")):
        found = results_file.read(path)
        if json:
            about = {name: getattr(found, name) for name in ("name", "experiment", "host")}
            say_json({**about, "cells": len(found.cells), "created_at": found.created_at})
        else:
            cells = f"{len(found.cells):>3} cells"
            say(f"{found.name:<28} {found.experiment:<8} {found.host or '-':<20} {cells}  {found.created_at}")


def _write(folder: Path, found: Results) -> str:
    """Write the files and the page of results. Return the name of the page."""
    results_file.write(folder, found)
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
        return results_file.read(path)
    except Refused as refused:
        if not path.is_file():
            raise
        try:
            return vllm_results.load(path)
        except Refused:
            raise refused from None
