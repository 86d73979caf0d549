"""Descriptions of servers in container labels: valid ones are read back, damaged or hostile ones are ignored."""

import json
from typing import Any

import pytest

from sparkwright.engines import engine, http
from sparkwright.engines.engine import DESCRIPTION_LABEL, ENGINE_LABEL
from sparkwright.engines.openai.description import SECTION_CHECKS
from tests.engines.openai.pretend import DESCRIBED, SECTION

DEFAULT_HTTP = engine.get_engine("openai").http


def parse_label(**changes: Any) -> engine.Engine:
    """Return the engine of a container whose description has these changes."""
    description = json.dumps({**DESCRIBED.description, **changes})
    return engine.from_labels({ENGINE_LABEL: "openai", DESCRIPTION_LABEL: description})


def test_the_schema_has_every_key_of_a_section() -> None:
    assert set(DESCRIBED.flags.properties()) == set(SECTION_CHECKS)


def test_container_labels_describe_the_engine_of_the_recipe() -> None:
    labelled = engine.from_labels(DESCRIBED.labels)
    assert labelled == DESCRIBED
    assert (labelled.http.port, labelled.http.health_path, labelled.http.loading_statuses) == (
        9000,
        "/v1/health/ready",
        (502, 503),
    )
    assert (labelled.http.models_path, labelled.http.metrics_path) == ("/openai/models", "/stats/prom")
    assert labelled.http.roles[http.HEARTBEAT] == http.MetricSample("steps_total", 'mode="decode"')
    assert set(DESCRIBED.labels) == {ENGINE_LABEL, DESCRIPTION_LABEL}
    assert "served_name" not in labelled.description, "only what checks need is stored"


@pytest.mark.parametrize(
    "changes",
    [
        {"health": "http://other.host/health"},
        {"health": "/a/../b\r\nHost: x"},
        {"health": "//other.host"},
        {"models": "/v1/models?x=$(id)"},
        {"port": 70000},
        {"port": True},
        {"loading": [200]},
        {"metrics": {"path": "/m", "running": "a b"}},
        {"metrics": {"path": "/m", "running": 'a{b="c"} 1\nx'}},
        {"metrics": {"path": "/m", "temperature": "t"}},
        {"metrics": {"running": "r"}},
        {"settings": {"path": "/p", "failure": "x"}},
        {"key": {"env": "A;rm -rf /"}},
        {"key": {"env": "A", "file_flag": "b"}},
        {"command": ["x"]},
        {"public": ["/x"] * 40},
    ],
    ids=str,
)
def test_a_label_that_no_recipe_could_have_is_ignored(changes: dict[str, Any]) -> None:
    labelled = parse_label(**changes)
    assert labelled.description == {}
    assert (labelled.http.health_path, labelled.http.port) == (DEFAULT_HTTP.health_path, DEFAULT_HTTP.port)
    assert labelled.http.metrics_path == ""
    assert labelled.key is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"port": 1' + " " * 9000 + "}", "[" * 8000], ids=len)
def test_a_malformed_label_is_ignored(text: str) -> None:
    labelled = engine.from_labels({ENGINE_LABEL: "openai", DESCRIPTION_LABEL: text})
    assert (labelled.name, labelled.description, labelled.http.health_path) == ("openai", {}, "/health")


def test_a_description_on_a_container_of_another_engine_is_ignored() -> None:
    labelled = engine.from_labels({ENGINE_LABEL: "llama_cpp", DESCRIPTION_LABEL: DESCRIBED.description_json})
    assert labelled == engine.get_engine("llama_cpp")
    assert engine.from_labels({DESCRIPTION_LABEL: DESCRIBED.description_json}) == engine.get_engine("vllm")


def test_missing_keys_are_unknown() -> None:
    assert (
        DEFAULT_HTTP.metrics_path == DEFAULT_HTTP.version_path == DEFAULT_HTTP.settings_path == ""
        and not DEFAULT_HTTP.roles
    )
    assert engine.get_engine("openai").advice.memory({"served_name": "m"}, {}).bytes == 0
    assert engine.get_engine("openai").advice.memory({"memory_gib": 2}, {}).bytes == 2 * 2**30


def test_a_setting_is_read_only_from_its_described_path() -> None:
    info = {"limits": {"max_seq_len": 4096}, "kv": {"a": 1}, "max_model_len": 7}
    assert DESCRIBED.http.parse_settings(info) == {"max_model_len": 4096}
    assert DESCRIBED.http.parse_settings([1]) == {}
    for number in (float("nan"), float("inf"), 10**400):
        assert DESCRIBED.http.parse_settings({"limits": {"max_seq_len": number}}) == {}


def test_the_key_comes_from_a_file_flag_or_variable() -> None:
    by_flag, by_variable = (
        engine.get_engine("openai").with_section({**SECTION, "key": key}).key
        for key in ({"file_flag": "api-key-file"}, {"env": "SERVER_KEY"})
    )
    assert by_flag and by_variable
    assert by_flag.words == ("--api-key-file", "/run/sparkwright/engine.key")
    assert by_flag.program(("serve",)) == ("serve",)
    assert by_variable.words == ()
    shell = by_variable.program(("serve",))
    assert shell and shell[:2] == ("sh", "-c") and shell[-1] == "serve"
    assert "SERVER_KEY" in shell[2] and by_variable.mount in shell[2]
