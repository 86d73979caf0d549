"""Results on disk, their schema, and their CSV and Markdown."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

from sparkwright.app import json_output
from sparkwright.bench import results_file, summary
from sparkwright.bench.results_file import Results
from sparkwright.errors import Refused
from tests.bench import made


def test_written_results_are_read_back_and_match_the_schema(tmp_path: Path) -> None:
    results_file.write_results(tmp_path / "x", made.make_ab_results())
    assert results_file.read_results(tmp_path / "x") == made.make_ab_results()
    written = json.loads((tmp_path / "x/results.json").read_text())
    jsonschema.validate(written, json_output.schema("results"))
    assert (written["schema"], written["kind"]) == (1, "sparkwright bench")


def test_names_of_numbers_in_the_schema_end_with_a_unit() -> None:
    units = ("_ms", "_s", "seconds", "tok_per_s", "_tokens", "_count", "streams", "stalls", "share", "requests",
        "repetition", "schema", "preemptions")  # fmt: skip
    definitions = json_output.schema("results")["$defs"]
    for part in ("Figures", "Cell"):
        for name, schema in definitions[part]["properties"].items():
            types = {schema.get("type"), *(item.get("type") for item in schema.get("anyOf", ()))}
            assert not types & {"number", "integer"} or name.endswith(units), name


def test_csv_has_one_row_per_cell() -> None:
    rows = list(csv.DictReader(io.StringIO(results_file.to_csv(made.make_sweep_results()))))
    cells = [(row["arm"], row["concurrency"], row["itl_p99_ms"]) for row in rows]
    assert cells == [("1024", "8", "256.0"), ("4096", "8", "1024.0")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"kind": "other"}', "not a results file"),
        ('{"kind": "sparkwright bench", "schema": 99}', "has schema 99; this sparkwright reads schema 1"),
        ('{"kind": "sparkwright bench", "schema": "one"}', "has schema one; this sparkwright reads schema 1"),
        ('{"kind": "sparkwright bench", "schema": 1, "name": "x", "experiment": "ab", "cells": [{}]}', "cells.0.key"),
    ],
)
def test_invalid_results_files_are_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(Refused, match=message):
        results_file.read_results(tmp_path / "r.json")


def test_an_unknown_key_is_quoted_in_part(tmp_path: Path) -> None:
    results = json.loads(results_file.to_json(made.make_ab_results()))
    (tmp_path / "r.json").write_text(json.dumps({**results, "k" * 2000: 1}))
    with pytest.raises(Refused, match="kkk") as error:
        results_file.read_results(tmp_path / "r.json")
    assert len(error.value.message) < len(str(tmp_path)) + 200


def test_markdown_has_the_rows_of_llama_benchy() -> None:
    derived = {"prefill_tok_per_s": 4833.2, "prefill_tok_per_s_deviation": 12.0, "decode_tok_per_s": 47.31}
    smoke = made.make_cell("server", {"kind": "smoke", "prompt_tokens": 2048, "output_tokens": 128}, derived=derived)
    arm = {"name": "server", "model_id": "Qwen/Qwen3.5-35B-A3B-FP8"}
    table = summary.render_markdown(made.make_results("smoke", [arm], [smoke])).splitlines()
    assert table[0].startswith("| model | test | t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |")
    assert table[2] == "| Qwen/Qwen3.5-35B-A3B-FP8 | pp2048 | 4833.20 ± 12.00 | 205.00 | 205.00 | 205.00 |"
    assert table[3] == "| Qwen/Qwen3.5-35B-A3B-FP8 | tg128 | 47.31 ± 0.00 | | | |"
    assert summary.render_markdown(made.make_sweep_results()) == ""


def test_experiment_without_cells_is_stored(tmp_path: Path) -> None:
    results_file.write_results(tmp_path, Results.model_validate({"name": "x", "experiment": "ab"}))
    assert results_file.read_results(tmp_path).cells == []


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1+cmd", "@SUM(1)", "\t=1"])
def test_csv_cells_are_never_formulas(name: str) -> None:
    data = made.make_sweep_results().model_dump(by_alias=True)
    data["host"] = data["cells"][0]["arm"] = data["cells"][0]["load"]["kind"] = name
    text = results_file.to_csv(Results.model_validate(data))
    row = next(csv.DictReader(io.StringIO(text, newline="")))
    assert [row[column] for column in ("host", "arm", "kind")] == [f"'{name}"] * 3
    assert float(row["itl_p99_ms"]) > 0
