"""Results on disk: NAME/results.json, results.csv and report.html in the folder of an experiment."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkwright.bench.results_models import SCHEMA, Figures, Results
from sparkwright.errors import Refused
from sparkwright.host.state import write_atomically
from sparkwright.trust import bounds
from sparkwright.units import MIB
from sparkwright.visible import in_cell, one_line

#: bytes of a results file with ten thousand cells
MOST_BYTES, MOST_PARTS = 64 * MIB, 4_000_000
JSON, CSV, PAGE = "results.json", "results.csv", "report.html"

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


def write(folder: Path, results: Results) -> None:
    """Write results.json and results.csv, each replaced in one step."""
    write_atomically(folder / JSON, to_json(results).encode(), mode=0o644)
    write_atomically(folder / CSV, to_csv(results).encode(), mode=0o644)


def to_json(results: Results) -> str:
    return json.dumps(results.model_dump(by_alias=True, mode="json"), indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Results:
    """Read a results file, or the one in a folder. Raises Refused if it is invalid or of a newer schema."""
    path = path / JSON if path.is_dir() else path
    try:
        data = bounds.clean(
            bounds.json_of(bounds.bytes_of(path, MOST_BYTES), most_bytes=MOST_BYTES, most_parts=MOST_PARTS)
        )
    except FileNotFoundError:
        raise Refused(f"no file {path}.", fix="`invoke bench.list` names the experiments there are.") from None
    except bounds.TooMuch as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} is no JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("kind") != "sparkwright bench":
        raise Refused(
            f"{path} is no results file of this tool.",
            fix="`invoke bench.import FILE` takes those of `vllm bench serve`.",
        )
    schema = data.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise Refused(
            f"{path} is of schema {one_line(str(schema), at_most=40)}, this tool reads {SCHEMA}.",
            fix="Take a newer sparkwright.",
        )
    try:
        return Results.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{path}: {place}: {first['msg'].lower()}.") from None


def to_csv(results: Results) -> str:
    """Return a CSV row for each cell, and one for each group of its streams if it has several."""
    out = io.StringIO()
    names = list(Figures.model_fields)
    table = csv.writer(out, lineterminator="\n")
    head = ["experiment", "host", "arm", "repetition", *LOAD_COLUMNS, "group", "verdict", *names]
    table.writerow(head)
    for row in rows(results):
        values = (row.get(name) for name in head)
        table.writerow([in_cell(value) if isinstance(value, str) else value for value in values])
    return out.getvalue()


def rows(results: Results) -> Iterable[dict[str, Any]]:
    """Yield the rows of the CSV, by column."""
    for cell in results.cells:
        about: dict[str, Any] = {"experiment": results.experiment, "host": results.host, "arm": cell.arm}
        about |= {"repetition": cell.repetition, "verdict": cell.verdict}
        about |= {name: cell.load.get(name) or "" for name in LOAD_COLUMNS}
        groups = cell.groups if len(cell.groups) > 1 else {}
        for group, found in {"": cell.figures, **groups}.items():
            yield {**about, "group": group, **found.model_dump()}
