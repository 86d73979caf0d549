"""The HTTP interface of a custom server; keys that its description lacks have the defaults of OpenAI's API."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from sparkwright.engines import api_paths
from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.http import Http, MetricSample, ServerKey
from sparkwright.engines.openai import description
from sparkwright.trust.bounds import MAX_COUNT

PORT = 8000
DEFAULT_HEALTH_PATH = "/health"
#: HTTP statuses that mean "still loading"
DEFAULT_LOADING_STATUSES = (503,)
MAX_TEXT_CHARS = 200
#: path of the file with the API key in the container
KEY_FILE_MOUNT = "/run/sparkwright/engine.key"


def described_http(label: str) -> Http:
    """Return the HTTP interface for a container label with a description.

    Metrics, settings and version are unknown if the description has no path for them.
    """
    section = description.parse_label(label)
    metrics, settings = dict(section.get("metrics") or {}), dict(section.get("settings") or {})
    health = section.get("health", DEFAULT_HEALTH_PATH)
    return Http(
        port=section.get("port", PORT),
        metrics_path=metrics.pop("path", ""),
        roles={role: _parse_sample(name) for role, name in metrics.items()},
        health_path=health,
        loading_statuses=tuple(section.get("loading", DEFAULT_LOADING_STATUSES)),
        models_path=section.get("models", "/v1/models"),
        version_path=section.get("version", ""),
        settings_path=settings.pop("path", ""),
        parse_settings=functools.partial(_read_settings, settings),
        measurement_keys={
            "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "timings_per_token": True,
        },
        no_thinking_keys={"chat_template_kwargs": {"enable_thinking": False}},
        removable_keys=(
            ("timings_per_token",),
            ("chat_template_kwargs",),
            ("ignore_eos",),
            ("stream_options",),
            ("logprobs", "top_logprobs"),
        ),
        token_count_keys=(("usage", "completion_tokens"), ("timings", "predicted_n")),
        public_paths=frozenset((health, *section.get("public", ()))),
        speculation_prefixes=("--speculative-", "--spec-"),
        key_variable=(section.get("key") or {}).get("env", ""),
        paths=api_paths.merge_paths([api_paths.OPENAI_PATHS, map(_parse_path, section.get("paths", ()))]),
    )


def _parse_path(entry: Any) -> ApiPath:
    if isinstance(entry, str):
        return ApiPath(entry)
    return ApiPath(entry["path"], model_location=entry.get("model", "json"))


def _parse_sample(name: str) -> MetricSample:
    metric, _, label = name.rstrip("}").partition("{")
    return MetricSample(metric, label)


def _read_settings(keys: Mapping[str, str], answer: Any) -> dict[str, Any]:
    """Return the settings in a response, without missing and nested values. keys: path of each setting's value, by setting."""
    values = {name: _find_value(answer, path) for name, path in keys.items()}
    return {name: value for name, value in values.items() if value is not None}


def _find_value(answer: Any, path: str) -> bool | int | float | str | None:
    for key in path.split("."):
        answer = answer.get(key) if isinstance(answer, dict) else None
    if isinstance(answer, str):
        return answer if 0 < len(answer) <= MAX_TEXT_CHARS else None
    return answer if isinstance(answer, bool | int | float) and abs(answer) <= MAX_COUNT else None  # false for NaN


def described_server_key(label: str) -> ServerKey | None:
    """Return the server key for a container label with a description; None if the description has no `key`.

    The key is in a file, so that `docker inspect` and process lists do not show it. Either a flag names the file, or a shell in the
    container sets a variable to the file's contents.
    """
    key = description.parse_label(label).get("key")
    if not key:
        return None
    return ServerKey(
        flag="api-key",
        variable=key.get("env", ""),
        option=key.get("file_flag", ""),
        mount=KEY_FILE_MOUNT,
        conflict_reason="this file contains the key",
    )
