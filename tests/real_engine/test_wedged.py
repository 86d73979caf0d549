"""A real vLLM whose engine core is stopped, behind a real HAProxy: what it still answers, and what becomes of its requests."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.engines.http import GENERATE
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.http import HTTP
from sparkwright.project.gateway_routes import progress_metrics
from tests.gateway.loopback import Answer, RunningGateway, build_gateway, build_model, run_gateway
from tests.gateway.loopback import StreamServer as Other
from tests.real_engine.engine import Engine, Server, serving

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("newest"),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy"),
]
#: a bound for what takes some 12 s
WITHIN_S = 60.0
#: vLLM takes no other
JSON = {"Content-Type": "application/json"}
SHORT = {"model": "m", "prompt": "hello", "max_tokens": 4}


class Core:
    """The process of the server's engine core, which computes; its front end is another one."""

    def __init__(self, server: Server) -> None:
        children = psutil.Process(server.process.pid).children(recursive=True)
        (self.process,) = [child for child in children if "EngineCore" in child.name() + " ".join(child.cmdline())]

    def stop(self) -> float:
        self.process.suspend()
        return time.monotonic()

    def go_on(self) -> None:
        self.process.resume()


def wait_for(holds: Callable[[], bool]) -> float:
    """Wait until this holds. Return the time."""
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    return time.monotonic()


def is_down(lab: RunningGateway, name: str) -> bool:
    return (
        f'haproxy_server_status{{proxy="m",server="{name}",state="DOWN"}} 1' in lab.ask("GET", "/metrics").body.decode()
    )


def read_counters(server: Server) -> tuple[float, float]:
    """Return how many requests it runs, and how many tokens it has generated, by its own counters."""
    rows = [line.split() for line in server.ask("/metrics").body.decode().splitlines() if not line.startswith("#")]
    counts = {name: sum(float(row[-1]) for row in rows if row[0].startswith(name)) for name in COUNTERS}
    return counts[COUNTERS[0]], counts[COUNTERS[1]]


COUNTERS = ("vllm:num_requests_running{", "vllm:generation_tokens_total{")


def send_request(pool: ThreadPoolExecutor, lab: RunningGateway, **more: Any) -> Future[Answer]:
    return pool.submit(lab.ask, "POST", "/v1/completions", {**SHORT, **more}, **JSON)


def test_a_stopped_engine_is_found_by_its_counters_and_its_requests_end(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gateway.loopback.DEADLINE_S", WITHIN_S)
    words = flags.command(
        str(engine.models / "dense"), {"served-model-name": "m", "max-model-len": 2048, "enforce-eager": True}
    )
    with serving(engine, words, tmp_path / "server.log") as server:
        assert server.ready, server.log.read_text()[-2000:]
        server.name = "one"  # type: ignore[attr-defined]
        core, other = Core(server), Other("two")
        other.healthy = False
        routed = build_model("m", server, other)  # type: ignore[arg-type]
        watched = replace(routed.upstreams[0], progress=progress_metrics(HTTP, GENERATE))
        check = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
        routed = replace(routed, check=check, upstreams=(watched, routed.upstreams[1]))
        with run_gateway(tmp_path, build_gateway(routed, check_s=2, stuck_s=12)) as lab, ThreadPoolExecutor(8) as pool:
            lab.up("m")
            wait_for(lambda: is_down(lab, "two"))
            delays_s = {"while it generates": _while_it_generates(server, core, lab, pool)}
            other.healthy = True
            wait_for(lambda: not is_down(lab, "two"))
            delays_s["while idle"] = _while_idle(server, core, lab, pool)
        other.shutdown()
    with capsys.disabled():
        print("".join(f"\n  stopped {when}: down after {seconds:.1f} s" for when, seconds in delays_s.items()))


def _while_it_generates(server: Server, core: Core, lab: RunningGateway, pool: ThreadPoolExecutor) -> float:
    """The only server: its streams are left to it, and new requests get 503 until it generates again."""
    streams = [send_request(pool, lab, max_tokens=500, ignore_eos=True, stream=True) for _ in range(2)]
    wait_for(lambda: read_counters(server)[0] >= 2 or any(stream.done() for stream in streams))
    assert [stream.result() for stream in streams if stream.done()] == []
    stopped_s = core.stop()
    time.sleep(0.5)
    standing = read_counters(server)
    assert server.ask("/health").status == 200 and standing[0] >= 2
    down_s = wait_for(lambda: is_down(lab, "one"))
    assert (server.ask("/health").status, read_counters(server)) == (200, standing)
    refused = send_request(pool, lab).result(WITHIN_S)
    assert (refused.status, refused.json["error"]["code"]) == (503, "model_not_up")
    core.go_on()
    assert all(stream.result(WITHIN_S).body.rstrip().endswith(b"data: [DONE]") for stream in streams)
    wait_for(lambda: not is_down(lab, "one"))
    return down_s - stopped_s


def _while_idle(server: Server, core: Core, lab: RunningGateway, pool: ThreadPoolExecutor) -> float:
    """Its engine counts none of the requests that come: they are answered by the other server all the same."""
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
