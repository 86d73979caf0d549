"""Damaged records of rolling runs on the laptop, and answers to agents of any size."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkwright.fleet.rollout import RECORD_SCHEMA, RecordFile, RolloutRecord, refuse_changed_run, refuse_other_hosts
from sparkwright.mcp import output
from tests.fuzz.harness import damaged_texts, damaged_values, feed, feed_json, via_file

FILES = {"spark1": {"recipes/a.yml": "ab"}}
RECORD = RolloutRecord("deploy", ["spark1", "spark2"], "lab", {"serial": "1"}, FILES, {"spark2": "why"})
DIFF = [{"field": "image", "before": "a", "after": ["b"] * 300, "why": "x" * 5000}]


def test_record_of_a_rolling_run(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "deploy")
    file.path.parent.mkdir(parents=True)

    def read() -> None:
        record = file.load()
        assert isinstance(record.unfinished_hosts, list)
        refuse_other_hosts(record, ["spark1", "spark2"])
        refuse_changed_run(record, {"serial": "1"}, lambda host: {"recipes/a.yml": "ab"}, now_s=2e9)

    read_file = via_file(file.path, read)
    feed_json(read_file, [{"schema": RECORD_SCHEMA, **asdict(RECORD)}])
    feed(read_file, damaged_texts([b"[" * 3000]))


def test_answers_to_an_agent() -> None:
    def read(value: Any) -> None:
        answer = output.build_answer("plan", value)
        assert len(json.dumps(answer)) <= output.MAX_ANSWER_CHARS + 1000

    feed(read, damaged_values([[{"host": "spark1", "task": "Start", "diff": DIFF}]]))


@pytest.mark.parametrize("value", ["x" * 10**6, [["y" * 100] * 1000] * 50], ids=["long text", "many values"])
def test_an_answer_to_an_agent_has_a_maximum_size(value: Any) -> None:
    assert len(json.dumps(output.build_answer("plan", value))) <= output.MAX_ANSWER_CHARS + 1000
