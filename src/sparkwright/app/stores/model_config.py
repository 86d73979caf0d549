"""Reading of a model's config.json from a folder, a file, or the hub: one small request, no weights, no client library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.engines.model import chat_template_tree
from sparkwright.errors import Refused, SparkwrightError, Unreachable
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, TooLarge, TransportError
from sparkwright.trust import bounds
from sparkwright.trust.model_files import why_not_an_id
from sparkwright.trust.names import below_home

HUB = "https://huggingface.co"
TIMEOUT_S, REDIRECTS = 10, 10


def read(source: str, revision: str = "main") -> Mapping[str, Any]:
    """Return a model's config.

    The hub is HF_ENDPOINT, else huggingface.co; HF_TOKEN is sent with the request.

    Args:
        source: a folder with a config.json, such a file, or a hub id.
        revision: of the hub's repository.

    Raises:
        Refused: there is no such config, or it may not be read.
        Unreachable: the hub does not answer within 10 s.
    """
    path = below_home(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            return parse(bounds.bytes_of(path, bounds.CONFIG_BYTES), str(path))
        except bounds.TooMuch as error:
            raise Refused(f"this is not the config of a model: it {error}.", where=str(path)) from None
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}.", where=str(path)) from error
    if "/" not in source or why_not_an_id(source) or Path(source).is_dir():
        fix = "Give a folder with a config.json, such a file, or a hub id (org/name)."
        raise Refused(f"there is no {path}.", fix=fix)
    return parse(_fetch(source, revision), source)


def read_chat(source: str, revision: str = "main") -> dict[str, Any] | None:
    """Return the facts in a model's chat files, see chat_template.kept; None if the hub does not provide them.

    Args:
        source: as for `read`; for a config.json, its folder is used.
        revision: as for `read`.
    """
    path = below_home(source)
    folder = path if path.is_dir() else path.parent if path.is_file() else None

    def text_of(name: str) -> str | None:
        try:
            raw = bounds.bytes_of(folder / name, bounds.CONFIG_BYTES) if folder else _file(source, revision, name)
        except (bounds.TooMuch, OSError):
            return None
        return raw.decode(errors="replace") if raw is not None else None

    try:
        return chat_template_tree.of_files(text_of)
    except SparkwrightError:
        return None


def parse(raw: bytes, where: str) -> Mapping[str, Any]:
    """Parse a config. Raises Refused if it is invalid."""
    try:
        config = bounds.json_of(raw, most_bytes=bounds.CONFIG_BYTES, depth=bounds.CONFIG_DEPTH)
    except bounds.TooMuch as error:
        raise Refused(f"this is not the config of a model: it {error}.", where=where) from None
    except ValueError as error:
        raise Refused(f"this is no JSON: {error}.", where=where) from error
    if not isinstance(config, dict):
        raise Refused("a model's config is a JSON object, this is something else.", where=where)
    return config


def _fetch(model: str, revision: str) -> bytes:
    raw = _file(model, revision, "config.json")
    if raw is None:
        raise _refusal(404, "the hub", model, revision, token=False)
    return raw


def _file(model: str, revision: str, name: str) -> bytes | None:
    """Return a small file of a model; None if the hub has none of this name."""
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    if not hub.startswith(("https://", "http://")):
        raise Refused(f"HF_ENDPOINT is {hub!r}, which is no http address.")
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise Refused("HF_TOKEN holds characters that no token has.")
    try:
        answer = http.request(
            "GET",
            f"{hub}/{model}/resolve/{quote(revision, safe='')}/{name}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout_s=TIMEOUT_S,
            most_bytes=bounds.CONFIG_BYTES,
            redirects=REDIRECTS,
            route=http.Route(proxies=True),
        )
    except TooLarge as error:
        raise Refused(f"its {name} is not that of a model: the hub {error}.", where=model) from None
    except TransportError as error:
        cause = error.error.strerror if isinstance(error, ConnectFailed) and error.error else ""
        reason = f"does not answer: {cause}" if cause else error
        raise Unreachable(f"{hub} {reason}.", fix="A folder on disk works without it.") from None
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise _refusal(answer.status, hub, model, revision, bool(token))
    return answer.body


def _refusal(code: int, hub: str, model: str, revision: str, token: bool) -> SparkwrightError:
    if code in (401, 403):
        fix = "Is HF_TOKEN's account allowed to read it?" if token else "If you may read it, set HF_TOKEN."
        message = f"the hub does not show {model} ({code}): it is gated, private, or does not exist."
        return Refused(message, fix=f"Access is asked for at {hub}/{model}. {fix}")
    if code == 404:
        message = f"the hub has no config.json of {model} at {revision!r}, and there is no such folder here."
        return Refused(message, fix="Look at the id's spelling and the revision.")
    return Unreachable(f"{hub} answers {code} for {model}.", fix="Try again later, or give a folder on disk.")
