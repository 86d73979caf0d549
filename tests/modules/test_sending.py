"""The end of `send_image` that talks to another host: whatever that one does, the transfer ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.modules.image import image_transfer as transfer
from tests.modules.context import RecordingContext

ARGS = transfer.SendImage.Args("sha256:1", "a/b:incoming")


def sent(monkeypatch: pytest.MonkeyPatch, home: Path, script: str) -> Any:
    """Return the outcome of sending 4 MiB to a program in the place of ssh."""
    found: list[Any] = []

    def saved(*given: Any) -> Iterator[bytes]:
        yield from (os.urandom(2**20) for _ in range(4))

    def run() -> None:
        try:
            found.append(transfer._send(ARGS, ["sh", "-c", script], RecordingContext(home)))
        except Failed as error:
            found.append(error)

    monkeypatch.setattr(transfer, "_saved", saved)
    work = threading.Thread(target=run, daemon=True)
    work.start()
    work.join(30)
    assert found, "it hangs"
    return found[0]


def test_a_host_that_talks_all_the_time_takes_the_image_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2; cat >/dev/null"
    assert sent(monkeypatch, tmp_path, script) == (4 * 2**20, "")


def test_the_last_line_of_a_refusal_is_kept_and_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = r"cat >/dev/null; head -c 1000000 /dev/zero; printf '\nno room \033[2J\n' >&2; exit 3"
    error = sent(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and "bytes: no room" in error.message and "\x1b" not in error.message


@pytest.mark.parametrize(
    ("script", "limit", "said"),
    [
        ("exec sleep 60", "SILENCE_S", "no progress for 0.5 s"),
        ("cat >/dev/null; exec sleep 60", "ENDED_S", "not finished 0.5 s after the last byte"),
    ],
    ids=["takes-nothing", "never-ends"],
)
def test_a_host_that_does_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit: str, said: str
) -> None:
    monkeypatch.setattr(transfer, limit, 0.5)
    error = sent(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and said in error.message
