"""Results files: the models, from which schemas/results.json is generated, and the files. Units are in the names."""

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


class Part(BaseModel):
    """A part of a results file, which refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(Part):
    """Figures of many streams. ITL is the gap between chunks, pooled over all streams. A stall is a gap over 5 x the median."""

    streams: int = schema_field("how many streams ended well")
    output_tokens: int = schema_field("tokens generated")
    prompt_tokens: int = schema_field("tokens of their prompts, as the server counted them", 0)
    wall_s: float = schema_field("from the first request to the last token")
    output_tok_per_s: float = schema_field("all tokens over wall_s")
    stream_tok_per_s: float | None = schema_field("median decode rate of one stream, after its first chunk", None)
    largest_gap_ms: float | None = schema_field("the largest gap between two chunks of a stream", None)
    stalls: int | None = schema_field("how many gaps were stalls", None)
    stall_ms: float | None = schema_field("the sum of the stalls", None)
    approximate: bool = schema_field("no usage was told: chunks were counted", False)
    ttft_count: int | None = schema_field("streams with a first token", None)
    ttft_mean_ms: float | None = schema_field("time to the first token", None)
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    itl_count: int | None = schema_field("gaps", None)
    itl_mean_ms: float | None = schema_field("inter-token latency: gaps between chunks", None)
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = schema_field("null where the client itself was too late to tell", None)
    itl_max_ms: float | None = None
    tpot_count: int | None = schema_field("streams with a decode rate", None)
    tpot_mean_ms: float | None = schema_field("time per output token after the first chunk, of each stream", None)
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    tpot_max_ms: float | None = None
    e2el_count: int | None = schema_field("streams", None)
    e2el_mean_ms: float | None = schema_field("end-to-end latency: from a request to its last token", None)
    e2el_p50_ms: float | None = None
    e2el_p99_ms: float | None = None
    e2el_max_ms: float | None = None


class Series(Part):
    """The gaps of one stream one by one."""

    at_s: list[float] = schema_field("when each gap ended, since the first request")
    gap_ms: list[float] = schema_field("how long it was")
    long_at_s: list[float] = schema_field("when long prompts arrived", default_factory=list)

    @model_validator(mode="after")
    def _of_one_length(self) -> Series:
        if len(self.at_s) != len(self.gap_ms):
            raise ValueError("at_s and gap_ms must have as many values")
        return self


class Cell(Part):
    """One load on one arm, once."""

    key: str = schema_field("its name in the experiment")
    arm: str = schema_field("which arm served")
    repetition: int = schema_field("of the same load on the same arm", 1)
    load: dict[str, Any] = schema_field("what was sent: kind and its numbers")
    verdict: Literal["measured", "inconclusive", "failed", "imported"] = schema_field("what it is worth")
    doubts: list[str] = schema_field("why it is inconclusive", default_factory=list)
    notes: list[str] = schema_field("what else is good to know", default_factory=list)
    started_at_s: float = schema_field("seconds since the epoch", 0)
    seconds: float = schema_field("how long it took", 0)
    requests: int = schema_field("requests that were sent", 0)
    failed_requests: int = schema_field("requests that were refused or broke off", 0)
    figures: Figures = schema_field("of all its streams")
    groups: dict[str, Figures] = schema_field("of each kind of its streams: long, short ...", default_factory=dict)
    derived: dict[str, float] = schema_field("what this kind of load is there for", default_factory=dict)
    series: list[Series] = schema_field("gaps one by one, of streams that decode", default_factory=list)
    client_lag_p99_ms: float | None = schema_field("how late the client itself woke", None)
    client_lag_max_ms: float | None = schema_field("the same at its worst", None)
    prefix_hit_share: float | None = schema_field("of the prompts' tokens, from the server's counters", None)
    preemptions: float | None = schema_field("requests that the engine had to put off", None)
    gpu: dict[str, float | None] = schema_field("clock, power, temperature meanwhile", default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.load.get("kind", ""))


class Refusal(Part):
    """The reason that an arm was not started."""

    rule: str = schema_field("`invoke explain RULE` says why")
    sentence: str


class Arm(Part):
    """One way to serve that was measured."""

    name: str = schema_field("as cells name it")
    title: str = schema_field("for people", "")
    recipe: str = schema_field("recipes/NAME.yml", "")
    changes: dict[str, Any] = schema_field("flags that differ from the recipe; null: left out", default_factory=dict)
    at: dict[str, Any] = schema_field("of a sweep: the value of each swept flag", default_factory=dict)
    image: str = schema_field("REPOSITORY:TAG@DIGEST", "")
    model_id: str = ""
    commit: str = schema_field("the model's revision", "")
    flags: dict[str, Any] = schema_field("of vllm serve, as it was started", default_factory=dict)
    max_num_batched_tokens: int | None = schema_field("of a step, as the flags and this engine make it", None)
    effective: dict[str, Any] | None = schema_field("what the engine's own log says; null: not read", None)
    refused: Refusal | None = schema_field("the engine would not start: predicted, not run", None)
    failed: str = schema_field("why it could not be measured although it was tried", "")
    ready_s: list[float] = schema_field("of each start", default_factory=list)


class Results(Part):
    """A results file."""

    schema_version: int = schema_field("of this file; readers refuse a newer one", SCHEMA, alias="schema")
    kind: Literal["sparkwright bench"] = "sparkwright bench"
    name: str = schema_field("of the experiment")
    experiment: str = schema_field("smoke, serve, ab, sweep, hol, itl, mixed, context or imported")
    series: str = schema_field("which run of it; a cell of one series is never measured twice", "")
    host: str = schema_field("where the server ran", "")
    measured_from: Literal["host", "laptop", "import"] = schema_field("where the client ran", "host")
    sandbox: bool = schema_field("a simulated Spark: simulated figures", False)
    created_at: str = schema_field("ISO 8601", "")
    tool: str = schema_field("what measured, with its version", "")
    arms: list[Arm] = Field(default_factory=list)
    cells: list[Cell] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def arm(self, name: str) -> Arm:
        """Return the arm with this name, or an empty one if there is none."""
        return next((arm for arm in self.arms if arm.name == name), Arm.model_validate({"name": name}))

    @property
    def sides(self) -> list[str]:
        """The names of the measured arms, in order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))


#: group of streams that tables show, by kind of load; all streams for other kinds
SHOWN_GROUPS = {"hol1": "decoding", "itl": "decoding", "hol2": "short", "smoke": "stream", "depth": "stream"}


@dataclass(frozen=True)
class Row:
    """All repetitions of one load on one arm."""

    arm: str
    load: dict[str, Any]
    cells: tuple[Cell, ...]

    def values(self, name: str) -> list[float]:
        """Return a figure of each cell that has it, from the group that this load measures or from the derived figures."""
        figures = (
            getattr(shown_figures(cell), name) if name in Figures.model_fields else cell.derived.get(name)
            for cell in self.cells
        )
        return [float(value) for value in figures if value is not None]

    def figure(self, name: str) -> float | None:
        """Return the median of the repetitions, or for the largest gap the worst, which a median would hide."""
        values = self.values(name)
        aggregate = max if name == "largest_gap_ms" else statistics.median
        return aggregate(values) if values else None

    @property
    def words(self) -> str:
        return describe_load(self.load)


def build_rows(results: Results) -> list[Row]:
    """Return the rows without failed cells, ordered by load and then by arm."""
    cells_by_load: dict[str, dict[str, list[Cell]]] = {}
    for cell in results.cells:
        if cell.verdict != "failed":
            cells_by_load.setdefault(load_key(cell.load), {}).setdefault(cell.arm, []).append(cell)
    return [Row(arm, cells[0].load, tuple(cells)) for arms in cells_by_load.values() for arm, cells in arms.items()]


def load_key(load: dict[str, Any]) -> str:
    """Return a key that is equal for cells of the same load."""
    return repr(sorted((name, value) for name, value in load.items() if name != "prompts" and value))


def describe_load(load: dict[str, Any]) -> str:
    """Describe a load in a few words."""
    rate, streams, long_tokens = load.get("rate"), load.get("concurrency"), load.get("long_tokens")
    arrivals = f"{rate:g} req/s" if rate else f"c={streams}" if streams else ""
    descriptions = {
        "smoke": f"one stream, pp{load.get('prompt_tokens')} tg{load.get('output_tokens')}",
        "serve": f"serve {arrivals}",
        "hol1": f"H1: {load.get('streams')} decoding, long {long_tokens}",
        "hol2": f"H2: long {long_tokens}, {load.get('shorts')} shorts behind",
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


#: limits for a results file, enough for ten thousand cells
MAX_BYTES, MAX_PARTS = 64 * MIB, 4_000_000
JSON_FILE, CSV_FILE, PAGE_FILE = "results.json", "results.csv", "report.html"

#: numbers of the load that are columns of the CSV
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
            bounds.parse_json(bounds.read_bytes(path, MAX_BYTES), max_bytes=MAX_BYTES, max_values=MAX_PARTS)
        )
    except FileNotFoundError:
        raise Refused(f"no file {path}.", fix="`invoke bench.list` names the experiments there are.") from None
    except bounds.LimitExceeded as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} is not JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("kind") != "sparkwright bench":
        raise Refused(
            f"{path} is not a results file of this tool.",
            fix="`invoke bench.import FILE` takes those of `vllm bench serve`.",
        )
    schema = data.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise Refused(
            f"{path} is of schema {one_line(str(schema), max_chars=40)}, this tool reads {SCHEMA}.",
            fix="Take a newer sparkwright.",
        )
    try:
        return Results.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{path}: {location}: {first['msg'].lower()}.") from None


def to_csv(results: Results) -> str:
    """Return CSV with a row for each cell, and for each group of its streams if there are several."""
    buffer = io.StringIO()
    names = list(Figures.model_fields)
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ["experiment", "host", "arm", "repetition", *LOAD_COLUMNS, "group", "verdict", *names]
    writer.writerow(columns)
    for row in csv_rows(results):
        values = (row.get(name) for name in columns)
        writer.writerow([escape_csv_cell(value) if isinstance(value, str) else value for value in values])
    return buffer.getvalue()


def csv_rows(results: Results) -> Iterable[dict[str, Any]]:
    """Yield the rows of the CSV, by column."""
    for cell in results.cells:
        common: dict[str, Any] = {"experiment": results.experiment, "host": results.host, "arm": cell.arm}
        common |= {"repetition": cell.repetition, "verdict": cell.verdict}
        common |= {name: cell.load.get(name) or "" for name in LOAD_COLUMNS}
        groups = cell.groups if len(cell.groups) > 1 else {}
        for group, figures in {"": cell.figures, **groups}.items():
            yield {**common, "group": group, **figures.model_dump()}
