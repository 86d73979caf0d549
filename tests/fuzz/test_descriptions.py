"""The label with which a container describes its server, and what such a server answers, damaged: read, or taken for none."""

import json
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.engine import DESCRIPTION_LABEL, ENGINE_LABEL
from sparkwright.engines.log.state import FIELDS
from sparkwright.engines.openai import description
from tests.fuzz.harness import feed, texts, values

SECTION: dict[str, Any] = {
    "port": 8000,
    "health": "/health",
    "loading": [503, 425],
    "models": "/v1/models",
    "version": "/version",
    "settings": {"path": "/server_info", "max_model_len": "config.max_seq_len", "version": "version"},
    "metrics": {"path": "/metrics", "running": "requests_running", "heartbeat": 'steps_total{mode="decode"}'},
    "public": ["/ping"],
    "key": {"env": "SERVER_KEY"},
}
ANSWER: dict[str, Any] = {"config": {"max_seq_len": 4096}, "version": "1.2.3"}
METRICS = "".join(f"{name} {value}\n" for name, value in (("requests_running", 2), ('steps_total{mode="decode"}', 7)))


def described(label: str) -> engine.Engine:
    """The engine of a container with this label, asked for all that a check asks it."""
    found = engine.from_labels({ENGINE_LABEL: "openai", DESCRIPTION_LABEL: label})
    http, key = found.http, found.key
    assert 1 <= http.port <= 65535 and all(path[:1] in ("", "/") for path in (http.health, http.models, http.version))
    assert all(400 <= status <= 599 for status in http.loading)
    http.counters(METRICS)
    if key is not None:
        assert key.mount.startswith("/run/sparkwright/")
        key.program(("serve",))
    return found


def test_labels() -> None:
    feed(lambda data: described(data.decode(errors="replace")), texts([description.written(SECTION).encode()]))


def test_labels_as_values() -> None:
    feed(lambda value: described(json.dumps(value)), values([SECTION]))


def test_sections() -> None:
    def read(one: Any) -> None:
        if isinstance(one, dict):
            for place, why in description.mistakes(one):
                assert why and len(why) < 1000, (place, why[:200])

    feed(read, values([{**SECTION, "served_name": "m", "command": ["serve"], "context": 4096, "memory_gib": 8.5}]))


def test_settings_that_a_server_answers() -> None:
    http = described(description.written(SECTION)).http

    def read(answer: Any) -> None:
        found = http.settings_of(answer)
        assert set(found) <= set(FIELDS)
        assert len(json.dumps(found, allow_nan=False)) < 10_000

    feed(read, values([ANSWER]))
