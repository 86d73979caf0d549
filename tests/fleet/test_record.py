"""The record of a rolling run on the laptop, and the cases in which it can't be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.fleet.rollout import Record, RecordFile, refuse_other, refuse_other_hosts

MADE = {"recipes/a.yml": "1", "spark.lock": "x"}


def left() -> Record:
    return Record(
        "restart", ["s1", "s2", "s3"], {"tags": []}, done={"s1": dict(MADE)}, failed={"s2": "no"}, began_s=1000
    )


def test_it_is_kept_until_nothing_is_left_and_never_committed(tmp_path: Path) -> None:
    file, record = RecordFile(tmp_path, "restart"), left()
    file.save(record)
    assert file.load() == record
    assert file.load().left == ["s2", "s3"]
    assert (tmp_path / ".sparkwright/.gitignore").read_text() == "*\n"
    record.done |= {"s2": dict(MADE), "s3": dict(MADE)}
    file.save(record)
    with pytest.raises(Refused, match="nothing to resume"):
        file.load()


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}'])
def test_a_record_that_can_not_be_read_is_refused(tmp_path: Path, text: str) -> None:
    file = RecordFile(tmp_path, "restart")
    file.save(left())
    file.path.write_text(text)
    with pytest.raises(Refused, match="is not readable"):
        file.load()


def test_the_same_run_goes_on() -> None:
    refuse_other(left(), {"tags": []}, lambda name: MADE, now_s=2000)
    refuse_other_hosts(left(), ["s3", "s1", "s2"])


def test_another_run_does_not_go_on_and_the_sentence_says_what_is_other() -> None:
    with pytest.raises(Refused, match=r"recipes/a.yml has changed since s1 was done"):
        refuse_other(left(), {"tags": []}, lambda name: {**MADE, "recipes/a.yml": "2"}, now_s=2000)
    with pytest.raises(Refused, match=r"templates/new.j2 has changed"):
        refuse_other(left(), {"tags": []}, lambda name: {**MADE, "templates/new.j2": "2"}, now_s=2000)
    with pytest.raises(Refused, match="a different tags"):
        refuse_other(left(), {"tags": ["image"]}, lambda name: MADE, now_s=2000)
    with pytest.raises(Refused, match="10 days ago"):
        refuse_other(left(), {"tags": []}, lambda name: MADE, now_s=1000 + 10 * 86400)
    with pytest.raises(Refused, match="is for s1, s2, s3, not for s1, s4"):
        refuse_other_hosts(left(), ["s1", "s4"])
