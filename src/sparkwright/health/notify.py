"""Notifications of state changes, by a command and by a webhook in its receiver's format (notify_shapes.py).

A failed notification is retried at the next check. The message contains no secrets. If the webhook's URL is secret, it is in one
of the user's files (`--webhook-file`), which is read at the moment of sending and never copied.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sparkwright.health.judging.judge import WELL, is_news
from sparkwright.health.notify_shapes import Post, repeats, shape_for, shaped
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.transport import http
from sparkwright.transport.connection import InvalidRequest, TransportError
from sparkwright.trust import bounds
from sparkwright.trust.names import below_home

TRIES = 3
FOR_S = 45.0
COMMAND_S = 30.0
ANSWER_S = 10.0
URL_BYTES = 64 * 2**10


class NotTold(Exception):
    """Raised if a notification failed. The message contains no URL."""


def tell(
    record: Record,
    history: CheckHistory,
    settings: Settings,
    *,
    note: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Notify if the state differs from the last notified one and has settled. Never raises."""
    if record.busy or not is_news(history.seen):
        return
    before = history.notified
    if not before:
        history.notified = record.state
        return
    message = to_tell(record, settings.host, before)
    try:
        if before != record.state and settings.command:
            run_command(settings.command, message)
        url = settings.webhook or _from_file(settings.webhook_file)
        shape = shape_for(url, settings.webhook_format)
        if url and (before != record.state or (repeats(shape) and record.state not in WELL)):
            post(url, shaped(message, shape, every_s=settings.every_s), pause=pause)
    except NotTold as error:
        note(f"could not send the notification of {record.state}: {error}")
        return
    history.notified = record.state


def to_tell(record: Record, host: str, before: str) -> dict[str, Any]:
    """Return the message, which is short enough for a chat and complete enough for a program.

    Args:
        host: name of the host, or HOST/CONTAINER for one of several servers.
    """
    text = f"{host}: {before} -> {record.state}: {record.sentence}"
    about = {"text": text, "host": host, "state": record.state, "before": before}
    about |= {"why": record.sentence, "cure": record.cure}
    bad = [f"{evidence.check}: {evidence.message}" for evidence in record.evidence if evidence.level in ("bad", "warn")]
    return {**about, "time_s": record.time_s, "evidence": bad, "healed": record.healed, "sandbox": record.sandbox}


def run_command(argv: tuple[str, ...], message: dict[str, Any]) -> None:
    """Run the user's command without a shell, with the message on standard input and the state in its environment.

    Raises NotTold.
    """
    env = {
        **os.environ,
        **{f"SPARKWRIGHT_{name.upper()}": str(message[name]) for name in ("host", "state", "before")},
    }
    try:
        done = subprocess.run(
            list(argv),
            input=json.dumps(message).encode(),
            stdout=subprocess.DEVNULL,  # it is not used and may be endless
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_S,
            env=env,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotTold(f"{argv[0]}: {type(error).__name__}") from None
    if done.returncode:
        raise NotTold(f"{argv[0]} exited with {done.returncode}")


def post(url: str, message: Post, *, pause: Callable[[float], None] = time.sleep) -> None:
    """POST the message, with a few retries within a limited time, except after a 4xx. Raises NotTold."""
    from tenacity import (
        RetryError,
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_exponential,
    )

    tries = Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(TRIES) | stop_after_delay(FOR_S),
        wait=wait_exponential(multiplier=1, max=10),
        sleep=pause,
    )
    try:
        tries(_once, url, message)
    except RetryError as error:
        last = error.last_attempt.exception()
        raise NotTold(f"the webhook at {urlsplit(url).hostname}: {_kind(last)}") from None


def _once(url: str, message: Post) -> None:
    try:
        answer = http.request(
            "POST", url.partition("#")[0], headers=message.headers, body=message.body, timeout_s=ANSWER_S
        )
    except InvalidRequest as error:
        raise NotTold(f"the webhook {error}") from None
    except TransportError as error:
        raise ConnectionError(f"it {error}") from None
    if answer.status >= 500 or answer.status == 429:
        raise ConnectionError(f"it returned {answer.status}")
    if answer.status >= 300:
        raise NotTold(f"the webhook at {urlsplit(url).hostname} returned {answer.status}")


def _kind(error: BaseException | None) -> str:
    """Return the kind of an error in our own words, because a library's message may contain the URL."""
    return str(error) if isinstance(error, ConnectionError) else type(error).__name__


def _from_file(path: str) -> str:
    """Return the URL from the first line of the user's file. Raises NotTold if other users can read the file."""
    if not path:
        return ""
    file = below_home(path)
    try:
        if file.stat().st_mode & 0o077:
            raise NotTold(f"{path} is readable by others (run `chmod 600 {path}`)")
        return (bounds.bytes_of(file, URL_BYTES).decode().splitlines() or [""])[0].strip()
    except OSError as error:
        raise NotTold(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotTold(f"{path} is not a UTF-8 text file") from None
    except bounds.TooMuch as error:
        raise NotTold(f"{path} {error}") from None
