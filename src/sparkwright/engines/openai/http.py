"""The HTTP interface of a described server; for what the description leaves out, the defaults of OpenAI's API apply."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from sparkwright.engines import api_paths
from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.http import Http, Sample, ServerKey
from sparkwright.engines.openai import description
from sparkwright.trust.bounds import MOST_NUMBER

PORT = 8000
HEALTH = "/health"
#: statuses for "still loading"
LOADING = (503,)
TEXT_CHARS = 200


def described_http(label: str) -> Http:
    """Return the HTTP interface of a description.

    label: the description. Without a path of metrics nothing is counted; without one of settings or version none is known.
    """
    given = description.read(label)
    metrics, settings = dict(given.get("metrics") or {}), dict(given.get("settings") or {})
    health = given.get("health", HEALTH)
    return Http(
        port=given.get("port", PORT),
        metrics=metrics.pop("path", ""),
        roles={role: _sample(name) for role, name in metrics.items()},
        health=health,
        loading=tuple(given.get("loading", LOADING)),
        models=given.get("models", "/v1/models"),
        version=given.get("version", ""),
        settings=settings.pop("path", ""),
        settings_of=functools.partial(_settings, settings),
        measured={
            "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "timings_per_token": True,
        },
        plain={"chat_template_kwargs": {"enable_thinking": False}},
        removable=(
            ("timings_per_token",),
            ("chat_template_kwargs",),
            ("ignore_eos",),
            ("stream_options",),
            ("logprobs", "top_logprobs"),
        ),
        counted=(("usage", "completion_tokens"), ("timings", "predicted_n")),
        public=frozenset((health, *given.get("public", ()))),
        speculation=("--speculative-", "--spec-"),
        key_variable=(given.get("key") or {}).get("env", ""),
        paths=api_paths.union([api_paths.OPENAI, map(_path, given.get("paths", ()))]),
    )


def _path(given: Any) -> ApiPath:
    """Return a path that a recipe adds: its name, or a mapping with the place of the model."""
    if isinstance(given, str):
        return ApiPath(given)
    return ApiPath(given["path"], model=given.get("model", "json"))


def _sample(name: str) -> Sample:
    """Return a metric by its name, with the label that its line must hold."""
    metric, _, label = name.rstrip("}").partition("{")
    return Sample(metric, label)


def _settings(keys: Mapping[str, str], answer: Any) -> dict[str, Any]:
    """Return the settings at the described places of the answer; missing and nested values are unknown."""
    found = {name: _at(answer, place) for name, place in keys.items()}
    return {name: value for name, value in found.items() if value is not None}


def _at(answer: Any, place: str) -> bool | int | float | str | None:
    for key in place.split("."):
        answer = answer.get(key) if isinstance(answer, dict) else None
    if isinstance(answer, str):
        return answer if 0 < len(answer) <= TEXT_CHARS else None
    return answer if isinstance(answer, bool | int | float) and abs(answer) <= MOST_NUMBER else None  # NaN is not


# The API key of a described server: through a flag that names a file, or a variable that a shell in its container
# sets from the file, so that neither `docker inspect` nor a list of processes shows it.

#: path of the file in the container
MOUNT = "/run/sparkwright/engine.key"


def described_server_key(label: str) -> ServerKey | None:
    """Return the key file of a description; None if the description has none."""
    given = description.read(label).get("key")
    if not given:
        return None
    return ServerKey(
        flag="api-key",
        variable=given.get("env", ""),
        option=given.get("file_flag", ""),
        mount=MOUNT,
        alone="this file holds the key",
    )
