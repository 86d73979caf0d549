"""`invoke bench.*`: the lab. What runs is measured as it is; arms are started fresh, and what served before is put back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection
from invoke.tasks import Task

from sparkwright.app.outcome import reporting
from sparkwright.cli import bench_results
from sparkwright.console.out import say
from sparkwright.errors import Refused

if TYPE_CHECKING:
    from sparkwright.bench.results_models import Results

Option = tuple[str, str | bool | int, str]  # its name, default, what `--help` says

COMMON: tuple[Option, ...] = (
    ("host", "", "the host that serves; it measures itself"),
    ("name", "", "of the experiment: results/NAME (made of command and host if not given)"),
    ("again", False, "begin anew, although the last series of this name is not finished"),
    ("seed", 1, "of lengths, order and arrivals"),
    ("json", False, "events as JSON lines; with --url the results themselves"),
    ("wait", False, "when somebody else works on the host, wait for him"),
    ("debug", False, "show the traceback of an error"),
)
URL: tuple[Option, ...] = (
    ("url", "", "instead of a host: any OpenAI-compatible base_url, measured from here"),
    ("model", "", "with --url: the served name, when there are several"),
)
REPEAT: Option = ("repeat", 1, "how often each load is measured; of two arms, rounds of A B B A")
RECIPE: Option = ("recipe", "", "another recipe than the host's")
ARMS: tuple[Option, ...] = (
    ("a", "", "recipe of the first arm"),
    ("b", "", "recipe of the second"),
    (
        "flag",
        "",
        "instead: one flag of the host's recipe. chunked-prefill: on against off; NAME or NAME=VALUE: with and without",
    ),
    RECIPE,
)
SERVE: tuple[Option, ...] = (
    ("concurrency", "", "requests at a time: 1,2,4,8, or 1..8"),
    ("rate", "", "or arrivals a second, Poisson distributed: 0.5,1,2"),
    ("requests", 0, "how many requests of each"),
    ("dataset", "", "a file of prompts: ShareGPT's JSON, or JSON lines with `prompt` (without: ShareGPT's lengths)"),
    ("prompt-tokens", 0, "tokens of every prompt, instead of ShareGPT's lengths"),
    ("output-tokens", 0, "tokens of every answer"),
)
LONG: Option = ("long-tokens", 0, "tokens of the long prompt; without: at least 4 steps of the largest budget")
LOADS: Option = ("loads", "", "what is sent: smoke, serve, hol1, hol2, itl, mixed")
ARENA: Option = ("spark-arena", False, "print the row that llama-benchy would (pp2048, tg128)")

#: command, its options beside COMMON, what `invoke --list` says
COMMANDS: tuple[tuple[str, tuple[Option, ...], str], ...] = (
    (
        "smoke",
        (*URL, REPEAT, ("prompt-tokens", 0, "tokens of a prompt"), ("output-tokens", 0, "tokens of an answer"), ARENA),
        "One stream: prefill and decode rate, time to the first token.",
    ),
    ("serve", (*URL, REPEAT, *SERVE), "Throughput and latencies at some concurrencies, or at a rate of arrivals."),
    (
        "ab",
        (*ARMS, REPEAT, LOADS, *SERVE, LONG),
        "Two arms, A B B A, each started fresh; their settings are compared first.",
    ),
    (
        "sweep",
        (
            ("max-num-batched-tokens", "", "the sizes: 256,512,1024,2048,4096"),
            *(RECIPE, REPEAT, LOADS, *SERVE, LONG),
        ),
        "One flag over several values, each started fresh.",
    ),
    (
        "hol",
        (*URL, *ARMS, REPEAT, LONG),
        "Head of line: what a long prompt does to streams that decode, and to short ones behind it.",
    ),
    (
        "itl",
        (*URL, *ARMS, REPEAT, LONG, ("output-tokens", 0, "tokens of the stream")),
        "Gaps over time while long prompts arrive.",
    ),
    (
        "mixed",
        (
            *(*URL, *ARMS, REPEAT, LONG),
            ("concurrency", "", "requests at a time"),
            ("rate", "", "or arrivals a second, Poisson distributed"),
            ("requests", 0, "how many, a fifth of them long (without: 20 long, 80 short)"),
        ),
        "20 long and 80 short prompts in one queue.",
    ),
)


def run(command: str, given: dict[str, Any]) -> int:
    """Do what a bench command asks. Returns the exit code."""
    order = order_of(command, given).checked()
    if bool(given.get("url")) == bool(given["host"]):
        raise Refused(
            "say where: --host NAME, or --url of a server." if "url" in given else "say which host: --host NAME."
        )
    if given.get("url"):
        from sparkwright.app.bench import run_local
        from sparkwright.project.folder import Project

        outcome: tuple[Results | None, int, Path] = run_local.at_url(
            given["url"], given["model"], order, root=Project.here_or_cwd(), quiet=given["json"]
        )
    else:
        from sparkwright.app.connect import reach

        chosen = reach(given["host"])
        from sparkwright.app.bench import run_experiment

        outcome = run_experiment.on_host(chosen, order, json=given["json"], wait=given["wait"])
    results, code, folder = outcome
    return _shown(results, code, folder, given) if results is not None else code


def _shown(results: Results, code: int, folder: Path, given: dict[str, Any]) -> int:
    from sparkwright.bench import arena, results_files, summary
    from sparkwright.html import experiment_page

    written = experiment_page.write(folder, results)
    if given["json"]:
        if given.get("url"):
            say(results_files.to_json(results), end="")
        return code
    say()
    summary.show(results)
    if given.get("spark_arena"):
        say("\n" + arena.table(results))
    say(f"\n{folder / results_files.JSON}, {results_files.CSV}, {written}")
    return code


def order_of(command: str, given: dict[str, Any]) -> Any:
    """The options of a command as the lab takes them."""
    from sparkwright.bench.order import Order

    def numbers(name: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
        text = str(given.get(name) or "")
        try:
            return tuple(number for word in text.split(",") if word.strip() for number in _span(word.strip(), kind))
        except ValueError:
            raise Refused(f"--{name.replace('_', '-')} {text}: numbers, separated by commas.") from None

    plain = ("a", "b", "flag", "recipe", "requests", "prompt_tokens", "output_tokens", "long_tokens", "dataset")
    about = {name: given[name] for name in (*plain, "repeat", "seed", "name", "again") if name in given}
    return Order(
        command,
        **about,
        sizes=numbers("max_num_batched_tokens", int),
        concurrency=numbers("concurrency", int),
        rates=numbers("rate", float),
        loads=tuple(word.strip() for word in str(given.get("loads") or "").split(",") if word.strip()),
    )


def _span(word: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """One number; or 1..16, which doubles: 1, 2, 4, 8, 16."""
    first, dots, last = word.partition("..")
    if not dots:
        return (kind(word),)
    found, end = [kind(first)], kind(last)
    if found[0] <= 0:
        raise ValueError(word)
    while found[-1] * 2 <= end:
        found.append(found[-1] * 2)
    return (*found, *((end,) if found[-1] < end else ()))


def _command(name: str, options: tuple[Option, ...], doc: str) -> Task[Any]:
    """An Invoke task with these options; Invoke reads names and defaults off the signature."""

    def body(context: object, **given: Any) -> int:
        return run(name, given)

    command = reporting(body)
    command.__name__, command.__doc__ = name, doc
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    every = (*COMMON, *options)
    flags = [inspect.Parameter(option.replace("-", "_"), kind, default=default) for option, default, _ in every]
    command.__signature__ = inspect.Signature([inspect.Parameter("context", kind), *flags])  # type: ignore[attr-defined]
    return Task(command, name=name, help={option: text for option, _, text in every})


def bench_collection() -> Collection:
    """`invoke bench.serve` and its like."""
    return Collection(*(_command(*row) for row in COMMANDS), *bench_results.TASKS)
