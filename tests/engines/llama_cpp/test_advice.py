"""Findings about recipes for llama.cpp, and the settings and memory that follow from its flags."""

from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.http import is_valid_key
from sparkwright.engines.llama_cpp import advice, flags, http
from sparkwright.units import GIB

IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda13-b11549"
GOOD: dict[str, Any] = {"model": "a-Q4_K_M.gguf", "ctx-size": 32768, "n-gpu-layers": "all", "alias": "a"}


def check_flags(flag_values: dict[str, Any], version: str | None = "b11549", **request: Any) -> dict[str, str]:
    """Return rule names with the severity of their findings."""
    checked_request = ServerRequest(flag_values, **{"image": IMAGE, **request})
    return {item.rule: item.severity for item in advice.check(checked_request, {}, advice.version(version))}


@pytest.mark.parametrize(
    ("changes", "rule", "severity"),
    [
        ({"model": None}, "model-file", "error"),
        ({"model": "model.safetensors"}, "model-file", "error"),
        ({"model": "a-00002-of-00003.gguf"}, "model-file", "error"),
        ({"hf": "org/repo:Q4_K_M"}, "downloads", "error"),
        ({"-mu": "https://x/a.gguf"}, "downloads", "error"),
        ({"gpt-oss-120b-default": True}, "downloads", "error"),
        ({"max-model-len": 8192}, "unknown-flag", "error"),
        ({"nonsense": 1}, "unknown-flag", "error"),
        ({"no-mmap": True}, "unknown-flag", "error"),
        ({"ctx-size": "128k"}, "flag-value", "error"),
        ({"n-gpu-layers": "auto"}, "fit-shrinks", "warning"),
        ({"n-gpu-layers": 0}, "layers-on-cpu", "warning"),
        ({"n-gpu-layers": 20}, "layers-on-cpu", "info"),
        ({"cmoe": True}, "layers-on-cpu", "warning"),
        ({"n-cpu-moe": 10}, "layers-on-cpu", "warning"),
        ({"no-kv-offload": True}, "layers-on-cpu", "warning"),
        ({"ctx-size": 0}, "fit-shrinks", "warning"),
        ({"ctv": "q8_0", "fa": "off"}, "quantised-v-cache", "error"),
        ({"parallel": 4}, "slot-context", "info"),
        ({"api_key": "x"}, "api-key-in-arguments", "error"),
        ({"metrics": False}, "no-metrics", "warning"),
        ({"host": "127.0.0.1"}, "out-of-reach", "error"),
        ({"ssl-cert-file": "/c.pem"}, "out-of-reach", "error"),
    ],
)
def test_each_mistake_has_exactly_one_finding(changes: dict[str, Any], rule: str, severity: str) -> None:
    assert check_flags(flags.normalize(GOOD | changes)) == {rule: severity}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ctv": "q8_0"},
        {"ctv": "q8_0", "fa": "auto"},
        {"ctk": "q8_0", "fa": "off"},
        {"parallel": 1},
        {"n-gpu-layers": 999, "n-cpu-moe": 0, "kv-offload": True},
        {"parallel": 4, "kvu": True},
        {"fit": False, "ctx-size": None, "n-gpu-layers": None},
    ],
)
def test_valid_settings_have_no_findings(changes: dict[str, Any]) -> None:
    flag_values = {name: value for name, value in (GOOD | changes).items() if value is not None}
    assert check_flags(flags.normalize(flag_values)) == {}


@pytest.mark.parametrize(
    ("version", "severity"), [("b10434", None), ("b11549", "error"), ("b11000", "warning"), (None, "warning")]
)
def test_a_removed_option_is_found_by_build(version: str | None, severity: str | None) -> None:
    assert check_flags(flags.normalize(GOOD | {"no-mmap": True}), version).get("unknown-flag") == severity


@pytest.mark.parametrize(
    ("image", "platform", "reported"),
    [
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "gb10", True),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b11549", "gb10", True),
        ("ghcr.io/ggml-org/llama.cpp:server", "gb10", True),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13", "gb10", False),
        ("scitrera/dgx-spark-llama-cpp:b8094-cu131", "gb10", False),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "ascend", False),
    ],
)
def test_the_image_for_a_gb10_has_cuda_13(image: str, platform: str, reported: bool) -> None:
    assert ("cuda12-image" in check_flags(GOOD, image=image, platform=platform)) is reported


def test_unknown_builds_are_reported() -> None:
    assert check_flags(GOOD, "b99999") == {"newer-release": "info"}
    assert check_flags(GOOD, image="ghcr.io/ggml-org/llama.cpp:server-cuda13") == {"moving-tag": "info"}


def test_the_first_published_port_is_the_port_of_the_server() -> None:
    assert check_flags(GOOD, published_port=8080) == {}
    assert check_flags(GOOD, published_port=8000) == {"out-of-reach": "error"}
    assert check_flags(GOOD | {"port": 8000}, published_port=8000) == {}


def test_chunked_prefill_cannot_be_disabled() -> None:
    assert advice.decide_chunked_prefill(ServerRequest(GOOD), {}, None, "any", "refuse").finding is None
    refused = advice.decide_chunked_prefill(ServerRequest(GOOD), {}, None, "disabled", "refuse").finding
    assert refused is not None and refused.severity == "error"
    assert refused.sentence.startswith(
        "llama.cpp has no switch for chunked_prefill: it always processes prompts in chunks"
    )


@pytest.mark.parametrize(
    ("text", "build"),
    [("b11549-7e4c0a9", "11549"), ("version: 0.1.0-dev (build 11549, commit 7e4c0a9)", "11549"), ("b0-unknown", None)],
)
def test_a_build_is_parsed_as_a_version(text: str, build: str | None) -> None:
    version = advice.version(text)
    assert (str(version) if version else None) == build


def test_memory_is_the_size_of_the_locked_files() -> None:
    files = [
        {"path": "a-Q4.gguf", "size_bytes": 60 * GIB},
        {"path": "mmproj.gguf", "size_bytes": GIB},
        {"path": "README.md", "size_bytes": GIB},
    ]
    assert advice.memory({"cache-ram": 0}, {"files": files}).bytes == 61 * GIB + advice.OVERHEAD_BYTES
    assert advice.memory({}, {}).bytes == 0


@pytest.mark.parametrize(
    ("flag_values", "settings"),
    [
        ({"ctx-size": 32768}, (4, 32768, 2048, True)),
        ({"c": 32768, "np": 2, "b": 512, "no-cache-prompt": True}, (2, 16384, 512, False)),
    ],
)
def test_settings_follow_from_flags(flag_values: dict[str, Any], settings: tuple[int, int, int, bool]) -> None:
    effective = advice.effective_settings(ServerRequest(flag_values), {}, None)
    assert (effective.max_num_seqs, effective.max_model_len, effective.budget, effective.prefix_caching) == settings


def test_the_key_is_read_from_a_file() -> None:
    key, server_key, default_key = "0123456789abcdef", http.SERVER_KEY, engine.get_engine("vllm").key
    assert is_valid_key(key)
    assert server_key.words == ("--api-key-file", "/run/sparkwright/engine.key")
    assert default_key and server_key.suffix != default_key.suffix, "a container of another engine has its file mounted"
    assert server_key.parse_file("# keys\n\n" + server_key.render_file(key)) == key
    assert server_key.parse_file("") == ""
    assert engine.get_engine("llama_cpp").key is server_key
    assert flags.argv({server_key.option: server_key.mount}) == server_key.words
