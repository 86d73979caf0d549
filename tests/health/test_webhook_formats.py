"""Formats of webhook receivers: quoted text is never markup, and an alert ends when the server has recovered."""

import json
from datetime import datetime
from typing import Any

import pytest

from sparkwright.health import notify, webhook_formats
from sparkwright.health.record import Evidence, Record

MARKUP = "<!channel> @everyone [here](https://evil.example) *bold* & more"


def build_message(state: Any = "down", why: str = "nobody answers") -> dict[str, Any]:
    bad = Evidence("/health", "bad", why)
    record = Record(time_s=1.8e9, state=state, seen=state, since_s=1.0, why=why, evidence=(bad,))
    return notify.build_message(record, "spark1", "ok")


@pytest.mark.parametrize(
    ("url", "shape"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ntfy.sh/sparks", "ntfy"),
        ("http://127.0.0.1:9093/api/v2/alerts", "alertmanager"),
        ("https://hooks.slack.com.evil.example/", "json"),
        ("http://[", "json"),
    ],
)
def test_the_format_is_selected_by_the_url(url: str, shape: str) -> None:
    assert webhook_formats.resolve_format(url, "auto") == shape
    assert webhook_formats.resolve_format(url, "ntfy") == "ntfy"


def test_slack_text_has_no_mentions_and_no_links() -> None:
    sent = json.loads(webhook_formats.build_post(build_message(why=MARKUP), "slack").body)
    assert "<" not in sent["text"] and "&lt;!channel&gt;" in sent["text"]
    assert not any(sent[key] for key in ("mrkdwn", "link_names", "unfurl_links", "unfurl_media"))


@pytest.mark.parametrize("shape", ["slack", "alertmanager"])
def test_a_long_reason_is_truncated_with_an_ellipsis(shape: str) -> None:
    body = webhook_formats.build_post(build_message(why="<x>" * 5000), shape).body.decode()
    assert len(body) < 20_000 and "\\u2026" in body


def test_discord_text_has_no_mentions_and_is_within_the_limit() -> None:
    sent = json.loads(webhook_formats.build_post(build_message(why=MARKUP * 100), "discord").body)
    assert sent["allowed_mentions"] == {"parse": []} and len(sent["content"]) <= 2000
    assert r"\[here\](https" in sent["content"] and r"\@everyone" in sent["content"] and sent["flags"] == 4


def test_ntfy_receives_plain_text_and_a_priority() -> None:
    down = webhook_formats.build_post(build_message(why="ü" * 5000), "ntfy")
    assert (down.headers["Title"], down.headers["Priority"]) == ("spark1: down", "5")
    assert len(down.body) <= 4096 and down.body.decode().startswith("spark1: ok -> down: ü")
    assert webhook_formats.build_post(build_message("ok"), "ntfy").headers["Priority"] == "3"


def test_an_alert_ends_some_time_after_its_last_message_or_on_recovery() -> None:
    down, well = (
        json.loads(webhook_formats.build_post(build_message(state), "alertmanager", every_s=300).body)
        for state in ("down", "ok")
    )
    assert down[0]["labels"] == well[0]["labels"] == {"alertname": "SparkwrightServer", "host": "spark1"}
    assert datetime.fromisoformat(down[0]["endsAt"]).timestamp() == 1.8e9 + 1200
    assert datetime.fromisoformat(well[0]["endsAt"]).timestamp() == 1.8e9
    assert down[0]["annotations"]["summary"] == "spark1 is down: nobody answers"
