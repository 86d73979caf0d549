"""The `bench.*` commands: run an experiment on a host or against a URL, and print its results."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkwright.app import experiment_plans
from sparkwright.app.connect import reach
from sparkwright.app.experiment_folder import FOLDER, Collector, Place
from sparkwright.app.plans import clusters
from sparkwright.bench import axis, results_file, summary, vllm_results
from sparkwright.bench import compare as comparing
from sparkwright.bench.experiment import Experiment, turns
from sparkwright.bench.order import Order, Room, planned
from sparkwright.bench.play import verdict
from sparkwright.bench.results_file import Results
from sparkwright.console.out import say, say_json
from sparkwright.engines import engine, openai_api
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.html import experiment_page
from sparkwright.measure import http_probe, lab
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
        return _shown(*at_url(given["url"], given["model"], order, **place), given)
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
    """Return the values of an option that may be repeated."""
    texts = given if isinstance(given, list) else [given]
    return [str(text) for text in texts if text]


def _span(word: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Parse a number, or a range that doubles at each step: 1..16 is 1, 2, 4, 8, 16."""
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
        Refused: the name can't be used for a folder.
    """
    found = vllm_results.load(Path(file))
    if name:
        found = found.model_copy(update={"name": name})
    reason = "starts with a dot" if found.name.startswith(".") else why_not_a_file(found.name)
    if reason:
        raise Refused(f"the name '{one_line(found.name, at_most=80)}' {reason}.", fix="--name OTHER")
    folder = Project.here_or_cwd() / FOLDER / found.name
    if (folder / "experiment.json").exists():
        raise Refused(f"{folder} is an experiment of the lab.", fix="--name OTHER")
    _write(folder, found)
    note = f"{folder / results_file.JSON}: compare it with `invoke bench.compare {found.name} OTHER`."
    _show(found, note, json=json)


def report(name: str, *, json: bool) -> None:
    """Print the tables of an experiment, and rebuild its page and its CSV file."""
    found, path = _read(name), _find(name)
    folder = path if path.is_dir() else path.parent
    written = _write(folder, found)
    _show(found, str(folder / written), json=json)


def _show(found: Results, note: str, *, json: bool) -> None:
    if json:
        say(results_file.to_json(found), end="")
        return
    summary.show(found)
    say(f"\n{note}")


def show_all(*, json: bool) -> None:
    """List the experiments of this project, with what was measured, where and when."""
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


SERVER = "server"
#: environment variable that holds the key of the server at a URL, for any engine
KEY = engine.of(engine.USUAL).http.key_variable


def at_url(url: str, model: str, order: Order, *, root: Path, quiet: bool = False) -> tuple[Results, int, Path]:
    """Run an experiment against a base URL.

    Args:
        model: the served name; empty for the first model that the server lists.
    """
    if order.has_arms:
        raise Refused("arms are started on a host: --host NAME instead of --url.")
    url, key = _base(url), _key()
    http, served, length = _served(url, model, key)
    loads = planned(order, Room(length=length), Path.cwd())
    made = turns([SERVER] * order.repeat, loads.loads, {SERVER: [url, served]})
    place = Place.of(root, order.name or f"{order.command}-{urlsplit(url).netloc.replace(':', '-')}", again=order.again)
    experiment = Experiment(order.command, place.folder.name, (), made, loads.notes)
    arm = {"name": SERVER, "title": f"{served} at {url}"}
    found = Collector(place, experiment, urlsplit(url).netloc, "laptop", {SERVER: arm})
    found.cells = _finished(place, experiment)
    target = lab.Target(http, url, served, key, counters=lambda: http_probe.read_counters(http, url, key)[0])
    for cell in [cell for turn in made for cell in turn.cells if cell.key not in found.cells]:
        _say(f"measuring: {verdict(cell)}", quiet)
        about = {"key": cell.key, "arm": SERVER, "repetition": cell.repetition, "load": cell.load.described}
        measured = {**about, **lab.run(target, cell.load)}
        _say(f"  {lab.sentence(measured)}", quiet)
        found.keep(measured)
    found.write()
    place.mark(finished=found.complete)
    return found.results(), int(Exit.OK if found.complete else Exit.INCONCLUSIVE), place.folder


def _base(url: str) -> str:
    """Return the URL without /v1.

    Raises Refused for an invalid URL, and for one that holds more than an address, because the results contain the URL.
    """
    try:
        at = urlsplit(url)
        well = at.scheme in ("http", "https") and bool(at.hostname) and at.port != 0
    except ValueError:
        well = False
    if not well:
        raise Refused("--url is not a base_url.", fix="As http://127.0.0.1:8000, without /v1.")
    if "@" in at.netloc or at.query or at.fragment:
        raise Refused("--url holds more than an address, and the results name it.", fix=f"A key is taken from {KEY}.")
    return url.rstrip("/").removesuffix("/v1")


def _key() -> str:
    """Return the server's key; empty for none. Raises Refused for a key that can't be sent in a header."""
    key = os.environ.get(KEY, "").strip()
    if not key.isascii() or not key.isprintable():
        raise Refused(f"{KEY} holds no key: it has letters that no header can carry.")
    return key


def _served(url: str, model: str, key: str) -> tuple[Http, str, int | None]:
    """Return the engine's HTTP interface, the served model name and its context length in tokens."""
    path = engine.of(engine.USUAL).http.models
    answer = http_probe.ask(url, path, api_key=key)
    if answer.status != 200:
        fix = f"A key is taken from {KEY}." if answer.status == 401 else ""
        raise Failed(f"{url}{path} answers {answer.status or answer.error}.", fix=fix)
    rows = answer.json()
    data = rows.get("data") if isinstance(rows, dict) else None
    reported = [row.get("id") for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    names = [name for name in reported if isinstance(name, str)]
    if not names or (model and model not in names):
        raise Refused(f"{url} serves {', '.join(names) or 'no model'}.", fix="--model NAME")
    served = model or names[0]
    http = engine.of_models(rows).http
    return http, served, openai_api.served(http, rows).get(served)


def _finished(place: Place, experiment: Experiment) -> dict[str, dict[str, object]]:
    """Return the finished cells of a series that is continued."""
    try:
        before = results_file.read(place.folder)
    except Refused:
        return {}
    keys = set(experiment.keys)
    return {
        cell.key: cell.model_dump(mode="json")
        for cell in before.cells
        if before.series == place.series and cell.key in keys and cell.verdict == "measured"
    }


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        say(text, file=sys.stderr)
