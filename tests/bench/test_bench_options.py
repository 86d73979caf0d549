"""The loads of a command with their sizes, and options that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.bench.axis import Axis
from sparkwright.bench.bench_options import BenchOptions, LoadLimits, plan_loads
from sparkwright.bench.experiment import Experiment, build_turns, order_arms
from sparkwright.errors import Refused
from sparkwright.measure.workload import Load

HERE = Path()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions("ab"), "nothing to compare: pass"),
        (BenchOptions("ab", a="one"), "-a and -b must be given together"),
        (BenchOptions("ab", a="one", b="two", flag="x"), "choose one"),
        (BenchOptions("sweep"), "nothing to sweep: pass"),
        (BenchOptions("sweep", max_num_batched_tokens=(1,), axes=(Axis("x", (1,)),)), "choose one"),
        (BenchOptions("ab", axes=(Axis("x", (1, 2, 3)),)), "one flag with two values"),
        (BenchOptions("ab", a="one", b="two", axes=(Axis("x", (1, 2)),)), "choose one"),
        (BenchOptions("serve", rates=(1.0,), concurrency=(1,)), "--rate and --concurrency can't be combined"),
        (BenchOptions("mixed", rates=(1.0, 2.0)), "one --concurrency or one --rate"),
        (BenchOptions("mixed", concurrency=(1, 8)), "one --concurrency or one --rate"),
        (
            BenchOptions("ab", recipe="r", flag="chunked-prefill", loads=("mixed",), concurrency=(1, 8)),
            "one --concurrency or one --rate",
        ),
        (BenchOptions("hol", recipe="one"), "no flag was given"),
        (BenchOptions("ab", a="one", b="two", recipe="three"), "no flag was given"),
        (BenchOptions("serve", dataset="x.json", prompt_tokens=100), "--dataset and --prompt-tokens can't be combined"),
        (BenchOptions("ab", flag="x", loads=("serv",)), "unknown load 'serv'"),
        (BenchOptions("serve", temperatures=(2.5,)), "between 0 and 2"),
        (BenchOptions("serve", concurrency=(0,)), "above 0"),
        (BenchOptions("serve", name="../up"), "not a valid folder name"),
    ],
)
def test_contradictory_options_are_refused(options: BenchOptions, message: str) -> None:
    with pytest.raises(Refused, match=message):
        options.validate()


@pytest.mark.parametrize(
    ("limits", "tokens", "note"),
    [
        (LoadLimits(2048, 131072), 8192, None),
        (LoadLimits(512, 131072), 4096, None),
        (LoadLimits(None, None), 4096, None),
        (LoadLimits(2048, 8192), 8192 - 256 - 256, "less than 4 steps"),
        (LoadLimits(8192, 8192), 8192 - 256 - 256, "chunked prefill can't make a difference"),
    ],
)
def test_long_prompt_spans_four_steps_within_the_context(limits: LoadLimits, tokens: int, note: str | None) -> None:
    planned = plan_loads(BenchOptions("hol"), limits, HERE)
    assert {load.long_tokens for load in planned.loads} == {tokens}
    assert bool(planned.notes) == bool(note)
    assert note is None or note in planned.notes[0]


def test_too_long_prompt_is_refused_with_the_maximum() -> None:
    with pytest.raises(Refused) as error:
        plan_loads(BenchOptions("hol", long_tokens=9000), LoadLimits(2048, 8192), HERE)
    assert error.value.fix == "Use --long-tokens 7680 or less."


def test_serve_plans_a_curve_over_concurrencies_or_rates() -> None:
    curve = plan_loads(BenchOptions("serve"), LoadLimits(), HERE).loads
    assert [load.concurrency for load in curve] == [1, 2, 4, 8]
    rates = plan_loads(BenchOptions("serve", rates=(0.5, 2.0), requests=10), LoadLimits(), HERE).loads
    assert [(load.rate, load.requests, load.concurrency) for load in rates] == [(0.5, 10, 0), (2.0, 10, 0)]


def test_published_sharegpt_json_is_read(tmp_path: Path) -> None:
    def make_row(first: str, prompt: str, second: str, answer: str) -> dict[str, object]:
        return {"id": "x", "conversations": [{"from": first, "value": prompt}, {"from": second, "value": answer}]}

    valid = make_row("human", "q" * 400, "gpt", "a" * 800)
    ignored = [make_row("gpt", "q" * 400, "human", "a" * 800), make_row("human", "q", "gpt", "a" * 800)]
    path = tmp_path / "ShareGPT_V3.json"
    path.write_text(json.dumps([valid, *ignored, {"conversations": []}]))
    (load,) = plan_loads(BenchOptions("serve", concurrency=(2,), dataset=path.name), LoadLimits(), tmp_path).loads
    assert load.prompts == (("q" * 400, 200),)


def test_json_lines_are_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 7}\n\n{"prompt": "two"}\n')
    (load,) = plan_loads(BenchOptions("serve", concurrency=(1,), dataset=str(path)), LoadLimits(), HERE).loads
    assert sorted(load.prompts) == [("one", 7), ("two", 128)]
    path.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(Refused) as error:
        plan_loads(BenchOptions("serve", dataset=str(path)), LoadLimits(), HERE)
    assert error.value.where.endswith("mine.jsonl:2")


def test_arms_run_in_mirrored_order() -> None:
    assert order_arms(["a", "b"], 1, pair=True) == ["a", "b", "b", "a"]
    assert order_arms(["512", "2048"], 1, pair=False) == ["512", "2048"]
    assert order_arms(["1", "2", "3"], 2, pair=False) == ["1", "2", "3", "3", "2", "1"]


def test_finished_cells_are_not_measured_again() -> None:
    loads = [Load("serve", concurrency=1), Load("serve", concurrency=8)]
    turns = build_turns(order_arms(["a", "b"], 1, pair=True), loads, {"a": {"command": ["x"]}, "b": {"command": ["y"]}})
    experiment = Experiment("ab", "x", (), turns)
    assert len(set(experiment.keys)) == 8
    finished: dict[str, Any] = {cell.key: {} for cell in [*experiment.turns[0].cells, experiment.turns[1].cells[0]]}
    remaining = experiment.remove_finished(finished)
    assert [(turn.arm, len(turn.cells)) for turn in remaining.turns] == [("b", 1), ("b", 2), ("a", 2)]
    changed = build_turns(["a"], loads, {"a": {"command": ["z"]}})
    assert not {cell.key for turn in changed for cell in turn.cells} & set(experiment.keys)


def test_each_load_is_planned_at_each_temperature() -> None:
    planned = plan_loads(BenchOptions("serve", concurrency=(1, 8), temperatures=(0.0, 0.7)), LoadLimits(), HERE).loads
    assert [(load.concurrency, load.temperature) for load in planned] == [(1, 0.0), (8, 0.0), (1, 0.7), (8, 0.7)]
    (load,) = plan_loads(BenchOptions("serve", concurrency=(1,)), LoadLimits(), HERE).loads
    assert load.temperature == 0.0
