"""Findings about recipes for SGLang, chunked prefill, and the settings and memory that follow from its flags."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.advice import EXPECTED_PREFILL_RULE, ServerRequest
from sparkwright.engines.sglang import advice, flags
from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.engine_settings import resolve_settings

TOP = Path(__file__).parents[3]
CONFIGS = TOP / "tests/data/configs"
IMAGE = "lmsysorg/sglang:v0.5.23"
GOOD: dict[str, Any] = {"mem-fraction-static": 0.85, "sleep-on-idle": True}
EXAMPLE = "examples/qwen3.8-27b-sglang"


def check_flags(flag_values: dict[str, Any], version: str | None = "0.5.23", **request: Any) -> dict[str, str]:
    """Return rule names with the severity of their findings."""
    checked_request = ServerRequest(flag_values, **{"image": IMAGE, **request})
    return {item.rule: item.severity for item in advice.check(checked_request, {}, advice.version(version))}


@pytest.mark.parametrize(
    ("changes", "rule", "severity"),
    [
        ({"max-model-len": 8192}, "unknown-flag", "error"),
        ({"nonsense": 1}, "unknown-flag", "error"),
        ({"context-length": "128q"}, "flag-value", "error"),
        ({"mem-fraction-static": None}, "memory-unset", "warning"),
        ({"sleep-on-idle": None}, "idle-spin", "info"),
        ({"tokenizer-path": "org/other"}, "downloads", "error"),
        ({"speculative-draft-model": "org/draft"}, "downloads", "error"),
        ({"lora-paths": ["sql=org/sql-lora"]}, "downloads", "error"),
        ({"lora-paths": ["org/sql-lora"]}, "downloads", "error"),
        ({"lora-paths": ['{"lora_name": "sql", "lora_path": "org/sql-lora"}']}, "downloads", "error"),
        ({"admin_api_key": "x"}, "api-key-in-arguments", "error"),
        ({"enable-metrics": False}, "no-metrics", "warning"),
        ({"host": "127.0.0.1"}, "out-of-reach", "error"),
        ({"ssl-certfile": "/c.pem"}, "out-of-reach", "error"),
    ],
)
def test_each_mistake_has_exactly_one_finding(changes: dict[str, Any], rule: str, severity: str) -> None:
    assert check_flags(flags.normalize(GOOD | changes)) == {rule: severity}


@pytest.mark.parametrize(
    ("request_fields", "findings"),
    [
        ({}, {}),
        ({"published_port": 30000}, {}),
        ({"published_port": 8000}, {"out-of-reach": "error"}),
        ({"open_to_network": True}, {"open-to-network": "warning"}),
        ({"image": "lmsysorg/sglang:v0.5.19-cu129"}, {"image-kernels": "warning"}),
        ({"image": "lmsysorg/sglang:v0.5.10.post1"}, {"image-kernels": "warning"}),
        ({"image": "lmsysorg/sglang:v0.5.10.post1-cu130"}, {}),
        ({"image": "lmsysorg/sglang:v0.5.11"}, {}),
        ({"image": "lmsysorg/sglang:latest-cu130"}, {"moving-tag": "info"}),
        ({"image": "lmsysorg/sglang"}, {"moving-tag": "info"}),
        ({"image": "lmsysorg/sglang-other:v1"}, {}),
        ({"image": "someone/sglang:latest"}, {}),
    ],
)
def test_findings_depend_on_port_and_image(request_fields: dict[str, Any], findings: dict[str, str]) -> None:
    assert check_flags(GOOD, **request_fields) == findings


def test_flags_without_findings() -> None:
    assert check_flags({"mem-fraction-static": 0.85}, platform="ascend") == {}
    assert check_flags(GOOD | {"speculative-draft-model-path": "/models/draft"}) == {}
    assert check_flags(GOOD | {"lora-paths": ["sql=/adapters/sql"]}) == {}


def test_a_context_longer_than_the_model_allows_is_refused() -> None:
    def check_context(model: dict[str, Any], **request: Any) -> dict[str, str]:
        options = ServerRequest(GOOD | {"context-length": 200000}, image=IMAGE, **request)
        return {item.rule: item.severity for item in advice.check(options, model, advice.version("0.5.23"))}

    assert check_context({"max_position_embeddings": 131072}) == {"model-length": "error"}
    assert check_context({"max_position_embeddings": 262144}) == check_context({}) == {}
    overwrite = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert check_context({"max_position_embeddings": 131072}, env=overwrite) == {"model-length": "warning"}


def test_a_release_newer_than_the_tables_is_reported() -> None:
    assert check_flags(GOOD, "0.6.0") == {"newer-release": "info"}
    assert check_flags(GOOD, None) == {}


@pytest.mark.parametrize(("version", "severity"), [("0.5.23", "error"), ("0.5.24", "warning"), (None, "warning")])
def test_an_unknown_flag_is_an_error_only_in_a_known_release(version: str | None, severity: str) -> None:
    newer = {"newer-release": "info"} if version == "0.5.24" else {}
    assert check_flags(GOOD | {"of-tomorrow": 1}, version) == {"unknown-flag": severity, **newer}


def test_the_options_of_the_image_outrank_the_table() -> None:
    options = ServerRequest(GOOD | {"of-tomorrow": 1}, image=IMAGE)
    listed = {*GOOD, "of-tomorrow"}
    assert advice.check(options, {}, None, listed) == []
    (gone,) = advice.check(options, {}, None, listed - {"sleep-on-idle"})
    assert (gone.rule, gone.severity, gone.flag) == ("unknown-flag", "error", "sleep-on-idle")


def test_chunked_prefill_is_disabled_by_its_size() -> None:
    decided = advice.decide_chunked_prefill(
        ServerRequest(GOOD | {"chunked-prefill-size": 2048}), {}, None, "disabled", "refuse"
    )
    assert (decided.expected, decided.finding) == ("disabled", None)
    assert flags.argv(decided.flags)[-2:] == ("--chunked-prefill-size", "-1")
    refused = advice.decide_chunked_prefill(
        ServerRequest({"chunked-prefill-size": -1}), {}, None, "enabled", "refuse"
    ).finding
    assert refused is not None and (refused.severity, refused.rule) == ("error", EXPECTED_PREFILL_RULE)
    defaults = advice.decide_chunked_prefill(ServerRequest(GOOD), {}, None, "enabled", "refuse")
    assert (defaults.expected, defaults.finding, dict(defaults.flags)) == ("enabled", None, GOOD)
    assert advice.chunked_prefill_variants({"chunked-prefill-size": 2048}, {}) == (
        {"chunked-prefill-size": 2048},
        {"chunked-prefill-size": -1},
    )


def test_settings_and_memory_follow_from_flags() -> None:
    own = advice.effective_settings(
        ServerRequest(GOOD | {"chunked-prefill-size": "2k", "max-running-requests": 8}), {}, None
    )
    assert (own.chunked_prefill, own.prefix_caching, own.budget, own.max_num_seqs) == (True, True, 2000, 8)
    assert own.memory_utilization == advice.memory(GOOD, {}).share == 0.85
    off = advice.effective_settings(ServerRequest({"chunked-prefill-size": -1, "disable-radix-cache": True}), {}, None)
    assert (off.chunked_prefill, off.prefix_caching, off.budget) == (False, False, None)
    left = advice.effective_settings(ServerRequest({}), {}, None)
    assert (left.chunked_prefill, left.memory_utilization) == (None, None)
    assert advice.memory({}, {}).share == 0


@pytest.mark.parametrize(
    ("flags", "gib"),
    [
        ({}, 13.0),
        ({"chunked-prefill-size": 2048}, 4.0),
        ({"chunked-prefill-size": 2048, "disable-cuda-graph": True}, 3.5),
        ({"chunked-prefill-size": -1}, 25.0),
        ({"chunked-prefill-size": -1, "max-prefill-tokens": 4096}, 7.0),
    ],
)
def test_memory_for_computation_is_outside_its_share(flags: dict[str, Any], gib: float) -> None:
    """0.5.23, arg_groups/memory_hook.py: 512 MiB, 1.5 MiB per token computed at once, 2 MiB per request of the largest graph."""
    memory = advice.memory({"mem-fraction-static": 0.5, **flags}, {})
    assert memory.bytes / 2**30 == gib and memory.engine_bytes(100 * 2**30) == (50 + gib) * 2**30


@pytest.mark.parametrize(
    ("flags", "weights_gb"),
    [
        ({"ple-offload-embedding": True, "ple-offload-backend": "file"}, 83.8),
        ({"ple-offload-embedding": True, "ple-offload-backend": "cpu"}, 135.0),  # CPU and GPU share the memory
        ({"ple-offload-backend": "file"}, 135.0),
    ],
)
def test_an_embedding_table_that_stays_in_a_file_is_not_counted(flags: dict[str, Any], weights_gb: float) -> None:
    """48 GiB of Qwen3.8-Flash-Next: sgl-project/sglang #37995."""
    config = json.loads((CONFIGS / "qwen3.8-flash-next.json").read_text())
    files = [{"path": "model-1-of-1.safetensors", "size_bytes": 135_000_000_000}]
    memory = advice.memory(
        {"mem-fraction-static": 0.8, **flags}, {"files": files, "config": advice.relevant_config(config)}
    )
    assert memory.weights_bytes / 1e9 == pytest.approx(weights_gb)


@pytest.mark.parametrize(
    ("text", "release"),
    [("0.5.23", "0.5.23"), ("v0.5.23-cu130", "0.5.23"), ("0.5.10.post1", "0.5.10.post1"), ("latest-cu130", None), (None, None)],
)  # fmt: skip
def test_a_tag_is_parsed_as_a_version(text: str | None, release: str | None) -> None:
    assert (str(advice.version(text)) if advice.version(text) else None) == release


def test_the_example_recipe_passes_lint_and_renders_its_server() -> None:
    loaded_recipe = recipe.load(TOP, EXAMPLE)
    for version in (None, advice.version(loaded_recipe.image)):
        assert resolve_settings(loaded_recipe, {}, model={}, version=version).findings == ()
    names = recipe.scope(Host("s", "s"), "ops", loaded_recipe, {"image": None, "model": None})
    assert names["container"]["entrypoint"] == ("sglang", "serve")
    assert names["container"]["command"][:7] == (
        *("--model-path", "/models/qwen38", "--host", "0.0.0.0", "--port", "30000"),
        "--enable-metrics",
    )
    assert names["container"]["labels"] == {"sparkwright.engine": "sglang"}
    assert names["memory_utilization"] == 0.7
    assert names["served_name"] == "qwen3.8-27b"


def test_a_server_key_is_refused_because_it_would_be_logged(tmp_path: Path) -> None:
    text = (TOP / f"recipes/{EXAMPLE}.yml").read_text().replace("publish: loopback", "server_key: {env: K}")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/one.yml").write_text(text)
    with pytest.raises(Refused, match="`server_key` cannot be used with SGLang: there is no way to pass the key"):
        recipe.load(tmp_path, "one")
    assert engine.get_engine("sglang").key is None
