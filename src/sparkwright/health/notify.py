"""Send notifications of state changes with a command, and with a webhook in its receiver's format (webhook_formats.py).

A failed notification is retried at the next check. The message contains no secrets. A secret webhook URL stays in the
user's file (`--webhook-file`), which is read for each notification and never copied.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sparkwright.health.judging.judge import GOOD_STATES, is_notifiable
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.health.webhook_formats import Post, build_post, expects_repeats, resolve_format
from sparkwright.transport import http
from sparkwright.transport.connection import InvalidRequest, TransportError
from sparkwright.trust import bounds
from sparkwright.trust.names import expand_home

MAX_ATTEMPTS = 3
RETRY_WINDOW_S = 45.0
COMMAND_TIMEOUT_S = 30.0
RESPONSE_TIMEOUT_S = 10.0
MAX_URL_BYTES = 64 * 2**10


class NotificationFailed(Exception):
    """A notification failed. The message contains no URL, which may be secret."""


def send_if_changed(
    record: Record,
    history: CheckHistory,
    settings: Settings,
    *,
    note: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Notify if the settled state differs from the last one that was notified. A failure is only noted."""
    if record.busy or not is_notifiable(history.seen):
        return
    previous_state = history.notified
    if not previous_state:
        history.notified = record.state
        return
    message = build_message(record, settings.host, previous_state)
    try:
        if previous_state != record.state and settings.command:
            run_command(settings.command, message)
        url = settings.webhook or _read_url(settings.webhook_file)
        format_name = resolve_format(url, settings.webhook_format)
        if url and (
            previous_state != record.state or (expects_repeats(format_name) and record.state not in GOOD_STATES)
        ):
            post_with_retries(url, build_post(message, format_name, every_s=settings.every_s), pause=pause)
    except NotificationFailed as error:
        note(f"could not send the notification of the state {record.state}: {error}")
        return
    history.notified = record.state


def build_message(record: Record, host: str, previous_state: str) -> dict[str, Any]:
    """Return the message, with `text` for a chat and the other fields for programs.

    Args:
        host: name of the host, or HOST/CONTAINER for one of several servers.
        previous_state: the last notified state.
    """
    problems = [
        f"{evidence.check}: {evidence.message}" for evidence in record.evidence if evidence.level in ("bad", "warn")
    ]
    return {
        "text": f"{host}: {previous_state} -> {record.state}: {record.sentence}",
        "host": host,
        "state": record.state,
        "before": previous_state,
        "why": record.sentence,
        "cure": record.cure,
        "time_s": record.time_s,
        "evidence": problems,
        "healed": record.healed,
        "sandbox": record.sandbox,
    }


def run_command(argv: tuple[str, ...], message: dict[str, Any]) -> None:
    """Run the user's command without a shell, with the message on standard input and the state in its environment.

    Raises NotificationFailed.
    """
    env = {
        **os.environ,
        **{f"SPARKWRIGHT_{name.upper()}": str(message[name]) for name in ("host", "state", "before")},
    }
    try:
        completed = subprocess.run(
            list(argv),
            input=json.dumps(message).encode(),
            stdout=subprocess.DEVNULL,  # the output may be endless
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            env=env,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotificationFailed(f"{argv[0]}: {type(error).__name__}") from None
    if completed.returncode:
        raise NotificationFailed(f"{argv[0]} exited with {completed.returncode}")


def post_with_retries(url: str, message: Post, *, pause: Callable[[float], None] = time.sleep) -> None:
    """POST the message, with retries after connection errors, 429 and 5xx. Raises NotificationFailed."""
    from tenacity import (
        RetryError,
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_exponential,
    )

    retrying = Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(MAX_ATTEMPTS) | stop_after_delay(RETRY_WINDOW_S),
        wait=wait_exponential(multiplier=1, max=10),
        sleep=pause,
    )
    try:
        retrying(_post_once, url, message)
    except RetryError as error:
        last_error = error.last_attempt.exception()
        # the message of a library's exception may contain the URL
        reason = str(last_error) if isinstance(last_error, ConnectionError) else type(last_error).__name__
        raise NotificationFailed(f"the webhook at {urlsplit(url).hostname}: {reason}") from None


def _post_once(url: str, message: Post) -> None:
    try:
        response = http.request(
            "POST", url.partition("#")[0], headers=message.headers, body=message.body, timeout_s=RESPONSE_TIMEOUT_S
        )
    except InvalidRequest as error:
        raise NotificationFailed(f"the webhook {error}") from None
    except TransportError as error:
        raise ConnectionError(f"it {error}") from None
    if response.status >= 500 or response.status == 429:
        raise ConnectionError(f"it returned {response.status}")
    if response.status >= 300:
        raise NotificationFailed(f"the webhook at {urlsplit(url).hostname} returned {response.status}")


def find_problem(argv: tuple[str, ...], webhook_file: str) -> str:
    """Return why the command of notifications can't be run, or the file of their URL can't be read; empty without a problem."""
    if argv and shutil.which(argv[0]) is None:
        return f"{argv[0]} is not an executable program"
    try:
        url = _read_url(webhook_file)
    except NotificationFailed as error:
        return str(error)
    return f"{webhook_file} is empty" if webhook_file and not url else ""


def _read_url(path: str) -> str:
    """Return the URL from the first line of a file; empty without a path.

    Raises NotificationFailed if the file can't be read, or if other users can read it.
    """
    if not path:
        return ""
    file = expand_home(path)
    try:
        if file.stat().st_mode & 0o077:
            raise NotificationFailed(f"{path} is readable by others (run `chmod 600 {path}`)")
        return (bounds.read_bytes(file, MAX_URL_BYTES).decode().splitlines() or [""])[0].strip()
    except OSError as error:
        raise NotificationFailed(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotificationFailed(f"{path} is not a UTF-8 text file") from None
    except bounds.LimitExceeded as error:
        raise NotificationFailed(f"{path} {error}") from None
