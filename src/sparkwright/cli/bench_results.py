"""The commands that read results: compare, import, report, list. They touch no host."""

from __future__ import annotations

from sparkwright.cli.framework.command import command


@command(
    positional=["first", "second"],
    help={
        "first": "results: a file, or the name of an experiment; also what `vllm bench serve` wrote",
        "second": "the results to compare with",
        "json": "the differences as JSON",
    },
)
def compare(first: str, second: str, json: bool = False) -> None:
    """Compare two results, figure by figure.

    Each figure of each load that both have, and their ratio.
    """
    from sparkwright.app.bench import experiments

    experiments.compare(first, second, json=json)


@command(
    name="import",
    positional=["file"],
    help={
        "file": "the JSON that `vllm bench serve --save-result` wrote, or its printed text",
        "name": "name of the results (default: the file's)",
        "json": "the results as they were imported",
    },
)
def take_in(file: str, name: str = "", json: bool = False) -> None:
    """Import results of `vllm bench serve`."""
    from sparkwright.app.bench import experiments

    experiments.take_in(file, name, json=json)


@command(
    positional=["results"],
    help={"results": "a results file, or the name of an experiment", "json": "the results themselves"},
)
def report(results: str, json: bool = False) -> None:
    """Print an experiment's tables, and rebuild its page."""
    from sparkwright.app.bench import experiments

    experiments.report(results, json=json)


@command(name="list", help={"json": "one JSON object an experiment"})
def show_all(json: bool = False) -> None:
    """List the experiments of this project."""
    from sparkwright.app.bench import experiments

    experiments.show_all(json=json)


TASKS = [compare, take_in, report, show_all]
