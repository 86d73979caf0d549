"""Notifications of state changes: sent once, repeated after a failure, and never with a secret."""

import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.health import notify
from sparkwright.health.record import Evidence, Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from tests.http_servers import QuietHandler, in_background


@dataclass
class Webhook:
    """A webhook on loopback."""

    url: str = ""
    #: response statuses in order; the last one is repeated
    answers: list[int] = field(default_factory=lambda: [200])
    #: bodies of the received requests
    received: list[Any] = field(default_factory=list)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    value = Webhook()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            value.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.reply(value.answers.pop(0) if len(value.answers) > 1 else value.answers[0])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    value.url = f"http://127.0.0.1:{server.server_port}/services/T0/s3cret?key=s3cret"
    with in_background(server):
        yield value


def send_notification(
    state: Any, past: CheckHistory, settings: Settings, **fields: Any
) -> tuple[list[str], list[float]]:
    """Notify of a state, and return the notes and the pauses in seconds. fields: more fields of the record."""
    notes: list[str] = []
    pauses: list[float] = []
    bad = Evidence("/health", "bad", "nobody answers")
    record = Record(1.0, state, state, 1.0, why="nobody answers", evidence=(bad,), **fields)
    notify.send_if_changed(record, past, settings, note=notes.append, pause=pauses.append)
    return notes, pauses


def notes_of_failure(**settings: Any) -> list[str]:
    """Return the notes of the notification that a server is down."""
    return send_notification("down", CheckHistory(notified="ok"), Settings(**settings))[0]


def test_a_flapping_server_is_not_notified_at_each_change(webhook: Webhook) -> None:
    past, settings = CheckHistory(notified="ok"), Settings(host="spark1", webhook=webhook.url)
    for state in ("ok down ok down" + " ok down" * 3 + " ok" * 4).split():
        past.seen.append(state)  # type: ignore[arg-type]
        assert send_notification(state, past, settings) == ([], [])
    states = [item["state"] for item in webhook.received]
    assert states == ["down", "ok", "down", "ok"]  # the last after some checks with this state


def test_a_change_is_notified_once(webhook: Webhook) -> None:
    past, settings = CheckHistory(notified="ok"), Settings(host="spark1", webhook=webhook.url)
    for _ in range(3):
        assert send_notification("down", past, settings) == ([], [])
    assert [(item["state"], item["before"], item["host"]) for item in webhook.received] == [("down", "ok", "spark1")]
    assert webhook.received[0]["evidence"] == ["/health: nobody answers"]


def test_alertmanager_receives_a_bad_state_at_each_check_and_its_end_once(webhook: Webhook) -> None:
    past = CheckHistory(notified="ok")
    settings = Settings(host="spark1", webhook=webhook.url, webhook_format="alertmanager")
    for state in ("down", "down", "ok", "ok"):
        assert send_notification(state, past, settings) == ([], [])
    assert [alerts[0]["annotations"]["state"] for alerts in webhook.received] == ["down", "down", "ok"]


def test_the_first_state_and_a_deploy_are_not_notified(webhook: Webhook) -> None:
    past, settings = CheckHistory(), Settings(webhook=webhook.url)
    send_notification("ok", past, settings)
    send_notification("unknown", past, settings, busy="ops runs deploy")
    send_notification("ok", past, settings)
    assert webhook.received == []


def test_a_failing_webhook_is_retried_now_and_at_the_next_check(webhook: Webhook) -> None:
    past, settings = CheckHistory(notified="ok"), Settings(webhook=webhook.url)
    webhook.answers = [503]
    notes, pauses = send_notification("down", past, settings)
    assert len(webhook.received) == notify.MAX_ATTEMPTS and len(pauses) == notify.MAX_ATTEMPTS - 1
    assert "503" in notes[0] and "s3cret" not in notes[0]
    webhook.answers = [429, 200]
    assert send_notification("down", past, settings)[0] == []
    assert past.notified == "down"


def test_a_webhook_that_rejects_the_request_is_not_retried(webhook: Webhook) -> None:
    webhook.answers = [404]
    notes, pauses = send_notification("down", CheckHistory(notified="ok"), Settings(webhook=webhook.url))
    assert (len(webhook.received), pauses) == (1, [])
    assert "404" in notes[0] and "s3cret" not in notes[0]


def test_an_unreachable_webhook_is_only_noted() -> None:
    (note,) = notes_of_failure(webhook="http://127.0.0.1:1/s3cret")
    assert "it refuses the connection" in note and "s3cret" not in note


def test_a_secret_url_is_read_from_a_private_file_only(webhook: Webhook, tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text(webhook.url + "\n")
    file.chmod(0o644)
    assert "chmod 600" in notes_of_failure(webhook_file=str(file))[0] and webhook.received == []
    file.chmod(0o600)
    assert notes_of_failure(webhook_file=str(file)) == []
    assert len(webhook.received) == 1 and "s3cret" not in json.dumps(webhook.received)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:s3cret/", "http://[s3cret/", "http://127.0.0.1:1/s3cret\u00e9", "s3cret", "http://h/s3 cret", "http:///s3cret"],
)  # fmt: skip
def test_an_invalid_url_is_noted_without_its_text(tmp_path: Path, url: str) -> None:
    file = tmp_path / "hook"
    file.write_text(url + "\n")
    file.chmod(0o600)
    past = CheckHistory(notified="ok")
    notes, _ = send_notification("down", past, Settings(webhook_file=str(file)))
    assert "could not send" in notes[0] and "s3c" not in notes[0] and past.notified == "ok"


def test_a_url_file_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hook", 0o600)
    assert "is not a regular file" in notes_of_failure(webhook_file=str(tmp_path / "hook"))[0]


def test_the_output_of_a_command_is_discarded() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = "import os\nfor _ in range(256): os.write(1, bytes(2**20)); os.write(2, bytes(2**20))"
    assert notes_of_failure(command=(sys.executable, "-c", program)) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10


def test_a_command_receives_the_change_without_a_shell(tmp_path: Path) -> None:
    out = tmp_path / "$(touch pwned) out"
    program = "import os, sys; open(sys.argv[1], 'w').write(os.environ['SPARKWRIGHT_STATE'] + sys.stdin.read())"
    settings = Settings(host="spark1", command=(sys.executable, "-c", program, str(out)))
    assert send_notification("wedged", CheckHistory(notified="ok"), settings)[0] == []
    state, _, message = out.read_text().partition("{")
    assert state == "wedged" and json.loads("{" + message)["host"] == "spark1"


def test_a_failing_command_is_noted_and_retried() -> None:
    past = CheckHistory(notified="ok")
    for command, error in (("/no/such/program", "FileNotFoundError"), ("false", "false exited with 1")):
        notes, _ = send_notification("down", past, Settings(command=(command,)))
        assert error in notes[0]
