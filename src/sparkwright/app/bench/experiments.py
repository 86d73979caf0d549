"""The `bench.*` commands: an experiment on a host or at a URL, and its results on the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkwright.app.bench import run_experiment, run_local
from sparkwright.app.connect import reach
from sparkwright.app.plans import clusters
from sparkwright.bench import axis, results_files, summary
from sparkwright.bench.order import Order
from sparkwright.bench.results_models import Results
from sparkwright.console.out import say
from sparkwright.errors import Refused
from sparkwright.html import experiment_page
from sparkwright.project.folder import Project
from sparkwright.visible import listed


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
        results, code, folder = run_experiment.on_cluster(selection, order, lambda: reach(given["host"]), **how)
    else:
        selection = clusters.answering(selection, f"bench.{command}")
        results, code, folder = run_experiment.on_host(selection, order, **how)
    return _shown(results, code, folder, given) if results is not None else code


def _shown(results: Results, code: int, folder: Path, given: dict[str, Any]) -> int:
    written = experiment_page.write(folder, results)
    if given["json"]:
        if given.get("url"):
            say(results_files.to_json(results), end="")
        return code
    say()
    summary.show(results)
    if given.get("spark_arena"):
        say("\n" + summary.table(results))
    say(f"\n{folder / results_files.JSON}, {results_files.CSV}, {written}")
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
