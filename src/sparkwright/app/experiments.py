"""The `bench.*` commands: run an experiment on a host or against a URL, and print its results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkwright.app import experiment_plans
from sparkwright.app.connect import connect_hosts
from sparkwright.app.experiment_folder import RESULTS_FOLDER, ExperimentFolder, ResultsCollector
from sparkwright.app.plans import clusters
from sparkwright.bench import axis, results_file, summary, vllm_results
from sparkwright.bench import compare as result_comparison
from sparkwright.bench.bench_options import BenchOptions, LoadLimits, plan_loads
from sparkwright.bench.experiment import Experiment, build_turns
from sparkwright.bench.play import describe_load
from sparkwright.bench.results_file import Results
from sparkwright.console import formatters, grid
from sparkwright.console.command_output import print_json_line, print_text
from sparkwright.engines import engine, openai_api
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.html import experiment_page
from sparkwright.measure import http_probe, lab
from sparkwright.measure.http_probe import Target
from sparkwright.project.folder import Project
from sparkwright.trust.names import check_file_name
from sparkwright.visible import one_line, parse_list

#: name of the only arm in an experiment that measures a running server
SERVER_ARM = "server"
#: environment variable with the API key of the server at --url; the same for all engines
KEY_VARIABLE = engine.get_engine(engine.DEFAULT_ENGINE).http.key_variable

#: interval between two lines of a measurement's progress
PROGRESS_INTERVAL_S = 15.0
EXPERIMENT_COLUMNS = grid.columns(("NAME", 0), ("KIND", 0), ("HOST", 1), ("CELLS", 2), ("TIME", 0))


def run(command: str, arguments: dict[str, Any]) -> int:
    """Run a bench command and return its exit code."""
    options = build_bench_options(command, arguments).validate()
    if bool(arguments.get("url")) == bool(arguments["host"]):
        raise Refused(f"pass {'either --host NAME or --url URL' if 'url' in arguments else '--host NAME'}.")
    if arguments.get("url"):
        outcome = run_at_url(
            arguments["url"], arguments["model"], options, root=Project.here_or_cwd(), quiet=arguments["json"]
        )
        return _print_results(*outcome, arguments)
    selection = connect_hosts(arguments["host"])
    json, wait = arguments["json"], arguments["wait"]
    if options.has_arms and clusters.find_cluster(selection):
        clusters.refuse_partial_or_mixed(selection)
        results, code, folder = experiment_plans.run_on_cluster(
            selection, options, lambda: connect_hosts(arguments["host"]), json=json, wait=wait
        )
    else:
        selection = clusters.exclude_workers(selection, f"bench.{command}")
        results, code, folder = experiment_plans.run_on_host(selection, options, json=json, wait=wait)
    return _print_results(results, code, folder, arguments) if results is not None else code


def _print_results(results: Results, code: int, folder: Path, arguments: dict[str, Any]) -> int:
    page_name = experiment_page.write_page(folder, results)
    if arguments["json"]:
        if arguments.get("url"):
            print_text(results_file.to_json(results), end="")
        return code
    print_text()
    summary.print_results(results)
    if arguments.get("spark_arena"):
        print_text(
            "\n" + (summary.render_markdown(results) or "no table: no measurement of a single stream has a result")
        )
    print_text(f"\n{folder / results_file.JSON_FILE}, {results_file.CSV_FILE}, {page_name}")
    return code


def build_bench_options(command: str, arguments: dict[str, Any]) -> BenchOptions:
    """Build the options of a bench command from its arguments. Raises Refused for invalid numbers."""

    def parse_numbers(name: str, convert: Callable[[str], Any]) -> tuple[Any, ...]:
        text = str(arguments.get(name) or "")
        try:
            return tuple(number for word in parse_list(text) for number in _parse_range(word, convert))
        except ValueError:
            raise Refused(
                f"--{name.replace('_', '-')} must be numbers separated by commas, or a rising range, got '{text}'.",
                fix="For example 1,2,4 or 1..8.",
            ) from None

    copied_option_names = (
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
    copied_options = {
        name: arguments[name] for name in (*copied_option_names, "repeat", "seed", "name", "again") if name in arguments
    }
    names, texts = (_option_values(arguments.get(name)) for name in ("flag", "values"))
    if texts or command == "sweep":
        copied_options["flag"] = ""
    return BenchOptions(
        command,
        **copied_options,
        axes=axis.parse_axes(names, texts) if texts or command == "sweep" else (),
        max_num_batched_tokens=parse_numbers("max_num_batched_tokens", int),
        concurrency=parse_numbers("concurrency", int),
        rates=parse_numbers("rate", float),
        temperatures=parse_numbers("temperature", float),
        loads=tuple(parse_list(str(arguments.get("loads") or ""))),
    )


def _option_values(value: Any) -> list[str]:
    """Return the values of an option that may be repeated."""
    texts = value if isinstance(value, list) else [value]
    return [str(text) for text in texts if text]


def _parse_range(word: str, convert: Callable[[str], Any]) -> tuple[Any, ...]:
    """Parse a number, or a range whose numbers double: 1..16 is 1, 2, 4, 8, 16."""
    first, range_dots, last = word.partition("..")
    if not range_dots:
        return (convert(word),)
    numbers, last_number = [convert(first)], convert(last)
    if not 0 < numbers[0] <= last_number:
        raise ValueError(word)
    while numbers[-1] * 2 <= last_number:
        numbers.append(numbers[-1] * 2)
    return (*numbers, *((last_number,) if numbers[-1] < last_number else ()))


def compare(first: str, second: str, *, json: bool) -> None:
    """Print two results side by side. Raises Refused if they have no load in common."""
    results, other_results = _load_results(first), _load_results(second)
    rows = result_comparison.compare_results(results, other_results)
    unmatched = result_comparison.list_unmatched(results, other_results)
    if not rows:
        raise Refused("these results have no load in common.", fix=f"Loads: {', '.join(unmatched)}.")
    if json:
        print_json_line([row.to_json() for row in rows])
        return
    if simulated_names := [side.name for side in (results, other_results) if side.sandbox]:
        print_text(f"{' and '.join(simulated_names)}: the sandbox's simulated figures, not real measurements")
    summary.print_differences(rows, results.name, other_results.name)
    for line in unmatched:
        print_text(f"only in one of the two results: {line}")


def import_results(file: str, name: str, *, json: bool) -> None:
    """Import the output of `vllm bench serve`.

    Args:
        name: name for the results; if empty, the file's name is used.

    Raises:
        Refused: the name is not a valid folder name, or an experiment already has it.
    """
    results = vllm_results.read_results(Path(file))
    if name:
        results = results.model_copy(update={"name": name})
    reason = "starts with a dot" if results.name.startswith(".") else check_file_name(results.name)
    if reason:
        raise Refused(f"the name '{one_line(results.name, max_chars=80)}' {reason}.", fix="Pass another --name.")
    folder = Project.here_or_cwd() / RESULTS_FOLDER / results.name
    if (folder / "experiment.json").exists():
        raise Refused(f"{folder} already contains an experiment.", fix="Pass another --name.")
    _write_results(folder, results)
    note = f"{folder / results_file.JSON_FILE}: `invoke bench.compare {results.name} OTHER` compares it with other results."
    _print_report(results, note, json=json)


def report(name: str, *, json: bool) -> None:
    """Print the tables of an experiment, and rebuild its page and its CSV file.

    Of a file that is not an experiment's results.json, only the tables are printed: its folder may contain other results.
    """
    results, path = _load_results(name), _find_results(name)
    if path.is_file() and path.name != results_file.JSON_FILE:
        note = f"No report was written: {path.name} is not an experiment's {results_file.JSON_FILE}."
        return _print_report(results, note, json=json)
    folder = path if path.is_dir() else path.parent
    page_name = _write_results(folder, results)
    return _print_report(results, str(folder / page_name), json=json)


def _print_report(results: Results, note: str, *, json: bool) -> None:
    if json:
        print_text(results_file.to_json(results), end="")
        return
    summary.print_results(results)
    print_text(f"\n{note}")


def list_experiments(*, json: bool) -> None:
    """List this project's experiments: name, command, host, number of cells and date."""
    paths = sorted((Project.here_or_cwd() / RESULTS_FOLDER).glob(f"*/{results_file.JSON_FILE}"))
    if not paths and not json:
        print_text("no experiments with results yet.")
    rows = []
    for path in paths:
        results = results_file.read_results(path)
        names = (results.name, results.experiment, results.host)
        if json:
            summary_fields = dict(zip(("name", "experiment", "host"), names, strict=True))
            print_json_line({**summary_fields, "cells": len(results.cells), "created_at": results.created_at})
        else:
            rows.append((*(name or "-" for name in names), str(len(results.cells)), results.created_at))
    grid.print_table(EXPERIMENT_COLUMNS, rows)


def _write_results(folder: Path, results: Results) -> str:
    """Write the result files and the page. Return the name of the page."""
    results_file.write_results(folder, results)
    return experiment_page.write_page(folder, results)


def _find_results(name: str) -> Path:
    """Find results by file, folder, or the name of an experiment."""
    path = Path(name)
    project_path = Project.here_or_cwd() / RESULTS_FOLDER / name
    return path if path.exists() or not project_path.exists() else project_path


def _load_results(name: str) -> Results:
    """Read results from sparkwright or from `vllm bench serve`."""
    path = _find_results(name)
    try:
        return results_file.read_results(path)
    except Refused as refusal:
        if not path.is_file():
            raise
        try:
            return vllm_results.read_results(path)
        except Refused:
            raise refusal from None


def run_at_url(
    url: str, model: str, options: BenchOptions, *, root: Path, quiet: bool = False
) -> tuple[Results, int, Path]:
    """Run an experiment against a base URL. Return the results, the exit code and the folder.

    Args:
        model: name of the model on the server; if empty, the first model that the server lists is used.
    """
    if options.has_arms:
        raise Refused("arms are started on a host: pass --host NAME instead of --url.")
    url, key = _check_base_url(url), _read_key()
    http, model_name, context_length = _query_served_model(url, model, key)
    loads = plan_loads(options, LoadLimits(context=context_length), Path.cwd())
    planned_turns = build_turns([SERVER_ARM] * options.repeat, loads.loads, {SERVER_ARM: [url, model_name]})
    folder = ExperimentFolder.open(
        root, options.name or f"{options.command}-{urlsplit(url).netloc.replace(':', '-')}", start_over=options.again
    )
    experiment = Experiment(options.command, folder.path.name, (), planned_turns, loads.notes)
    arm = {"name": SERVER_ARM, "title": f"{model_name} at {url}"}
    collector = ResultsCollector(folder, experiment, urlsplit(url).netloc, "laptop", {SERVER_ARM: arm})
    collector.cells = _load_finished_cells(folder, experiment)
    target = Target(http, url, model_name, key, timeout_s=600)
    for cell in [cell for turn in planned_turns for cell in turn.cells if cell.key not in collector.cells]:
        _print_progress(f"measuring: {describe_load(cell)}", quiet)
        cell_fields = {
            "key": cell.key,
            "arm": SERVER_ARM,
            "repetition": cell.repetition,
            "load": cell.load.result_fields,
        }
        measured_cell = {**cell_fields, **lab.measure_load(target, cell.load, report_progress=_progress_printer(quiet))}
        _print_progress(f"  {lab.describe_cell(measured_cell)}", quiet)
        collector.add_cell(measured_cell)
    collector.write()
    folder.save_progress(finished=collector.is_complete)
    return collector.results(), int(Exit.OK if collector.is_complete else Exit.INCONCLUSIVE), folder.path


def _check_base_url(url: str) -> str:
    """Return the URL without /v1.

    Raises Refused for an invalid URL, or one with a user, a query or a fragment, because the results contain the URL.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Refused("--url is not a base URL.", fix="For example http://127.0.0.1:8000.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Refused(
            "--url may contain only an address, because the results contain it.", fix=f"Set {KEY_VARIABLE} for a key."
        )
    return url.rstrip("/").removesuffix("/v1")


def _read_key() -> str:
    """Return the server's key, empty if it is not set. Raises Refused for a key that can't be sent in a header."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise Refused(f"{KEY_VARIABLE} contains characters that are invalid in an HTTP header.")
    return key


def _query_served_model(url: str, model: str, key: str) -> tuple[Http, str, int | None]:
    """Return the engine's HTTP interface, the served model name and its context length in tokens."""
    path = engine.get_engine(engine.DEFAULT_ENGINE).http.models_path
    answer = http_probe.send_request(url, path, api_key=key)
    if answer.status != 200:
        fix = f"Set {KEY_VARIABLE} to the server's key." if answer.status == 401 else ""
        raise Failed(f"{url}{path} answers {answer.status or answer.error}.", fix=fix)
    rows = answer.json()
    data = rows.get("data") if isinstance(rows, dict) else None
    ids = [row.get("id") for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    names = [name for name in ids if isinstance(name, str)]
    if not names or (model and model not in names):
        raise Refused(f"{url} serves {', '.join(names) or 'no model'}.", fix="Pass --model NAME.")
    model_name = model or names[0]
    http = engine.detect_from_models(rows).http
    return http, model_name, openai_api.parse_models(http, rows).get(model_name)


def _load_finished_cells(folder: ExperimentFolder, experiment: Experiment) -> dict[str, dict[str, object]]:
    """Return the measured cells of an experiment that is being continued, by key."""
    try:
        previous_results = results_file.read_results(folder.path)
    except Refused:
        return {}
    keys = set(experiment.keys)
    return {
        cell.key: cell.model_dump(mode="json")
        for cell in previous_results.cells
        if previous_results.series == folder.series and cell.key in keys and cell.verdict == "measured"
    }


def _progress_printer(quiet: bool) -> lab.ProgressReport:
    """Return a function that prints a measurement's progress every PROGRESS_INTERVAL_S."""
    last_print_s = time.monotonic()

    def report(done: int, total: int, text: str) -> None:
        nonlocal last_print_s
        if time.monotonic() - last_print_s >= PROGRESS_INTERVAL_S:
            last_print_s = time.monotonic()
            _print_progress(f"  {formatters.format_progress(done, total, '')} {text}" if total else f"  {text}", quiet)

    return report


def _print_progress(text: str, quiet: bool) -> None:
    if not quiet:
        print_text(text, file=sys.stderr)
