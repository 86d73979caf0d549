"""Results files: their models, from which schemas/results.json is generated, and functions that read and write them.

The names of the fields include their units.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically
from sparkwright.project.documents.validation import schema_field
from sparkwright.trust import bounds
from sparkwright.units import MIB
from sparkwright.visible import escape_csv_cell, one_line

SCHEMA = 1
#: the group of streams that tables show, by kind of load; for other kinds, all streams
SHOWN_GROUPS = {"hol1": "decoding", "itl": "decoding", "hol2": "short", "smoke": "stream", "depth": "stream"}
#: limits on a results file, enough for ten thousand cells
MAX_RESULTS_BYTES, MAX_JSON_VALUES = 64 * MIB, 4_000_000
#: maximum length of the path to an invalid value in a message
MAX_LOCATION_CHARS = 120
JSON_FILE, CSV_FILE, PAGE_FILE = "results.json", "results.csv", "report.html"

#: fields of the load that are columns of the CSV
LOAD_COLUMNS = (
    "kind",
    "concurrency",
    "rate",
    "requests",
    "prompt_tokens",
    "output_tokens",
    "long_tokens",
    "temperature",
)


class StrictModel(BaseModel):
    """Base class of the models. It refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(StrictModel):
    """Figures of many streams. ITL is the gap between chunks, pooled over all streams. A stall is a gap above 5 x the median."""

    streams: int = schema_field("number of successful streams")
    output_tokens: int = schema_field("tokens generated")
    prompt_tokens: int = schema_field("tokens of the prompts, as counted by the server", 0)
    wall_s: float = schema_field("from the first request to the last token")
    output_tok_per_s: float = schema_field("all tokens divided by wall_s")
    stream_tok_per_s: float | None = schema_field("median decode rate of one stream, after its first chunk", None)
    largest_gap_ms: float | None = schema_field("the largest gap between two chunks of a stream", None)
    stalls: int | None = schema_field("number of stalls", None)
    stall_ms: float | None = schema_field("total duration of the stalls", None)
    approximate: bool = schema_field("chunks were counted, because the server reported no usage", False)
    ttft_count: int | None = schema_field("streams with a first token", None)
    ttft_mean_ms: float | None = schema_field("time to the first token", None)
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    itl_count: int | None = schema_field("number of gaps", None)
    itl_mean_ms: float | None = schema_field("inter-token latency: gaps between chunks", None)
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = schema_field("null if the client's own lag made it unreliable", None)
    itl_max_ms: float | None = None
    tpot_count: int | None = schema_field("streams with a decode rate", None)
    tpot_mean_ms: float | None = schema_field("time per output token of a stream after its first chunk", None)
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    tpot_max_ms: float | None = None
    e2el_count: int | None = schema_field("number of streams", None)
    e2el_mean_ms: float | None = schema_field("end-to-end latency: from a request to its last token", None)
    e2el_p50_ms: float | None = None
    e2el_p99_ms: float | None = None
    e2el_max_ms: float | None = None


class Series(StrictModel):
    """The individual gaps of a stream."""

    at_s: list[float] = schema_field("end of each gap, since the first request")
    gap_ms: list[float] = schema_field("length of each gap")
    long_at_s: list[float] = schema_field("arrivals of long prompts, since the first request", default_factory=list)

    @model_validator(mode="after")
    def _check_lengths(self) -> Series:
        if len(self.at_s) != len(self.gap_ms):
            raise ValueError("at_s and gap_ms must have the same number of values")
        return self


class Cell(StrictModel):
    """A measurement of one load on one arm."""

    key: str = schema_field("name of the cell in the experiment")
    arm: str = schema_field("name of the arm that served")
    repetition: int = schema_field("number of this repetition of the load on the arm, from 1", 1)
    load: dict[str, Any] = schema_field("the kind of load and its parameters")
    verdict: Literal["measured", "inconclusive", "failed", "imported"] = schema_field("whether the figures can be used")
    doubts: list[str] = schema_field("reasons why the cell is inconclusive", default_factory=list)
    notes: list[str] = schema_field("further remarks", default_factory=list)
    started_at_s: float = schema_field("seconds since the epoch", 0)
    seconds: float = schema_field("duration of the measurement", 0)
    requests: int = schema_field("number of requests", 0)
    failed_requests: int = schema_field("number of requests that were refused or interrupted", 0)
    figures: Figures = schema_field("figures of all streams")
    groups: dict[str, Figures] = schema_field("figures by group of streams: long, short ...", default_factory=dict)
    derived: dict[str, float] = schema_field("figures that are specific to this kind of load", default_factory=dict)
    series: list[Series] = schema_field("individual gaps of some decoding streams", default_factory=list)
    client_lag_p99_ms: float | None = schema_field("how late the client itself woke up", None)
    client_lag_max_ms: float | None = schema_field("maximum of the client's lag", None)
    prefix_hit_share: float | None = schema_field(
        "share of prompt tokens from the prefix cache, by the server's counters", None
    )
    preemptions: float | None = schema_field("number of requests that the engine preempted", None)
    gpu: dict[str, float | None] = schema_field(
        "clock, power and temperature during the measurement", default_factory=dict
    )

    @property
    def kind(self) -> str:
        return str(self.load.get("kind", ""))


class Refusal(StrictModel):
    """The reason why an arm was not started."""

    rule: str = schema_field("name of the rule, for `invoke explain RULE`")
    sentence: str


class Arm(StrictModel):
    """A configuration that was measured."""

    name: str = schema_field("name of the arm in cells")
    title: str = schema_field("description for people", "")
    recipe: str = schema_field("recipes/NAME.yml", "")
    changes: dict[str, Any] = schema_field(
        "flags that differ from the recipe's; null if the flag is removed", default_factory=dict
    )
    at: dict[str, Any] = schema_field("in a sweep, the value of each swept flag", default_factory=dict)
    image: str = schema_field("REPOSITORY:TAG@DIGEST", "")
    model_id: str = ""
    commit: str = schema_field("the model's revision", "")
    flags: dict[str, Any] = schema_field("flags with which the engine was started", default_factory=dict)
    max_num_batched_tokens: int | None = schema_field(
        "token budget of a step that results from the flags and the engine's defaults", None
    )
    effective: dict[str, Any] | None = schema_field("settings from the engine's log; null if it was not read", None)
    refused: Refusal | None = schema_field("predicted reason why the engine would not start; it was not tried", None)
    failed: str = schema_field("reason why the arm could not be measured", "")
    ready_s: list[float] = schema_field("duration of each start", default_factory=list)


class Results(StrictModel):
    """A results file."""

    schema_version: int = schema_field("version of the format; readers refuse a newer one", SCHEMA, alias="schema")
    kind: Literal["sparkwright bench"] = "sparkwright bench"
    name: str = schema_field("name of the experiment")
    experiment: str = schema_field("smoke, serve, ab, sweep, hol, itl, mixed, context or imported")
    series: str = schema_field("run of the experiment; within a series no cell is measured twice", "")
    host: str = schema_field("host on which the server ran", "")
    measured_from: Literal["host", "laptop", "import"] = schema_field("where the client ran", "host")
    sandbox: bool = schema_field("the Spark was simulated, and so are the figures", False)
    created_at: str = schema_field("ISO 8601", "")
    tool: str = schema_field("program that measured, with its version", "")
    arms: list[Arm] = Field(default_factory=list)
    cells: list[Cell] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def arm(self, name: str) -> Arm:
        """Return the arm with this name, or an empty one if there is none."""
        return next((arm for arm in self.arms if arm.name == name), Arm.model_validate({"name": name}))

    @property
    def measured_arms(self) -> list[str]:
        """The names of the measured arms, in order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))


@dataclass(frozen=True)
class Row:
    """All repetitions of one load on one arm."""

    arm: str
    load: dict[str, Any]
    cells: tuple[Cell, ...]

    def values(self, name: str) -> list[float]:
        """Return a figure of each cell that has it, from the group that tables show or from the derived figures."""
        figures = (
            getattr(shown_figures(cell), name) if name in Figures.model_fields else cell.derived.get(name)
            for cell in self.cells
        )
        return [float(value) for value in figures if value is not None]

    def figure(self, name: str) -> float | None:
        """Return the median of the repetitions, but the maximum of the largest gaps, which a median would hide."""
        values = self.values(name)
        aggregate = max if name == "largest_gap_ms" else statistics.median
        return aggregate(values) if values else None

    @property
    def description(self) -> str:
        return describe_load(self.load)


def build_rows(results: Results) -> list[Row]:
    """Return the rows without failed cells, ordered by load and then by arm."""
    cells_by_load: dict[str, dict[str, list[Cell]]] = {}
    for cell in results.cells:
        if cell.verdict != "failed":
            cells_by_load.setdefault(load_key(cell.load), {}).setdefault(cell.arm, []).append(cell)
    return [Row(arm, cells[0].load, tuple(cells)) for arms in cells_by_load.values() for arm, cells in arms.items()]


def load_key(load: dict[str, Any]) -> str:
    """Return a key that is the same for all cells with this load."""
    return repr(sorted((name, value) for name, value in load.items() if name != "prompts" and value))


def describe_load(load: dict[str, Any]) -> str:
    """Describe a load in a few words."""
    rate, streams, long_tokens = load.get("rate"), load.get("concurrency"), load.get("long_tokens")
    arrivals = f"{rate:g} req/s" if rate else f"c={streams}" if streams else ""
    descriptions = {
        "smoke": f"one stream, pp{load.get('prompt_tokens')} tg{load.get('output_tokens')}",
        "serve": f"serve {arrivals}",
        "hol1": f"H1: {load.get('streams')} decoding, long {long_tokens}",
        "hol2": f"H2: long {long_tokens}, {load.get('shorts')} short behind",
        "itl": f"ITL: {load.get('longs')} x long {long_tokens}",
        "depth": f"depth {load.get('prompt_tokens')} x {streams}",
        "mixed": f"mixed {load.get('longs')} long + {load.get('shorts')} short, {arrivals}",
    }
    temperature = load.get("temperature")
    suffix = f", temperature {temperature:g}" if temperature else ""
    return descriptions.get(str(load.get("kind")), str(load.get("kind"))) + suffix


def shown_figures(cell: Cell) -> Figures:
    """Return the figures of a cell that tables show."""
    return cell.groups.get(SHOWN_GROUPS.get(cell.kind, ""), cell.figures)


def write_results(folder: Path, results: Results) -> None:
    """Write results.json and results.csv, replacing each atomically."""
    write_atomically(folder / JSON_FILE, to_json(results).encode(), mode=0o644)
    write_atomically(folder / CSV_FILE, to_csv(results).encode(), mode=0o644)


def to_json(results: Results) -> str:
    return json.dumps(results.model_dump(by_alias=True, mode="json"), indent=1, ensure_ascii=False) + "\n"


def read_results(path: Path) -> Results:
    """Read a results file or the one in a folder. Raises Refused if it is invalid or has a newer schema."""
    path = path / JSON_FILE if path.is_dir() else path
    try:
        data = bounds.sanitize(
            bounds.parse_json(
                bounds.read_bytes(path, MAX_RESULTS_BYTES), max_bytes=MAX_RESULTS_BYTES, max_values=MAX_JSON_VALUES
            )
        )
    except FileNotFoundError:
        raise Refused(f"no file {path}.", fix="`invoke bench.list` lists the experiments.") from None
    except bounds.LimitExceeded as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} is not JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("kind") != "sparkwright bench":
        raise Refused(
            f"{path} is not a results file of this tool.",
            fix="`invoke bench.import FILE` imports results of `vllm bench serve`.",
        )
    schema = data.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise Refused(
            f"{path} has schema {one_line(str(schema), max_chars=40)}; this sparkwright reads schema {SCHEMA}.",
            fix="Upgrade sparkwright if the file is from a newer release.",
        )
    try:
        return Results.model_validate(data)
    except ValidationError as error:
        first_error = error.errors()[0]
        location = one_line(".".join(str(part) for part in first_error["loc"]), max_chars=MAX_LOCATION_CHARS)
        raise Refused(f"{path}: {location}: {first_error['msg'].lower()}.") from None


def to_csv(results: Results) -> str:
    """Return CSV with a row for each cell, and for each group of its streams if there are several."""
    buffer = io.StringIO()
    figure_names = list(Figures.model_fields)
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ["experiment", "host", "arm", "repetition", *LOAD_COLUMNS, "group", "verdict", *figure_names]
    writer.writerow(columns)
    for row in csv_rows(results):
        values = (row.get(name) for name in columns)
        writer.writerow([escape_csv_cell(value) if isinstance(value, str) else value for value in values])
    return buffer.getvalue()


def csv_rows(results: Results) -> Iterable[dict[str, Any]]:
    """Yield the rows of the CSV, by column."""
    for cell in results.cells:
        common_values: dict[str, Any] = {"experiment": results.experiment, "host": results.host, "arm": cell.arm}
        common_values |= {"repetition": cell.repetition, "verdict": cell.verdict}
        common_values |= {name: cell.load.get(name) or "" for name in LOAD_COLUMNS}
        groups = cell.groups if len(cell.groups) > 1 else {}
        for group, figures in {"": cell.figures, **groups}.items():
            yield {**common_values, "group": group, **figures.model_dump()}
