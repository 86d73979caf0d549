"""Notifications in the formats of webhook receivers: sparkwright's JSON, Slack, Discord, ntfy, Alertmanager.

Messages quote logs and servers, so each format escapes and truncates them: quoted text can't mention a user or disguise a link. A
URL may become a link to itself, without a preview.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from sparkwright.health.judging.judge import GOOD_STATES

RUNBOOK_URL = "https://github.com/sparkwright/sparkwright/blob/main/docs/alerts.md"
ALERT_NAME = "SparkwrightServer"
#: maximum length that Discord accepts (its API reference, "Create Message")
MAX_DISCORD_CHARS = 2000
#: length at which Slack truncates a text (its reference for chat.postMessage), before markup is escaped
MAX_SLACK_CHARS = 4000
#: Discord's flag that disables link previews
SUPPRESS_EMBEDS_FLAG = 4
#: limits for Alertmanager, which accepts any length, unlike the receivers that it forwards alerts to
MAX_SUMMARY_CHARS, MAX_DESCRIPTION_CHARS = 400, 2000
#: length at which ntfy turns a message into an attachment (docs.ntfy.sh, "Limitations")
MAX_NTFY_BYTES = 4096
#: an alert that is not repeated ends after four check intervals, as in Prometheus, or after MIN_OPEN_S if that is longer
MIN_OPEN_INTERVALS, MIN_OPEN_S = 4, 900.0

#: format by the URL's host
_FORMATS_BY_HOST = {
    "hooks.slack.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
    "ntfy.sh": "ntfy",
}
_ALERTMANAGER_PATH = "/api/v2/alerts"

#: ntfy's priority (5 is the highest) and the tag that it shows as an emoji
_NTFY_PRIORITIES_AND_TAGS = {
    "ok": ("3", "white_check_mark"),
    "asleep": ("3", "zzz"),
    "starting": ("3", "hourglass"),
    "degraded": ("4", "warning"),
}
_NTFY_WORST_PRIORITY_AND_TAG = ("5", "rotating_light")


@dataclass(frozen=True, slots=True)
class Post:
    """The body and headers of an HTTP POST."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def resolve_format(url: str, format_name: str) -> str:
    """Return the format for a receiver. format_name: the user's setting; `auto` derives it from the URL, or else JSON."""
    if format_name != "auto":
        return format_name
    try:
        parts = urlsplit(url)
    except ValueError:
        return "json"
    if parts.path.rstrip("/").endswith(_ALERTMANAGER_PATH):
        return "alertmanager"
    return _FORMATS_BY_HOST.get(parts.hostname or "", "json")


def build_post(message: Mapping[str, Any], format_name: str, *, every_s: float = 0.0) -> Post:
    """Return the request for a receiver. every_s: interval of the checks, each of which repeats an open alert."""
    return _BUILDERS[format_name](message, every_s)


def expects_repeats(format_name: str) -> bool:
    """Return True if receivers of this format expect each check to send a persisting state again."""
    return format_name == "alertmanager"


def _build_json(message: Mapping[str, Any], every_s: float) -> Post:
    return Post(json.dumps(message).encode())


def _build_slack(message: Mapping[str, Any], every_s: float) -> Post:
    text = (
        _truncate(_format_lines(message), MAX_SLACK_CHARS)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    options = {"mrkdwn": False, "parse": "none", "link_names": False, "unfurl_links": False, "unfurl_media": False}
    return Post(json.dumps({"text": text, **options}).encode())


def _build_discord(message: Mapping[str, Any], every_s: float) -> Post:
    text = re.sub(r"([\\*_~|`>#\[\]<@])", r"\\\1", _format_lines(message))
    content = text if len(text) <= MAX_DISCORD_CHARS else f"{text[: MAX_DISCORD_CHARS - 2].rstrip(chr(92))} …"
    options = {"allowed_mentions": {"parse": []}, "flags": SUPPRESS_EMBEDS_FLAG}
    return Post(json.dumps({"content": content, **options}).encode())


def _build_ntfy(message: Mapping[str, Any], every_s: float) -> Post:
    priority, tag = _NTFY_PRIORITIES_AND_TAGS.get(message["state"], _NTFY_WORST_PRIORITY_AND_TAG)
    title = f"{message['host']}: {message['state']}".encode("ascii", "replace").decode()
    headers = {"Title": title, "Priority": priority, "Tags": tag, "Content-Type": "text/plain; charset=utf-8"}
    return Post(_format_lines(message).encode()[:MAX_NTFY_BYTES].decode(errors="ignore").encode(), headers)


def _build_alertmanager(message: Mapping[str, Any], every_s: float) -> Post:
    """Return the message as Prometheus posts it to /api/v2/alerts.

    The labels contain only the host: they identify the alert, so they must be the same when it ends.
    """
    now_s = message["time_s"]
    ends_s = now_s if message["state"] in GOOD_STATES else now_s + max(MIN_OPEN_INTERVALS * every_s, MIN_OPEN_S)
    alert = {
        "labels": {"alertname": ALERT_NAME, "host": message["host"]},
        "annotations": {
            "summary": _truncate(f"{message['host']} is {message['state']}: {message['why']}", MAX_SUMMARY_CHARS),
            "description": _truncate("\n".join(message["evidence"]), MAX_DESCRIPTION_CHARS),
            "state": message["state"],
            "runbook_url": f"{RUNBOOK_URL}#{ALERT_NAME.lower()}",
        },
        "endsAt": datetime.fromtimestamp(ends_s, UTC).isoformat(timespec="milliseconds"),
    }
    return Post(json.dumps([alert]).encode())


def _format_lines(message: Mapping[str, Any]) -> str:
    return "\n".join([message["text"], *(f"- {finding}" for finding in message["evidence"])])


def _truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 2]} …"


#: functions by name in defaults.WebhookFormat
_BUILDERS: dict[str, Callable[[Mapping[str, Any], float], Post]] = {
    "json": _build_json,
    "slack": _build_slack,
    "discord": _build_discord,
    "ntfy": _build_ntfy,
    "alertmanager": _build_alertmanager,
}
