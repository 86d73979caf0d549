"""A real vLLM with a stopped engine core behind a real HAProxy: which requests it still answers, and how the others end."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.engines.http import GENERATE
from sparkwright.engines.vllm.http import HTTP
from sparkwright.project.gateway_routes import progress_metrics
from tests.gateway.loopback import Answer, RunningGateway, build_gateway, build_model, run_gateway
from tests.gateway.servers import StreamServer, needs_haproxy
from tests.real_engine.engine import Engine, Server, serve_arguments, serving_ready
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("newest"),
    needs_haproxy,
]
#: limit of waits that take about 12 s
WITHIN_S = 60.0
#: vLLM refuses requests without it
JSON = {"Content-Type": "application/json"}
SHORT = {"model": "m", "prompt": "hello", "max_tokens": 4}


class Core:
    """The process of a server's engine core, which computes; the front end is another process."""

    def __init__(self, server: Server) -> None:
        children = psutil.Process(server.process.pid).children(recursive=True)
        (self.process,) = [child for child in children if "EngineCore" in child.name() + " ".join(child.cmdline())]

    def stop(self) -> float:
        """Suspend the process. Return the time."""
        self.process.suspend()
        return time.monotonic()

    def go_on(self) -> None:
        self.process.resume()


def wait_for(holds: Callable[[], bool]) -> float:
    """Wait until this holds. Return the time."""
    wait_until(holds, timeout_s=WITHIN_S)
    return time.monotonic()


def is_down(lab: RunningGateway, name: str) -> bool:
    metrics = lab.ask("GET", "/metrics").body.decode()
    return f'haproxy_server_status{{proxy="m",server="{name}",state="DOWN"}} 1' in metrics


def read_counters(server: Server) -> tuple[float, float]:
    """Return the server's counters of running requests and generated tokens."""
    rows = [line.split() for line in server.ask("/metrics").body.decode().splitlines() if not line.startswith("#")]
    counts = {name: sum(float(row[-1]) for row in rows if row[0].startswith(name)) for name in COUNTERS}
    return counts[COUNTERS[0]], counts[COUNTERS[1]]


COUNTERS = ("vllm:num_requests_running{", "vllm:generation_tokens_total{")


def send_request(pool: ThreadPoolExecutor, lab: RunningGateway, **more: Any) -> Future[Answer]:
    return pool.submit(lab.ask, "POST", "/v1/completions", {**SHORT, **more}, headers=JSON)


def test_a_stopped_engine_is_detected_by_its_counters(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gateway.loopback.DEADLINE_S", WITHIN_S)
    words = serve_arguments(engine.models / "dense", {"max-model-len": 2048})
    with serving_ready(engine, words, tmp_path / "server.log") as server, StreamServer("two") as other:
        server.name = "one"  # type: ignore[attr-defined]
        core = Core(server)
        other.healthy = False
        routed = build_model("m", server, other)  # type: ignore[arg-type]
        watched = replace(routed.upstreams[0], progress=progress_metrics(HTTP, GENERATE))
        check = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
        routed = replace(routed, check_body=check, upstreams=(watched, routed.upstreams[1]))
        with run_gateway(tmp_path, build_gateway(routed, check_s=2, stuck_s=12)) as lab, ThreadPoolExecutor(8) as pool:
            lab.up("m")
            wait_for(lambda: is_down(lab, "two"))
            delays_s = {"while generating": _stop_while_generating(server, core, lab, pool)}
            other.healthy = True
            wait_for(lambda: not is_down(lab, "two"))
            delays_s["while idle"] = _stop_while_idle(server, core, lab, pool)
    with capsys.disabled():
        print("".join(f"\n  stopped {when}: down after {seconds:.1f} s" for when, seconds in delays_s.items()))


def _stop_while_generating(server: Server, core: Core, lab: RunningGateway, pool: ThreadPoolExecutor) -> float:
    """Stop the only server: its streams stay, and new requests get 503 until it generates again. Return the delay in seconds."""
    streams = [send_request(pool, lab, max_tokens=500, ignore_eos=True, stream=True) for _ in range(2)]
    wait_for(lambda: read_counters(server)[0] >= 2 or any(stream.done() for stream in streams))
    assert [stream.result() for stream in streams if stream.done()] == []
    stopped_s = core.stop()
    time.sleep(0.5)  # the front end still counts tokens that the core has sent
    stalled = read_counters(server)
    assert server.ask("/health").status == 200 and stalled[0] >= 2
    down_s = wait_for(lambda: is_down(lab, "one"))
    assert (server.ask("/health").status, read_counters(server)) == (200, stalled)
    assert send_request(pool, lab).result(WITHIN_S).error == (503, "model_not_up")
    core.go_on()
    assert all(stream.result(WITHIN_S).body.rstrip().endswith(b"data: [DONE]") for stream in streams)
    wait_for(lambda: not is_down(lab, "one"))
    return down_s - stopped_s


def _stop_while_idle(server: Server, core: Core, lab: RunningGateway, pool: ThreadPoolExecutor) -> float:
    """Stop an idle engine, which counts no new requests: the other server answers them. Return the delay in seconds."""
    wait_for(lambda: read_counters(server)[0] == 0)
    stopped_s = core.stop()
    answers = [send_request(pool, lab) for _ in range(4)]
    assert server.ask("/health").status == 200
    assert {answer.result(WITHIN_S).json.get("from") for answer in answers} == {"two"}
    down_s = wait_for(lambda: is_down(lab, "one"))
    assert read_counters(server)[0] == 0
    core.go_on()
    wait_for(lambda: not is_down(lab, "one"))
    return down_s - stopped_s
