"""Damaged labels with which a container describes its server, and damaged settings from such a server, are read or ignored."""

import json
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.engine import DESCRIPTION_LABEL, ENGINE_LABEL
from sparkwright.engines.log.state import FIELDS
from sparkwright.engines.openai import description
from tests.fuzz.harness import damaged_values, feed, feed_json

SECTION: dict[str, Any] = {
    "port": 8000, "health": "/health", "loading": [503, 425], "models": "/v1/models", "version": "/version",
    "settings": {"path": "/server_info", "max_model_len": "config.max_seq_len", "version": "version"},
    "metrics": {"path": "/metrics", "running": "requests_running", "heartbeat": 'steps_total{mode="decode"}'},
    "public": ["/ping"], "key": {"env": "SERVER_KEY"},
}  # fmt: skip
ANSWER: dict[str, Any] = {"config": {"max_seq_len": 4096}, "version": "1.2.3"}
METRICS = "".join(f"{name} {value}\n" for name, value in (("requests_running", 2), ('steps_total{mode="decode"}', 7)))


def check_label(label: str) -> engine.Engine:
    """Return the engine of a container with this label, after using all that a check uses of it."""
    labelled = engine.from_labels({ENGINE_LABEL: "openai", DESCRIPTION_LABEL: label})
    http, key = labelled.http, labelled.key
    assert 1 <= http.port <= 65535 and all(
        path[:1] in ("", "/") for path in (http.health_path, http.models_path, http.version_path)
    )
    assert all(400 <= status <= 599 for status in http.loading_statuses)
    http.counters(METRICS)
    if key is not None:
        assert key.mount.startswith("/run/sparkwright/")
        key.program(("serve",))
    return labelled


def test_labels() -> None:
    feed_json(lambda data: check_label(data.decode(errors="replace")), [json.loads(description.render_label(SECTION))])


def test_sections_of_recipes() -> None:
    def read(section: Any) -> None:
        if isinstance(section, dict):
            for place, mistake in description.find_mistakes(section):
                assert mistake and len(mistake) < 1000, (place, mistake[:200])

    seed = {**SECTION, "served_name": "m", "command": ["serve"], "context": 4096, "memory_gib": 8.5}
    feed(read, damaged_values([seed]))


def test_settings_from_a_server() -> None:
    http = check_label(description.render_label(SECTION)).http

    def read(answer: Any) -> None:
        settings = http.parse_settings(answer)
        assert set(settings) <= set(FIELDS)
        assert len(json.dumps(settings, allow_nan=False)) < 10_000

    feed(read, damaged_values([ANSWER]))
