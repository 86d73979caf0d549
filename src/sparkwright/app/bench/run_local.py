"""An experiment at any base URL, measured from this machine. It needs no host or container, and starts nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from sparkwright.app.bench.experiment_folder import Collector, Place
from sparkwright.bench import results_file
from sparkwright.bench.experiment import Experiment, turns
from sparkwright.bench.order import Order, Room, planned
from sparkwright.bench.play import verdict
from sparkwright.bench.results_file import Results
from sparkwright.console.out import say
from sparkwright.engines import engine, openai_api
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.measure import http_probe, lab

SERVER = "server"
#: environment variable with the key of the server at a URL, for any engine
KEY = engine.of(engine.USUAL).http.key_variable


def at_url(url: str, model: str, order: Order, *, root: Path, quiet: bool = False) -> tuple[Results, int, Path]:
    """Run an experiment at a base URL.

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

    Raises Refused for an invalid URL, and for one with more than an address, as the results contain it.
    """
    try:
        at = urlsplit(url)
        well = at.scheme in ("http", "https") and bool(at.hostname) and at.port != 0
    except ValueError:
        well = False
    if not well:
        raise Refused("--url is no base_url.", fix="As http://127.0.0.1:8000, without /v1.")
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
