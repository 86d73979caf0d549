"""A hostile host, over a real sshd: its answers choose no path on the laptop, write no file and crash no command."""

import dataclasses
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit as InvokeExit

from sparkwright import host_side
from sparkwright.cli import doctor, runs, status
from sparkwright.errors import Failed, SparkwrightError, Unreachable
from sparkwright.fleet.member import build_module_request
from sparkwright.modules import registry
from sparkwright.protocol.events import MAX_LINE_BYTES, encode_lines, event
from sparkwright.protocol.plan import Task
from sparkwright.remote import relay, runtime
from sparkwright.remote.ssh import ssh_link
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.runner import request as requests
from sparkwright.transport.connection import MinimumRate
from tests.remote.conftest import SshLab, run_request
from tests.remote.hostile import HostileHost, recap, task_finished

RUNTIME_MISSING = {"event": "runtime_missing", "path": "/usr/bin/python3", "python": "3.12", "machine": "x86_64"}
INCIDENT = "20260101T000000-abc"


@pytest.fixture
def hostile(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> HostileHost:
    """A hostile host; its project is the current folder."""
    value = HostileHost(lab)
    monkeypatch.chdir(value.project)
    return value


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The laptop's home, with a key in it; the runtime's wheels need no network."""
    folder = tmp_path / "laptop"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_ed25519").write_text("PRIVATE KEY\n")
    monkeypatch.setattr(host_side, "cache_folder", lambda: folder / ".cache" / "sparkwright")
    return folder


def exit_code_of(command: Any, **options: Any) -> int:
    try:
        command.body(None, **options)
    except InvokeExit as exit:
        return int(exit.code)
    return 0


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"machine": "x86_64/../../../../.ssh"}, "its processor is 'x86_64/"),
        ({"machine": "riscv64"}, "its processor is 'riscv64'; sparkwright runs on aarch64 and x86_64"),
        ({"machine": "\x1b]52;c;aGk=\x07"}, r"its processor is .\\x1b\]52"),
        ({"python": "3.12/../../../.ssh"}, "the version of Python that spark1 reports is not valid"),
        ({"python": "3.12 --index-url http://evil"}, "the version of Python that spark1 reports is not valid"),
        ({"path": "/usr/bin/python3; id"}, "the path of Python that spark1 reports is not valid"),
        ({"path": "--version"}, "the path of Python that spark1 reports is not valid"),
    ],
)
def test_invalid_platform_of_a_host_is_refused_before_packing(
    hostile: HostileHost, home: Path, field: dict[str, str], reason: str
) -> None:
    hostile.start({**RUNTIME_MISSING, **field})
    with pytest.raises(SparkwrightError, match=reason):
        hostile.query()
    assert not any(b"PRIVATE KEY" in sent or sent[:2] == b"\x1f\x8b" for sent in hostile.sent)
    assert not (home / ".cache").exists()


def test_archive_path_stays_in_the_cache(home: Path) -> None:
    with pytest.raises(Failed, match="the processor is not valid"):
        runtime.ensure_archive("3.12", "x86_64/../../../../.ssh")
    with pytest.raises(Failed, match="the Python is not valid"):
        runtime.ensure_archive("3.12/..", "x86_64")


def test_runtime_missing_after_the_start_does_not_repeat_the_request(hostile: HostileHost) -> None:
    hostile.start({"event": "run_started", "run": "r", "play": "p"}, RUNTIME_MISSING)
    with pytest.raises(Unreachable, match="the runner was killed"):
        hostile.query()
    assert len(hostile.sent) == 1


def test_control_sequences_are_escaped(hostile: HostileHost, capsys: pytest.CaptureFixture[str]) -> None:
    osc52 = "\x1b]52;c;Y3VybCBldmlsfHNo\x07"
    task = task_finished(status="failed", exit=1, msg=osc52, data={"evidence": [osc52]}, name="\x9b2J")
    hostile.start({"event": "note", "text": osc52}, f"{osc52}\n".encode(), task, recap(exit=1, failed=1, msg=osc52))
    assert exit_code_of(runs.attach, host="spark1") == 1
    result = capsys.readouterr().out
    assert result.count("\\x1b]52;c;Y3VybCBldmlsfHNo\\x07") == 4  # the recap does not repeat the failure
    assert not {"\x1b", "\x07", "\x9b"} & set(result)


def test_json_output_is_valid(hostile: HostileHost, capsys: pytest.CaptureFixture[str]) -> None:
    hostile.start(task_finished(msg="\x1b[2J\ud800", data={"\x1b": float("nan")}), recap(ok=1e999), recap())
    assert exit_code_of(runs.attach, host="spark1", json=True) == 0
    result = capsys.readouterr().out
    task, invalid, last = (json.loads(line, parse_constant=pytest.fail) for line in result.splitlines())
    assert task["msg"] == "\\x1b[2J\\ud800"
    assert task["data"] == {"\\x1b": None}
    assert invalid["event"] == "raw"
    assert last["exit"] == 0
    assert "\x1b" not in result


@pytest.mark.parametrize("code", [99, -1, True, "0", None, 0.5, [0]])
def test_invalid_exit_code_is_a_failure(hostile: HostileHost, code: object) -> None:
    hostile.start(recap(exit=code))
    assert exit_code_of(runs.attach, host="spark1") == 1


def test_run_without_a_result_is_a_failure(hostile: HostileHost, capsys: pytest.CaptureFixture[str]) -> None:
    hostile.start({"event": "run_started", "run": "r", "play": "p"}, {"event": "recap", "exit": 0})
    assert exit_code_of(runs.attach, host="spark1") == 1
    assert "did not report a result" in capsys.readouterr().out


@pytest.mark.parametrize(
    "malformed",
    [
        {"event": "progress", "done": "many", "total": 1},
        {"event": "task_started"},
        {"event": "rolled"},
        {"event": "host_finished", "exit": 0},
        {"event": "play_started", "play": "[/red]", "hosts": None},
        {"event": "task_finished", "status": "ok", "diff": [1]},
        {"event": 7},
        {"event": "history", "at": 1e18, "what": "verified"},
        b"[" * 100_000 + b"\n",
        b'{"event": "note", "text": ' + b"[" * 500 + b"]" * 500 + b"}\n",
        b"\xff\xfe\x00\n",
    ],
)
def test_malformed_event_is_shown_and_the_run_continues(
    hostile: HostileHost, capsys: pytest.CaptureFixture[str], malformed: Any
) -> None:
    hostile.start(malformed, task_finished(name="next task"), recap())
    assert exit_code_of(runs.attach, host="spark1,spark2") == 0
    result = capsys.readouterr()
    assert result.out.count("next task") == 2
    assert "Error" not in result.out + result.err


def test_endless_line_is_cut(hostile: HostileHost) -> None:
    size = 80 * 2**20
    hostile.start(b"A" * size, b"\n", recap())
    first, last = hostile.query()
    assert first["event"] == "raw"
    assert f"{size - MAX_LINE_BYTES} more bytes: a line must have at most {MAX_LINE_BYTES} bytes" in first["text"]
    assert len(first["text"]) < 3000
    assert last["event"] == "recap"


def incident_files(incident: str, *names: str, text: str = "print('pwned')\n") -> list[dict[str, Any]]:
    return [{"event": "file", "incident": incident, "name": name, "text": text} for name in names]


@pytest.mark.parametrize(
    ("incident", "name"),
    [
        ("PROJECT", "tasks.py"),
        ("../..", "tasks.py"),
        (INCIDENT, "../../../tasks.py"),
        (INCIDENT, "tasks.py"),
        (".git", "about.json"),
    ],
)
def test_incident_writes_only_its_own_files(hostile: HostileHost, incident: str, name: str) -> None:
    (hostile.project / "tasks.py").write_text("mine\n")
    before = {path: path.read_bytes() for path in hostile.project.rglob("*") if path.is_file()}
    hostile.start(*incident_files(incident.replace("PROJECT", str(hostile.project)), name))
    assert exit_code_of(runs.incident, host="spark1") == 1
    assert {path: path.read_bytes() for path in hostile.project.rglob("*") if path.is_file()} == before


def test_incident_is_private_and_overwrites_nothing(hostile: HostileHost, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = json.dumps({"time": 1e300, "why": "\x1b]52;c;aGk=\x07"})
    hostile.start(*incident_files(INCIDENT, "about.json", text=metadata), *incident_files(INCIDENT, "meminfo"))
    before = os.umask(0)
    try:
        assert exit_code_of(runs.incident, host="spark1") == 0
    finally:
        os.umask(before)
    folder = hostile.project / f"incidents/spark1/{INCIDENT}"
    assert sorted(path.name for path in folder.iterdir()) == ["about.json", "meminfo"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert "\x1b" not in capsys.readouterr().out
    (folder / "meminfo").unlink()
    (folder / "meminfo").symlink_to(hostile.project / "tasks.py")
    assert exit_code_of(runs.incident, host="spark1") == 5
    assert not (hostile.project / "tasks.py").exists()


def test_long_file_of_an_incident_is_complete(hostile: HostileHost) -> None:
    log = 'a line with "quotes" and ünïcode 💡\n' * 80_000
    hostile.start(*encode_lines(event("file", incident=INCIDENT, name="container.log", text=log)))
    assert exit_code_of(runs.incident, host="spark1") == 0
    assert (hostile.project / f"incidents/spark1/{INCIDENT}/container.log").read_text() == log


def test_incident_of_another_run_is_refused(hostile: HostileHost) -> None:
    hostile.start(*incident_files(INCIDENT, "meminfo"))
    assert exit_code_of(runs.incident, host="spark1", run="20250101T000000-xyz") == 1
    assert not (hostile.project / "incidents").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"state": "ok", "why": "", "time_s": 1e300},
        {"state": "ok", "why": "", "time_s": 1.0, "since_s": 1.0, "seen": "ok", "serves": {"image": 7}},
        {"state": "ok", "why": "", "time_s": 1.0, "since_s": 1.0, "seen": "ok", "drift": "all"},
        {"state": "ok", "why": ""},
    ],
)
def test_invalid_status_makes_only_its_host_unknown(
    hostile: HostileHost, capsys: pytest.CaptureFixture[str], record: dict[str, Any]
) -> None:
    hostile.start({"event": "status", "record": record, "live": False, "late": False, "busy": ""})
    assert exit_code_of(status.status, host="spark1,spark2", json=True) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["host"], row["state"]) for row in rows] == [("spark1", "unknown"), ("spark2", "unknown")]
    assert all("its answer can't be used: the record" in row["why"] for row in rows)


def test_invalid_checks_fail_and_valid_ones_are_escaped(
    hostile: HostileHost, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[time.time() - 60, "<script>", 41.0], [time.time(), "ok", "fast"]]
    hostile.start({"event": "checks", "fields": ["time_s", "state", "tok_per_s"], "rows": rows})
    assert exit_code_of(status.report, host="spark1,spark2", to="page.html") == 1
    assert "spark2: its answer can't be used: a check[1].tok_per_s is not a number." in capsys.readouterr().out
    rows[1][2] = 42.0
    hostile.lab.sshd.stop()
    hostile.start({"event": "checks", "fields": ["time_s", "state", "tok_per_s"], "rows": rows})
    assert exit_code_of(status.report, host="spark1,spark2", to="page.html") == 0
    page = (hostile.project / "page.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    "data",
    [
        {"findings": [{"check": "c", "verdict": "fine", "evidence": ""}], "user": "u", "now_s": 1.0},
        {"findings": [{"check": "c", "verdict": "bad", "evidence": "", "repair": "rm"}], "user": "u", "now_s": 1.0},
        {"findings": [], "user": "u; rm -rf ~", "now_s": 1.0},
        {"findings": [], "user": "u", "now_s": "now"},
        {},
    ],
)
def test_invalid_answer_of_a_module_is_reported(
    hostile: HostileHost, capsys: pytest.CaptureFixture[str], data: dict[str, Any]
) -> None:
    hostile.start(task_finished(module="doctor", data=data), recap())
    assert exit_code_of(doctor.doctor, host="spark1,spark2") == 1
    assert capsys.readouterr().out.count("its answer can't be used: doctor") == 2


def test_too_long_answer_fails(hostile: HostileHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "MAX_EVENTS_BYTES", 10**6)
    hostile.start(b'{"event": "note", "text": "x"}\n' * 50_000, recap())
    with pytest.raises(Failed, match="the host's answer is longer than 1 MB"):
        hostile.query()


def start_endless_answer(hostile: HostileHost, commands: str) -> None:
    hostile.write_script(commands)
    hostile.lab.sshd.start()


ENDLESS_LINES = 'while :; do echo \'{"event": "note", "text": "x"}\'; sleep 0.1; done'
ENDLESS_BYTES = "while :; do printf x; sleep 0.1; done"


@pytest.mark.parametrize("commands", [ENDLESS_LINES, ENDLESS_BYTES], ids=["lines", "bytes"])
def test_endless_answer_to_a_query_times_out(
    hostile: HostileHost, monkeypatch: pytest.MonkeyPatch, commands: str
) -> None:
    short_limits = {name: dataclasses.replace(kind, timeout_s=1.0) for name, kind in requests.REQUEST_KINDS.items()}
    monkeypatch.setattr(requests, "REQUEST_KINDS", short_limits)
    monkeypatch.setattr(requests, "SHORT_RUN_TIMEOUTS_S", {"copy_key": 1.0})
    start_endless_answer(hostile, f'echo \'{{"event": "ready"}}\'\n{commands}')
    short_run = run_request(Task(id="key", name="Allow", module="copy_key", args={}))
    for request in ({"verb": "status"}, build_module_request("doctor", {}), short_run):
        with pytest.raises(Failed, match="the host's answer took longer than 1 s"):
            hostile.query(request)


@pytest.mark.parametrize(
    "commands", ["while :; do echo welcome; sleep 0.1; done", ENDLESS_BYTES], ids=["lines", "bytes"]
)
def test_endless_greeting_times_out(hostile: HostileHost, monkeypatch: pytest.MonkeyPatch, commands: str) -> None:
    monkeypatch.setattr(ssh_link, "READY_TIMEOUT_S", 1.0)
    start_endless_answer(hostile, commands)
    with pytest.raises(Failed, match="the host's answer took longer than 1 s"):
        hostile.query()


def test_slow_image_relay_times_out(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MIN_RATE", MinimumRate(2**20, 1.0))
    link = SshLink(lab.host())
    try:
        source = link.run(["sh", "-c", ENDLESS_BYTES])
        with pytest.raises(Failed, match="bytes: less than 1048576 bytes in 1 s"):
            relay.relay(source, link.run(["sh", "-c", "cat > /dev/null"]), lambda sent: None)
    finally:
        link.close()


def test_every_query_has_a_time_limit() -> None:
    """Runs and commands that follow them have no limit; `clean` removes folders from disks of any speed."""
    assert {name for name, kind in requests.REQUEST_KINDS.items() if kind.timeout_s is None} == {
        "run",
        "attach",
        "clean",
    }
    assert requests.QUESTION_MODULES | requests.SHORT_RUN_TIMEOUTS_S.keys() <= set(registry.NAMES)
