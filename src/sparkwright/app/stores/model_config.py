"""Read a model's config.json from a folder, a file or the hub (without a client library), and report the facts in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkwright import units
from sparkwright.engines.model import chat_template, chat_template_tree, config_parts
from sparkwright.engines.model.architecture import Architecture, classify, has_recurrent_substring
from sparkwright.engines.vllm import architecture_support
from sparkwright.engines.vllm.prediction import block_size
from sparkwright.errors import Refused, SparkwrightError, Unreachable
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, ProxyFailed, TooLarge, TransportError
from sparkwright.trust import bounds
from sparkwright.trust.model_files import check_model_id
from sparkwright.trust.names import expand_home
from sparkwright.visible import format_count

HUB_URL = "https://huggingface.co"
TIMEOUT_S, MAX_REDIRECTS = 10, 10
#: descriptions of `Architecture.kind`; {0} is the mechanism
KIND_DESCRIPTIONS = {
    "recurrent": "recurrent: {0} in addition to full attention",
    "attention_free": "recurrent without any attention: {0}",
    "dense": "dense: attention only",
    "unknown": "unknown",
}


def load_config(source: str, revision: str = "main") -> Mapping[str, Any]:
    """Return a model's config.

    The hub is HF_ENDPOINT, or huggingface.co if that is not set. HF_TOKEN is sent with the request.

    Args:
        source: a folder with a config.json, the file itself, or a hub id.
        revision: revision of the hub's repository.

    Raises:
        Refused: the config does not exist or is invalid, or access is denied.
        Unreachable: the hub does not answer within 10 s.
    """
    path = expand_home(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            return parse_config(bounds.read_bytes(path, bounds.MAX_CONFIG_BYTES), str(path))
        except bounds.LimitExceeded as error:
            raise Refused(f"this is not the config of a model: it {error}.", where=str(path)) from None
        except OSError as error:
            raise Refused(f"can't be read: {error.strerror}.", where=str(path)) from error
    if "/" not in source or check_model_id(source) or Path(source).is_dir():
        fix = "Pass a folder with a config.json, the file itself, or a hub id (org/name)."
        raise Refused(f"{path} does not exist.", fix=fix)
    return parse_config(_fetch_config(source, revision), source)


def load_chat(source: str, revision: str = "main") -> dict[str, Any] | None:
    """Return the facts in a model's chat files (see `chat_template.validate_entry`), or None if the hub does not provide them.

    Args:
        source: as for `load_config`; for a config.json file, its folder is searched.
        revision: as for `load_config`.
    """
    path = expand_home(source)
    folder = path if path.is_dir() else path.parent if path.is_file() else None

    def read_text(name: str) -> str | None:
        try:
            raw = (
                bounds.read_bytes(folder / name, bounds.MAX_CONFIG_BYTES)
                if folder
                else _fetch_file(source, revision, name)
            )
        except (bounds.LimitExceeded, OSError):
            return None
        return raw.decode(errors="replace") if raw is not None else None

    try:
        return chat_template_tree.read_chat_files(read_text)
    except SparkwrightError:
        return None


def parse_config(raw: bytes, where: str) -> Mapping[str, Any]:
    """Parse a config. Raises Refused if it is invalid."""
    try:
        config = bounds.parse_json(raw, max_bytes=bounds.MAX_CONFIG_BYTES, max_depth=bounds.MAX_CONFIG_DEPTH)
    except bounds.LimitExceeded as error:
        raise Refused(f"this is not the config of a model: it {error}.", where=where) from None
    except ValueError as error:
        raise Refused(f"this is not JSON: {error}.", where=where) from error
    if not isinstance(config, dict):
        raise Refused("the config of a model must be a JSON object.", where=where)
    return config


def _fetch_config(model: str, revision: str) -> bytes:
    raw = _fetch_file(model, revision, "config.json")
    if raw is None:
        raise _status_error(404, "the hub", model, revision, has_token=False)
    return raw


def _fetch_file(model: str, revision: str, name: str) -> bytes | None:
    """Return a small file of a model, or None if the hub has no such file."""
    hub_url = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB_URL
    if not hub_url.startswith(("https://", "http://")):
        raise Refused(f"HF_ENDPOINT must be an http(s) URL, got {hub_url!r}.")
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise Refused("HF_TOKEN contains characters that are invalid in a token.")
    try:
        answer = http.request(
            "GET",
            f"{hub_url}/{model}/resolve/{quote(revision, safe='')}/{name}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout_s=TIMEOUT_S,
            max_bytes=bounds.MAX_CONFIG_BYTES,
            max_redirects=MAX_REDIRECTS,
            route=http.Route(proxies=True),
        )
    except TooLarge as error:
        raise Refused(f"{name} is too large for a model's {name}: the hub {error}.", where=model) from None
    except TransportError as error:
        cause = error.error.strerror if isinstance(error, ConnectFailed) and error.error else ""
        reason = f"does not answer: {cause}" if cause else error
        is_proxy = isinstance(error, ProxyFailed)
        fix = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY." if is_proxy else "Pass a folder on disk instead."
        raise Unreachable(f"{hub_url} {reason}.", fix=fix) from None
    if answer.status == 404:
        return None
    if answer.status != 200:
        pause_s = http.parse_requested_pause(answer.headers)
        raise _status_error(answer.status, hub_url, model, revision, has_token=bool(token), pause_s=pause_s)
    return answer.body


def _status_error(
    code: int, hub: str, model: str, revision: str, *, has_token: bool, pause_s: float = 0.0
) -> SparkwrightError:
    if code in (401, 403):
        fix = "HF_TOKEN may belong to an account without access." if has_token else "If you have access, set HF_TOKEN."
        message = f"the hub denies access to {model} ({code}): it is gated, private, or does not exist."
        return Refused(message, fix=f"Request access at {hub}/{model}. {fix}")
    if code == 404:
        message = f"the hub has no config.json for {model} at {revision!r}, and there is no such folder here."
        return Refused(message, fix="Check the id's spelling and the revision.")
    when = f"in {units.format_rough_duration(pause_s)}" if pause_s else "later"
    return Unreachable(f"{hub} answered {code} for {model}.", fix=f"Try again {when}, or pass a folder on disk.")


def config_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a config as plain JSON, with null for unknown.

    `substring_rule` is the result of a search for names such as mamba, for comparison.
    """
    architecture = classify(config)
    support = architecture_support.SUPPORT.get(architecture.name)
    return {
        "kind": architecture.kind,
        "mechanism": architecture.mechanism,
        "recurrent_layers": architecture.recurrent_layers,
        "layers": architecture.layers,
        "name": architecture.name,
        "model_type": architecture.model_type,
        "max_position_embeddings": architecture.max_position_embeddings,
        "trained_length": config_parts.trained_length(config),
        "prediction_layers": config_parts.count_prediction_layers(config),
        "evidence": [{"path": item.path, "seen": item.detail} for item in architecture.evidence],
        "substring_rule": _substring_rule(config),
        "block_tokens": {dtype: block_size(config, dtype) for dtype in ("auto", "fp8")},
        "vllm": {"since": support.since, "until": support.until, "lacking": support.newest_without}
        if support
        else None,
    }


def format_facts(source: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts about a config as lines of text."""
    architecture = classify(config)
    yield f"{source}  {architecture.name or architecture.model_type or 'unnamed architecture'}"
    yield _format_line("kind", KIND_DESCRIPTIONS[architecture.kind].format(architecture.mechanism))
    if architecture.layers:
        recurrent_count = (
            "an unknown number" if architecture.recurrent_layers is None else architecture.recurrent_layers
        )
        is_plain = architecture.kind in ("dense", "unknown")
        yield _format_line(
            "layers",
            f"{architecture.layers}" if is_plain else f"{recurrent_count} of {architecture.layers} are recurrent",
        )
    for label, evidence in zip(["because", *[""] * len(architecture.evidence)], architecture.evidence, strict=False):
        yield _format_line(label, f"{evidence.path}: {evidence.detail}")
    if architecture.max_position_embeddings:
        yield _format_line(
            "length", f"{architecture.max_position_embeddings} tokens{_describe_extension(architecture, config)}"
        )
    prediction_layers = config_parts.count_prediction_layers(config)
    if prediction_layers:
        yield _format_line(
            "predicts",
            f"{format_count(prediction_layers, 'layer')} of multi-token prediction (speculation with the method mtp)",
        )
    block_tokens, fp8_block_tokens = (block_size(config, dtype) for dtype in ("auto", "fp8"))
    if block_tokens:
        fp8_note = (
            "its KV cache is fp8" if block_tokens == fp8_block_tokens else f"{fp8_block_tokens} with an fp8 KV cache"
        )
        yield _format_line(
            "block", f"{block_tokens} tokens, {fp8_note} (predicted for one GPU; the engine's log is authoritative)"
        )
    rule_answer = _substring_rule(config)
    if rule_answer != (
        "dense" if architecture.kind == "dense" else "unknown" if architecture.kind == "unknown" else "recurrent"
    ):
        yield _format_line("elsewhere", f"a search for 'mamba' and similar names would return {rule_answer}")
    releases = architecture_support.describe_support(architecture.name)
    if releases:
        yield _format_line("vLLM", releases)


def format_chat(chat: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines about the model's chat template and sampling defaults; none if there is no template."""
    if chat and chat["template"]:
        yield from (_format_line(label, text) for label, text in chat_template.fact_lines(chat))


def _describe_extension(architecture: Architecture, config: Mapping[str, Any]) -> str:
    trained_length, max_length = config_parts.trained_length(config), architecture.max_position_embeddings or 0
    factor = max_length / trained_length if trained_length else 0
    return f" (trained on {trained_length}, extended by a factor of {factor:g})" if factor > 1 else ""


def _substring_rule(config: Mapping[str, Any]) -> str:
    return "recurrent" if has_recurrent_substring(config) else "dense"


def _format_line(label: str, message: str) -> str:
    return f"  {label:<10}{message}"
