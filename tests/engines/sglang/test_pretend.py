"""The checks of a server against the sandbox's simulated SGLang."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from sparkwright.engines import engine, http
from sparkwright.engines.log.reader import read_log
from sparkwright.host.containers import container_labels
from sparkwright.measure import http_probe, server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.modules.proof.repeated_requests import PrefixCache
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.engines.sglang.pretend import FakeSglang, serving
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

SGLANG = engine.get_engine("sglang")
KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")


def check_health(tmp_path: Path, server: FakeSglang, key: str = "") -> Result:
    context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
    return VerifyHealth().run(VerifyHealth.Args(base_url=server.url, model="m", engine="sglang", timeout_s=2), context)


def read_counters(server: FakeSglang) -> dict[str, float]:
    return server_counters.read_counters(Target(SGLANG.http, server.url))[0]


@contextmanager
def open_stream(server: FakeSglang) -> Iterator[HTTPResponse]:
    """Yield a long answer whose first tokens have arrived."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 4000, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    for _ in range(20):
        answer.readline()
    yield answer
    connection.close()


def test_a_generating_server_is_ready_with_version_and_context(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), tmp_path):
        result = check_health(tmp_path, server)
    assert (result.failed, result.data["verdict"]) == (False, "ready"), result.msg
    assert (result.data["version"], result.data["max_model_len"]) == ("0.5.23", 131072)
    assert "/version" not in server.paths


@pytest.mark.parametrize("state", ["starting", "wedged"])
def test_a_health_answer_of_503_means_loading(tmp_path: Path, state: str) -> None:
    with serving(server := FakeSglang(), tmp_path) as process:
        if state == "starting":
            process.status = "starting"  # type: ignore[attr-defined]
        else:
            server.fault = "wedge"
        result = check_health(tmp_path, server)
    assert (result.failed, result.data["verdict"]) == (True, "loading")
    assert result.msg.startswith("/health answers 503")
    wait_until(lambda: server.paths)  # the answer may arrive before the request is logged
    assert server.paths == ["/health"], "no further request"


def test_a_server_key_is_required_and_used(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), tmp_path, "--enable-metrics", "--api-key", KEY):
        assert check_health(tmp_path, server, KEY).data["verdict"] == "ready"
        assert check_health(tmp_path, server).failed
        assert http_probe.send_request(server.url, "/metrics").status == 200
        assert http_probe.send_request(server.url, "/server_info").status == 401


def test_the_heartbeat_moves_during_a_request(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), tmp_path), open_stream(server) as answer:
        before = read_counters(server)
        for _ in range(20):
            answer.readline()
        after = read_counters(server)
    assert before[http.RUNNING] == 1
    assert after[http.GENERATED] == before[http.GENERATED] == 0
    assert after[http.HEARTBEAT] > before[http.HEARTBEAT]


def test_without_metrics_the_heartbeat_is_unknown(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), tmp_path, "--sleep-on-idle"):
        assert http_probe.send_request(server.url, "/metrics").status == 404
        assert http.HEARTBEAT not in read_counters(server)


def test_models_settings_and_log_agree(tmp_path: Path) -> None:
    flags = (
        "--enable-metrics", "--chunked-prefill-size", "-1", "--disable-radix-cache", "--mem-fraction-static", "0.6",
    )  # fmt: skip
    with serving(server := FakeSglang(), tmp_path, *flags):
        assert engine.detect_from_models(http_probe.send_request(server.url, "/v1/models").json()) == SGLANG
        settings = SGLANG.http.parse_settings(http_probe.send_request(server.url, SGLANG.http.settings_path).json())
    assert (settings["version"], settings["mem_fraction_static"], settings["served_name"]) == ("0.5.23", 0.6, "m")
    assert (settings["chunked_prefill"], settings["prefix_caching"]) == (False, False)
    state = read_log(server.log, SGLANG.log)
    assert (state.ready, state.value("chunked_prefill"), state.value("prefix_caching")) == (True, False, False)
    assert state.value("kv_cache_tokens") == settings["kv_cache_tokens"]


@pytest.mark.parametrize(
    ("flags", "kind", "block", "verdict"),
    [
        ((), "llama", 1, "hits"),
        (("--page-size", "64"), "llama", 64, "hits"),
        ((), "qwen3_next", 256, "hits"),
        (("--disable-radix-cache",), "llama", None, "off"),
    ],
)
def test_the_prefix_cache_is_tested_with_the_page_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], kind: str, block: int | None, verdict: str
) -> None:
    monkeypatch.setattr(container_labels, "engine_at", lambda context, url: SGLANG)
    layers = {"layer_types": ["linear_attention", "full_attention"]} if kind != "llama" else {}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": kind, **layers}))
    with serving(server := FakeSglang(), tmp_path, "--enable-metrics", *flags):
        args = PrefixCache.Args(base_url=server.url, model="m", model_dir=str(tmp_path / "model"))
        result = PrefixCache().run(args, RecordingContext(tmp_path))
    assert (result.data["verdict"], result.data.get("block_tokens")) == (verdict, block), result.msg
