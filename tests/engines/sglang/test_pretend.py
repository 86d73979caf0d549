"""Our checks against a pretend SGLang: what they ask, and what they make of its answers and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.engines import engine, http
from sparkwright.measure import http_probe, server_metrics
from sparkwright.modules.proof.verify_health import VerifyHealth
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.engines.sglang.pretend import Pretend, serving
from tests.modules.context import RecordingContext

SGLANG = engine.of("sglang")


def checked(tmp_path: Path, server: Pretend, key: str = "") -> Result:
    context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
    return VerifyHealth().run(VerifyHealth.Args(base_url=server.url, model="m", engine="sglang", timeout_s=2), context)


def test_a_server_that_generates_is_ready_and_tells_its_version_and_context(tmp_path: Path) -> None:
    with serving(Pretend()) as server:
        found = checked(tmp_path, server)
    assert (found.failed, found.data["verdict"]) == (False, "ready"), found.msg
    assert (found.data["version"], found.data["max_model_len"]) == ("0.5.23", 131072)
    assert "/version" not in server.asked


@pytest.mark.parametrize("status", ["starting", "wedged"])
def test_a_health_of_503_is_no_server_that_generates(tmp_path: Path, status: str) -> None:
    with serving(Pretend(status)) as server:
        found = checked(tmp_path, server)
    assert (found.failed, found.data["verdict"]) == (True, "loading")
    assert found.msg.startswith("/health answers 503")
    assert server.asked == ["/health"], "nothing more is asked of it"


def test_a_key_that_is_not_known_is_told_and_a_known_one_is_used(tmp_path: Path) -> None:
    with serving(Pretend(key="0123456789abcdef")) as server:
        assert checked(tmp_path, server, "0123456789abcdef").data["verdict"] == "ready"
        assert checked(tmp_path, server).failed
        assert http_probe.ask(server.url, "/metrics").status == 200


def test_the_heartbeat_moves_in_mid_request_and_the_generated_tokens_stand_still() -> None:
    with serving(Pretend(decoded=40)) as server:
        before = server_metrics.read(SGLANG.http, server.url, "")[0]
        server.decoded = 80
        after = server_metrics.read(SGLANG.http, server.url, "")[0]
    assert after[http.GENERATED] == before[http.GENERATED] == 0
    assert after[http.HEARTBEAT] - before[http.HEARTBEAT] == 40


def test_without_metrics_the_heartbeat_is_unknown() -> None:
    with serving(Pretend(metrics=False)) as server:
        assert http.HEARTBEAT not in server_metrics.read(SGLANG.http, server.url, "")[0]


def test_its_models_tell_who_serves_them_and_its_settings_what_it_runs_with() -> None:
    with serving(Pretend()) as server:
        assert engine.of_models(http_probe.ask(server.url, "/v1/models").json()) == SGLANG
        told = SGLANG.http.settings_of(http_probe.ask(server.url, SGLANG.http.settings).json())
    assert told == {"version": "0.5.23", "chunked_prefill": True, "prefix_caching": True}
