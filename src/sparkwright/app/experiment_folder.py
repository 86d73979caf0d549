"""An experiment's folder on the laptop, results/NAME/, which is updated after every cell (one load on one arm)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkwright.bench import results_file
from sparkwright.bench.experiment import Experiment
from sparkwright.bench.results_file import SCHEMA, Cell, Results
from sparkwright.host.state import write_atomically
from sparkwright.protocol.events import Event
from sparkwright.trust.bounds import parse_json, read_bytes, sanitize
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.shapes import OptionalField, Partial, validate
from sparkwright.version import __version__

RESULTS_FOLDER = "results"
STATE_FILE, MAX_STATE_BYTES = "experiment.json", 1 << 16
#: values from an arm's log that are copied to the results
ARM_STATE_SHAPE = {
    **dict.fromkeys(("chunked_prefill", "prefix_caching"), OptionalField((None, bool), None)),
    "ready_s": OptionalField((None, float), None),
}
#: notes for two arms whose settings show no difference, by verdict
VERDICT_NOTES = {
    "same": "the flag does nothing: the engine logs the same settings for both arms. Not measured.",
    "not shown": "the engine's log shows no difference between the arms, but does not contain every flag that differs",
}
#: maximum length of a setting's two values together, in characters; for longer values only the setting's name is shown
MAX_SHOWN_CHARS = 60


@dataclass
class ExperimentFolder:
    """The folder results/NAME of a project."""

    path: Path
    #: id of the experiment, which stays the same when the experiment is continued
    series: str

    @classmethod
    def open(cls, root: Path, name: str, *, start_over: bool) -> ExperimentFolder:
        """Return the folder of an experiment. An unfinished experiment is continued unless `start_over` is True."""
        folder = root / RESULTS_FOLDER / name
        series, finished = _load_state(folder / STATE_FILE)
        is_continued = bool(series) and not finished and not start_over
        experiment_folder = cls(folder, series if is_continued else f"{name}-{time.strftime('%Y%m%dT%H%M%S')}")
        previous_results = folder / results_file.JSON_FILE
        if not is_continued and series and previous_results.is_file():  # an earlier experiment's results are kept
            (folder / "before").mkdir(exist_ok=True)
            previous_results.replace(folder / "before" / f"{series}.json")
        experiment_folder.save_progress(finished=False)
        return experiment_folder

    def save_progress(self, *, finished: bool) -> None:
        """Save whether the experiment is finished."""
        content = json.dumps({"series": self.series, "finished": finished}, indent=1) + "\n"
        write_atomically(self.path / STATE_FILE, content.encode())


def _load_state(path: Path) -> tuple[str, bool]:
    """Return an experiment's series (empty if its file can't be read), and whether the experiment is finished."""
    try:
        document = parse_json(read_bytes(path, MAX_STATE_BYTES))
    except (OSError, ValueError):
        return "", False
    state = Partial({"series": str, "finished": bool}).valid_part(document) or {}
    series = state.get("series", "")
    return series if PATH_COMPONENT.fullmatch(series) else "", state.get("finished", False)


@dataclass
class ResultsCollector:
    """An event subscriber that writes the results file of an experiment, starting with the first cell."""

    folder: ExperimentFolder
    experiment: Experiment
    host: str
    #: `host` or `laptop`
    measured_from: str
    arms: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sandbox: bool = False
    #: the cluster's head, which reports the reason for a failed arm; empty for a single host
    head_name: str = ""
    #: hosts whose previous server is running again
    restored_hosts: set[str] = field(default_factory=set)

    def on(self, event: Event) -> None:
        if event["event"] == "run_started":
            self.sandbox = self.sandbox or bool(event.get("sandbox"))
        if event["event"] == "task_finished":
            handler = getattr(self, f"_on_{event['module']}", None)
            if handler is not None:
                try:
                    handler(event)
                except (LookupError, TypeError, ValueError, AttributeError):
                    self.notes.append(f"the host's report of {event['module']} can't be used")

    def close(self) -> None:
        if self.has_results:
            self.write()

    def add_cell(self, cell: dict[str, Any]) -> None:
        """Add a cell and write the results. An invalid cell is left out, with a note."""
        cell = sanitize(cell)  # its strings may come from a server
        try:
            key = Cell.model_validate(cell).key
        except ValidationError as error:
            field_path = ".".join(str(part) for part in error.errors()[0]["loc"])
            self.notes.append(f"a reported cell can't be used: {field_path}: {error.errors()[0]['msg'].lower()}")
            return
        self.cells[key] = cell
        self.write()

    @property
    def has_results(self) -> bool:
        """False if the run ended before its first measurement, and without an outcome of an arm or of the comparison."""
        has_outcome = any(arm.get("refused") or arm.get("failed") for arm in self.arms.values())
        return bool(self.cells) or has_outcome or bool(set(self.notes) & {*VERDICT_NOTES.values()})

    @property
    def is_complete(self) -> bool:
        """True if every cell has been measured, except in refused arms."""
        return not any(self._missing_cells("refused"))

    @property
    def has_cells_left(self) -> bool:
        """True if an arm that was neither refused nor failed has an unmeasured cell."""
        return any(self._missing_cells("refused", "failed"))

    def _missing_cells(self, *excluded_outcomes: str) -> Iterator[str]:
        """Yield the keys of the unmeasured cells, except in arms with one of these outcomes."""
        measured_keys = {key for key, cell in self.cells.items() if cell["verdict"] == "measured"}
        excluded_arms = {name for name, arm in self.arms.items() if any(map(arm.get, excluded_outcomes))}
        return (
            key for key in self.experiment.keys if key not in measured_keys and key.split(".")[0] not in excluded_arms
        )

    @property
    def has_failures(self) -> bool:
        """True if an arm was started but could not be measured."""
        return any(arm.get("failed") for arm in self.arms.values())

    def results(self) -> Results:
        """Return the current results, with the cells in the order of the experiment."""
        position_by_key = {key: n for n, key in enumerate(self.experiment.keys)}
        results_data = {
            "schema": SCHEMA,
            "name": self.experiment.name,
            "experiment": self.experiment.command,
            "series": self.folder.series,
            "host": self.host,
            "measured_from": self.measured_from,
            "sandbox": self.sandbox,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "tool": f"sparkwright {__version__}",
            "arms": sanitize(list(self.arms.values())),
            "cells": sorted(
                self.cells.values(), key=lambda cell: position_by_key.get(cell["key"], len(position_by_key))
            ),
            "notes": sanitize(list(dict.fromkeys([*self.experiment.notes, *self.notes]))),
        }
        return Results.model_validate(results_data)

    def write(self) -> None:
        """Write results.json and results.csv."""
        results_file.write_results(self.folder.path, self.results())

    def _on_bench(self, event: Event) -> None:
        if cell := (event.get("data") or {}).get("cell"):
            self.add_cell(cell)

    def _on_bench_failed(self, event: Event) -> None:
        if event["status"] == "ok" and (not self.head_name or event["host"] == self.head_name):
            self.arms[event["data"]["arm"]]["failed"] = str(event["data"]["why"])

    def _on_grant_restart_previous(self, event: Event) -> None:
        if event["status"] in ("ok", "changed"):
            self.restored_hosts.add(event["host"])

    def _on_container(self, event: Event) -> None:
        """Add a note if the running server differs from its recipe."""
        drift = [str(item["field"]) for item in (event.get("data") or {}).get("drift") or ()]
        if event.get("register") == "server" and drift:
            message = f"the running server differs from its recipe in {', '.join(drift)}"
            self.notes.append(f"{message}: the flags are from the recipe, the figures from the server")

    def _on_lint(self, event: Event) -> None:
        """Mark an arm as refused if it has an option that the image does not list."""
        arm_index = str(event.get("register", "")).removeprefix("lint_")
        if event["status"] == "ignored" and arm_index.isdigit():
            arm_name = list(self.arms)[int(arm_index)]
            findings = event["data"].get("findings") or ()
            rule = next((finding["rule"] for finding in findings if finding["severity"] == "error"), "lint")
            self.arms[arm_name]["refused"] = {"rule": str(rule), "sentence": event["msg"]}

    def _on_assert_memory_fits(self, event: Event) -> None:
        """Mark an arm as failed if its memory budget does not fit; no server was stopped for it."""
        arm_index = str(event.get("register", "")).removeprefix("fits_")
        if event["status"] in ("failed", "ignored") and arm_index.isdigit():
            arm_name = list(self.arms)[int(arm_index)]
            self.arms[arm_name]["failed"] = " ".join(filter(None, (event["msg"], event.get("fix"))))

    def _on_engine_config(self, event: Event) -> None:
        data = event.get("data") or {}
        arm = data.get("arm") or ("server" if event.get("register") == "config_server" else None)
        if not data.get("state") or arm not in self.arms:
            return
        self.store_arm_state(arm, data)
        if data.get("verdict"):
            self.note_comparison(data)

    def store_arm_state(self, arm: str, data: dict[str, Any]) -> None:
        """Store the settings and the start-up time of an arm, as its engine logged them."""
        state = validate(data["state"], ARM_STATE_SHAPE, "an arm's state")
        self.arms[arm]["effective"] = state
        if state.get("ready_s") is not None:
            self.arms[arm].setdefault("ready_s", []).append(state["ready_s"])

    def note_comparison(self, data: dict[str, Any]) -> None:
        """Add a note on the comparison of two arms' settings."""
        if data["verdict"] in VERDICT_NOTES:
            self.notes.append(VERDICT_NOTES[data["verdict"]])
            return
        arm = data.get("arm") or "b"
        differences = [
            _describe_difference(name, first, second, arm) for name, (first, second) in data["differs"].items()
        ]
        self.notes.append(f"the engine's log shows that the arms differ in: {'; '.join(differences)}")


def _describe_difference(name: str, other_value: str | None, value: str | None, arm: str) -> str:
    """Describe a setting that differs between two arms; leave out long values."""
    if len(f"{other_value}{value}") >= MAX_SHOWN_CHARS:
        return name
    return f"{name} ({value} in arm {arm}, {other_value} in the other)"
