"""Reading a model's config.json from a folder, a file or the hub, with one small request and without a client library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright.engines.model import chat_template, chat_template_tree, config_parts
from sparkwright.engines.model.architecture import Architecture, by_substrings, classify
from sparkwright.engines.vllm import architecture_support
from sparkwright.engines.vllm.prediction import block_size
from sparkwright.errors import Refused, SparkwrightError, Unreachable
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, TooLarge, TransportError
from sparkwright.trust import bounds
from sparkwright.trust.model_files import why_not_an_id
from sparkwright.trust.names import below_home
from sparkwright.visible import count

HUB = "https://huggingface.co"
TIMEOUT_S, REDIRECTS = 10, 10


def read(source: str, revision: str = "main") -> Mapping[str, Any]:
    """Return a model's config.

    The hub is HF_ENDPOINT, or huggingface.co if that is not set. HF_TOKEN is sent with the request.

    Args:
        source: a folder with a config.json, such a file, or a hub id.
        revision: revision of the hub's repository.

    Raises:
        Refused: there is no such config, or access is denied.
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
    """Return the facts in a model's chat files (see `chat_template.kept`), or None if the hub does not provide them.

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
        raise Refused(f"this is not JSON: {error}.", where=where) from error
    if not isinstance(config, dict):
        raise Refused("this is not a JSON object, which a model's config has to be.", where=where)
    return config


def _fetch(model: str, revision: str) -> bytes:
    raw = _file(model, revision, "config.json")
    if raw is None:
        raise _refusal(404, "the hub", model, revision, token=False)
    return raw


def _file(model: str, revision: str, name: str) -> bytes | None:
    """Return a small file of a model, or None if the hub has no such file."""
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    if not hub.startswith(("https://", "http://")):
        raise Refused(f"HF_ENDPOINT is {hub!r}, which is not an http address.")
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise Refused("HF_TOKEN holds characters that can't be in a token.")
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
        raise Refused(f"its {name} is not a model's: the hub {error}.", where=model) from None
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
        return Refused(message, fix=f"Request access at {hub}/{model}. {fix}")
    if code == 404:
        message = f"the hub has no config.json for {model} at {revision!r}, and there is no such folder here."
        return Refused(message, fix="Check the id's spelling and the revision.")
    return Unreachable(f"{hub} answers {code} for {model}.", fix="Try again later, or give a folder on disk.")


KINDS = {
    "recurrent": "recurrent: {0} in addition to full attention",
    "attention_free": "recurrent without any attention: {0}",
    "dense": "dense: attention only",
    "unknown": "unknown",
}


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a config as plain JSON, with null for unknown.

    `substring_rule` is the result of the substring rule alone.
    """
    found = classify(config)
    support = architecture_support.SUPPORT.get(found.name)
    return {
        "kind": found.kind,
        "mechanism": found.mechanism,
        "recurrent_layers": found.recurrent_layers,
        "layers": found.layers,
        "name": found.name,
        "model_type": found.model_type,
        "max_position_embeddings": found.max_position_embeddings,
        "trained_length": config_parts.trained_length(config),
        "prediction_layers": config_parts.prediction_layers(config),
        "evidence": [item._asdict() for item in found.evidence],
        "substring_rule": _substring_rule(config),
        "block_tokens": {dtype: block_size(config, dtype) for dtype in ("auto", "fp8")},
        "vllm": {name: getattr(support, name) for name in ("since", "until", "lacking")} if support else None,
    }


def lines(source: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts about a config as lines of text."""
    found = classify(config)
    yield f"{source}  {found.name or found.model_type or 'of no named architecture'}"
    yield _line("kind", KINDS[found.kind].format(found.mechanism))
    if found.layers:
        recurrent = "an unknown number" if found.recurrent_layers is None else found.recurrent_layers
        plain = found.kind in ("dense", "unknown")
        yield _line("layers", f"{found.layers}" if plain else f"{recurrent} of {found.layers} are recurrent")
    for label, value in zip(["because", *[""] * len(found.evidence)], found.evidence, strict=False):
        yield _line(label, f"{value.path}: {value.seen}")
    if found.max_position_embeddings:
        yield _line("length", f"{found.max_position_embeddings} tokens{_stretched(found, config)}")
    predicts = config_parts.prediction_layers(config)
    if predicts:
        yield _line(
            "predicts", f"{count(predicts, 'layer')} of multi-token prediction (speculation with the method mtp)"
        )
    own, fp8 = (block_size(config, dtype) for dtype in ("auto", "fp8"))
    if own:
        other = "its KV cache is fp8" if own == fp8 else f"{fp8} with an fp8 KV cache"
        yield _line("block", f"{own} tokens, {other} (predicted for one GPU; the engine's log is authoritative)")
    answer = _substring_rule(config)
    if answer != ("dense" if found.kind == "dense" else "unknown" if found.kind == "unknown" else "recurrent"):
        yield _line("elsewhere", f"a search for 'mamba' and similar names would have said {answer}")
    releases = architecture_support.in_words(found.name)
    if releases:
        yield _line("vLLM", releases)


def chat_lines(chat: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines about the model's chat template and sampling defaults; none if there is no template."""
    if chat and chat["template"]:
        yield from (_line(label, text) for label, text in chat_template.lines(chat))


def _stretched(found: Architecture, config: Mapping[str, Any]) -> str:
    trained, longest = config_parts.trained_length(config), found.max_position_embeddings or 0
    times = longest / trained if trained else 0
    return f" (trained on {trained}, stretched {times:g} times)" if times > 1 else ""


def _substring_rule(config: Mapping[str, Any]) -> str:
    return "recurrent" if by_substrings(config) else "dense"


def _line(label: str, message: str) -> str:
    return f"  {label:<10}{message}"
