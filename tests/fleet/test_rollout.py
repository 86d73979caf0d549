"""Rolling plays: batch sizes after a resume, hosts that stop serving, and the record for a resume."""

from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.fleet.guard import Floor, Guard
from sparkwright.fleet.rollout import PlayRollout, RecordFile, RolloutRecord, refuse_changed_run, refuse_other_hosts
from sparkwright.project.rollout_policy import RolloutPolicy

HOSTS = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"]


def build_guard(up: set[str]) -> Guard:
    return Guard([Floor("lab", tuple(HOSTS), 1)], lambda names: up & set(names))


def test_percentage_counts_all_hosts_after_a_resume() -> None:
    assert PlayRollout(RolloutPolicy(serial=("25%",)), host_count=8).next_batch(["s7", "s8"], [])[0] == ["s7", "s8"]
    assert PlayRollout(RolloutPolicy(serial=("25%",))).next_batch(HOSTS, [])[0] == ["s1", "s2"]


def test_verified_host_that_stops_serving_stops_the_run() -> None:
    up = set(HOSTS)
    roll = PlayRollout(RolloutPolicy(serial=(1,)), guard=build_guard(up))
    assert roll.next_batch(HOSTS, []) == (["s1"], "")
    up.remove("s1")
    assert roll.next_batch(HOSTS[1:], ["s1"]) == ([], "s1 stopped serving after being changed")


def test_batch_spares_the_last_server_until_the_next_batch() -> None:
    roll = PlayRollout(RolloutPolicy(), guard=build_guard(set(HOSTS)))
    first, _ = roll.next_batch(HOSTS, [])
    assert first == HOSTS[:-1]
    roll.finish_batch(first, {})
    assert roll.next_batch(HOSTS[-1:], first) == (["s8"], "")


def test_batch_in_progress_counts_as_unfinished() -> None:
    records: list[tuple[list[str], list[str]]] = []
    record = RolloutRecord("restart", HOSTS[:3])
    roll = PlayRollout(
        RolloutPolicy(serial=(1,)),
        record=record,
        save=lambda value: records.append((value.under_way, value.unfinished_hosts)),
    )
    roll.record_batch(["s1"])
    roll.finish_batch(["s1"], {})
    roll.record_batch(["s2"])
    roll.finish_batch([], {"s2": "it broke"})
    assert records == [(["s1"], ["s1", "s2", "s3"]), ([], ["s2", "s3"]), (["s2"], ["s2", "s3"]), ([], ["s2", "s3"])]
    assert record.failed == {"s2": "it broke"}


def test_host_is_done_after_its_last_play() -> None:
    record = RolloutRecord("site", ["s1", "s2"])
    PlayRollout(RolloutPolicy(), record=record, final_hosts=frozenset({"s1"})).finish_batch(["s1", "s2"], {})
    assert record.unfinished_hosts == ["s2"]


FINGERPRINT = {"recipes/a.yml": "1", "spark.lock": "x"}


def unfinished_record() -> RolloutRecord:
    return RolloutRecord(
        "restart",
        ["s1", "s2", "s3"],
        "lab",
        {"tags": []},
        done={"s1": dict(FINGERPRINT)},
        failed={"s2": "no"},
        began_s=1000,
    )


def test_record_is_kept_until_finished_and_ignored_by_git(tmp_path: Path) -> None:
    file, record = RecordFile(tmp_path, "restart"), unfinished_record()
    file.save(record)
    assert file.load() == record
    assert file.load().unfinished_hosts == ["s2", "s3"]
    assert (tmp_path / ".sparkwright/.gitignore").read_text() == "*\n"
    record.done |= {"s2": dict(FINGERPRINT), "s3": dict(FINGERPRINT)}
    file.save(record)
    with pytest.raises(Refused, match="nothing to resume"):
        file.load()


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}'])
def test_unreadable_record_is_refused(tmp_path: Path, text: str) -> None:
    file = RecordFile(tmp_path, "restart")
    file.save(unfinished_record())
    file.path.write_text(text)
    with pytest.raises(Refused, match="is not readable"):
        file.load()


def test_unchanged_run_is_resumed() -> None:
    refuse_changed_run(unfinished_record(), {"tags": []}, lambda name: FINGERPRINT, now_s=2000)
    refuse_other_hosts(unfinished_record(), ["s3", "s1", "s2"])


@pytest.mark.parametrize(
    ("options", "changed_files", "age_s", "message"),
    [
        ({"tags": []}, {"recipes/a.yml": "2"}, 1000, r"recipes/a.yml has changed since s1 was done"),
        ({"tags": []}, {"templates/new.j2": "2"}, 1000, r"templates/new.j2 has changed"),
        ({"tags": ["image"]}, {}, 1000, "was started with a different `--tags`"),
        ({"start_at_task": "x"}, {}, 1000, "was started with a different `--start-at-task`"),
        ({"extra": {"rollback": False}}, {}, 1000, "was started with different options"),
        ({"tags": []}, {}, 10 * 86400, "10 days ago"),
    ],
)
def test_changed_run_is_refused_with_the_difference(
    options: dict[str, object], changed_files: dict[str, str], age_s: int, message: str
) -> None:
    record = unfinished_record()
    with pytest.raises(Refused, match=message):
        refuse_changed_run(record, options, lambda name: FINGERPRINT | changed_files, now_s=record.began_s + age_s)


def test_run_of_other_hosts_is_refused() -> None:
    with pytest.raises(Refused, match="is for s1, s2, s3, not for s1, s4"):
        refuse_other_hosts(unfinished_record(), ["s1", "s4"])
