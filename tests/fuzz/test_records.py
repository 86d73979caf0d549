"""Files of the laptop that others could have put there, and what an agent is shown: read, or taken for none."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkwright.fleet.rollout import RECORD_SCHEMA, RecordFile, RolloutRecord, refuse_changed_run, refuse_other_hosts
from sparkwright.mcp import output
from tests.fuzz.harness import damaged_texts, damaged_values, feed

RECORD = {
    "schema": RECORD_SCHEMA,
    **asdict(
        RolloutRecord(
            "deploy", ["spark1", "spark2"], {"serial": "1"}, {"spark1": {"recipes/a.yml": "ab"}}, {"spark2": "why"}
        )
    ),
}
ANSWER = [
    {
        "host": "spark1",
        "task": "Start",
        "diff": [{"field": "image", "before": "a", "after": ["b"] * 300, "why": "x" * 5000}],
    }
]


def test_the_record_of_a_rolling_run(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "deploy")
    file.path.parent.mkdir(parents=True)

    def read(data: bytes) -> None:
        file.path.write_bytes(data)
        record = file.load()
        assert isinstance(record.unfinished, list)
        refuse_other_hosts(record, ["spark1", "spark2"])
        refuse_changed_run(record, {"serial": "1"}, lambda host: {"recipes/a.yml": "ab"}, now_s=2e9)

    feed(lambda value: read(json.dumps(value).encode()), damaged_values([RECORD]))
    feed(read, damaged_texts([json.dumps(RECORD).encode(), b"[" * 3000]))


def test_what_an_agent_is_shown() -> None:
    def read(value: Any) -> None:
        answer = output.build_answer("plan", value)
        assert len(json.dumps(answer)) <= output.MAX_ANSWER_CHARS + 1000

    feed(read, damaged_values([ANSWER]))


@pytest.mark.parametrize("value", ["x" * 10**6, [["y" * 100] * 1000] * 50])
def test_an_answer_has_a_size(value: Any) -> None:
    assert len(json.dumps(output.build_answer("plan", value))) <= output.MAX_ANSWER_CHARS + 1000
