"""Sixteen clients send requests without a pause, half of them streaming, while the servers behind their gateway are replaced.

    make bench-gateway_drain                              (needs haproxy; some twenty minutes on two cores)
    .venv/bin/python -m benchmarks.gateway_drain restart keys        (only these scenarios; --requests 200 for a quick look)

Two simulated Sparks serve one model behind the real HAProxy, with keys and limits for a hundred clients. In each scenario
the clients make at least 2,000 requests in each of four dialects (chat, completions, responses, messages): some before, some
during the scenario, the rest after it. In the scenario `interim`, the only host of a model replaces its server with the help
of an interim server. The tables count failed requests, streams that were cut, and requests without a complete answer within
two minutes, and have p50 and p99 of an answer's first byte for each phase. The goal is that there are none, except when the
gateway itself is killed; then the time with errors is printed. Finally a server is added to a gateway with eight, while 64
streams run through it.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.alone import MODEL as ALONE
from tests.e2e.alone import single_server
from tests.e2e.two_hosts import HOSTS, MODEL, TwoHostProject, two_host_project
from tests.gateway.loopback import build_gateway, build_model, run_gateway
from tests.gateway.servers import StreamServer
from tests.gateway.steady import DIALECTS, SentRequest, SteadyClients

from sparkwright.gateway import listeners, render
from sparkwright.host.gateway import container, haproxy_sockets

#: requests in each dialect
REQUESTS = 2000
#: requests in all dialects before and after a scenario
BEFORE, AFTER = 500, 500
CLIENTS = 16
#: number of clients with keys and limits
KEYS = 100
STREAMS, SERVERS = 64, 8
#: accepted exit codes: success, or success without a verdict on the throughput because of the clients' traffic
SUCCESS = (0, 4)


def restart(two: TwoHostProject) -> None:
    result = two.run("restart", "--host", "box", "--json", timeout_s=600)
    assert result.code in SUCCESS, result.out[-3000:]


def canary(two: TwoHostProject) -> None:
    """Run a canary that is too slow and is rolled back."""
    recipe = two.root / f"recipes/{MODEL}.yml"
    text = recipe.read_text()
    slow = re.sub(r"tok_per_s: .*", "tok_per_s: 9000", text)
    recipe.write_text(re.sub(r"max-num-seqs: \d+", "max-num-seqs: 4", slow))
    try:
        result = two.run("deploy", "--host", "box", "--canary", "1", "--json", timeout_s=600)
    finally:
        recipe.write_text(text)
    assert result.code == 1, result.out[-3000:]


def deploy(two: TwoHostProject) -> None:
    """Deploy a changed `max-num-seqs`: both servers are replaced, one after the other."""
    recipe = two.root / f"recipes/{MODEL}.yml"
    recipe.write_text(re.sub(r"max-num-seqs: \d+", "max-num-seqs: 6", recipe.read_text()))
    result = two.run("deploy", "--host", "box", "--serial", "1", "--json", timeout_s=600)
    assert result.code in SUCCESS, result.out[-3000:]


def reload_limits(two: TwoHostProject) -> None:
    """Change a limit, for which HAProxy reloads."""
    with _edit_gateway(two) as gateway:
        limits = gateway["limits"]
        limits["queue_s"] = limits.get("queue_s", 60) + 1


def change_keys(two: TwoHostProject) -> None:
    """Remove half of the clients' keys, change the limits of the others, and restore all."""
    with _edit_gateway(two) as gateway:
        original_clients = gateway["clients"]
        kept_clients = itertools.islice(original_clients.items(), KEYS // 2)
        gateway["clients"] = {name: {**settings, "requests_per_minute": 90_000} for name, settings in kept_clients}
    with _edit_gateway(two) as gateway:
        gateway["clients"] = original_clients


@contextlib.contextmanager
def _edit_gateway(two: TwoHostProject) -> Iterator[dict[str, Any]]:
    """Yield the gateway's settings, which the caller changes, then deploy them."""
    path = two.root / "hosts/groups.yml"
    groups = json.loads(path.read_text())
    yield groups["box"]["gateway"]
    path.write_text(json.dumps(groups))
    result = two.run("gateway.deploy", "--host", "box", "--json")
    assert result.code == 0, result.out[-3000:]


def add_keys(two: TwoHostProject) -> str:
    """Add a hundred clients with limits to the gateway. Return the key of one."""
    for n in range(KEYS):
        os.environ[f"CLIENT_{n}"] = f"key-of-client-{n:04}"
    os.environ["GATEWAY_KEY"] = "key-of-the-gateway"
    limits = {"requests_per_minute": 100_000, "concurrent": 1000, "models": [MODEL]}
    with _edit_gateway(two) as gateway:
        gateway["key"] = {"env": "GATEWAY_KEY"}
        gateway["clients"] = {f"client-{n}": {"key": {"env": f"CLIENT_{n}"}, **limits} for n in range(KEYS)}
    return os.environ["CLIENT_0"]


def kill(two: TwoHostProject) -> None:
    """Kill the gateway with SIGKILL; its restart policy starts it again."""
    config = two.sandbox / "hosts" / HOSTS[0] / "home/.local/state/sparkwright/gateway/files"
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "haproxy" and Path(process.cwd()) == config:
            os.kill(process.pid, signal.SIGKILL)


SCENARIOS: dict[str, Callable[[TwoHostProject], None]] = {
    "deploy": deploy, "restart": restart, "canary": canary, "reload": reload_limits, "keys": change_keys, "killed": kill,
}  # fmt: skip


def run_scenario(two: TwoHostProject, name: str, key: str, requests: int) -> bool:
    """Run a scenario and print its rows. Return True if its goal is met."""
    two.wait(**dict.fromkeys(HOSTS, "up"))
    steady = SteadyClients(two.gateway, MODEL, key, tokens=8, clients=CLIENTS, dialects=tuple(DIALECTS))
    with steady.running():
        steady.wait_for_answers(min(BEFORE, requests))
        started_s = time.monotonic()
        SCENARIOS[name](two)
        ended_s = time.monotonic()
        _finish(steady, requests)
    _print_rows(name, steady, ended_s - started_s, [(0.0, started_s), (started_s, ended_s), (ended_s, ended_s + 1e9)])
    return name == "killed" or not steady.wrong


def replace_single_server(requests: int) -> bool:
    """Replace the only server of a model. Return True if no request failed."""
    with single_server() as host:
        steady = SteadyClients(host.port, ALONE, tokens=6, clients=CLIENTS, dialects=tuple(DIALECTS))
        with steady.running():
            steady.wait_for_answers(min(BEFORE, requests))
            started_s = time.monotonic()
            host.change_recipe()
            result = host.deploy()
            assert result.code in SUCCESS, result.out[-3000:]
            ended_s = time.monotonic()
            _finish(steady, requests)
    phases = [(0.0, started_s), (started_s, ended_s), (ended_s, ended_s + 1e9)]
    _print_rows("interim", steady, ended_s - started_s, phases)
    gaps = "  ".join(f"{_longest_gap_s(steady.between(*phase)):.2f} s" for phase in phases)
    print(f"{'':9} longest time without a first byte: {gaps}", flush=True)
    return not steady.wrong


def _finish(steady: SteadyClients, requests: int) -> None:
    """Wait until each dialect has its requests, a few at a time, because one server on a busy machine is slow."""
    until = len(steady.asked) + min(AFTER, requests)
    while len(steady.asked) < until or min(len(steady.of(dialect)) for dialect in steady.dialects) < requests:
        steady.wait_for_answers(20)


def _longest_gap_s(asked: list[SentRequest]) -> float:
    at_s = sorted(request.at_s + request.first_s for request in asked if request.end == "answered")
    return max((after - before for before, after in itertools.pairwise(at_s)), default=0.0)


def _print_rows(name: str, steady: SteadyClients, duration_s: float, phases: list[tuple[float, float]]) -> None:
    for dialect in steady.dialects:
        requests = steady.of(dialect)
        counts = [sum(request.end.startswith(end) for request in requests) for end in ("failed", "cut", "hung")]
        print(f"{name:9} {dialect:12} {len(requests):6}" + "".join(f"{count:7}" for count in counts), flush=True)
    first = "  ".join(_percentiles(steady.between(*phase)) for phase in phases)
    print(f"{name:9} took {duration_s:.1f} s; first byte {first}; load {os.getloadavg()[0]:.1f}", flush=True)
    if wrong := steady.wrong:
        seen_s = max(request.at_s for request in wrong) - min(request.at_s for request in wrong)
        ends = ", ".join(sorted({f"{request.end} ({request.dialect})" for request in wrong}))
        first_s = min(request.at_s for request in wrong) - phases[1][0]
        print(f"{name:9} errors over {seen_s:.2f} s, the first {first_s:.1f} s after its start: {ends}", flush=True)


def _percentiles(asked: list[SentRequest]) -> str:
    ms = sorted(1000 * request.first_s for request in asked if request.end == "answered")
    return f"{statistics.median(ms):6.0f} /{ms[int(0.99 * (len(ms) - 1))]:6.0f}" if ms else f"{'-':>6} /{'-':>6}"


def add_server() -> bool:
    """Add a server to a gateway of eight while 64 streams run. Return True if none of them is cut."""
    servers = [StreamServer(f"s{n}") for n in range(SERVERS + 1)]
    gateway = build_gateway(build_model("m", *servers[:SERVERS], slots=16), clients=256)
    ends: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder, run_gateway(Path(folder), gateway) as lab:
        lab.up("m")
        for server in servers:
            server.go_on.clear()
        body = {"model": "m", "stream": True}
        threads = [threading.Thread(target=lambda: ends.append(lab.chat(body).body)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        while sum(server.running for server in servers) < STREAMS:
            time.sleep(0.02)
        config = render.render_files(replace(gateway, models=(build_model("m", *servers, slots=16),)))[
            render.CONFIG_FILE
        ]
        config = config.replace(render.DIGEST_PLACEHOLDER, "nine")
        container.save_states(lab.sockets, lab.folder, config)
        (lab.folder / render.CONFIG_FILE).write_text(config)
        haproxy_sockets.send_command(lab.sockets, "reload", listeners.MASTER_SOCKET)
        while haproxy_sockets.running_digest(lab.sockets) != "nine":
            time.sleep(0.02)
        for server in servers:
            server.go_on.set()
        for thread in threads:
            thread.join()
        rows = haproxy_sockets.read_statistics(lab.sockets)
    complete = sum(end.endswith(b"data: [DONE]\n\n") for end in ends)
    count = sum(row["svname"].startswith("s") for row in rows)
    print(
        f"\na server added to a gateway of {SERVERS}: {count} servers, {complete} of {STREAMS} streams were complete",
        flush=True,
    )
    return complete == STREAMS and count == SERVERS + 1


def main() -> int:
    """Print the tables. Return 1 if a goal is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join((*SCENARIOS, "interim", "added")))
    parser.add_argument("--requests", type=int, default=REQUESTS, help="in each dialect")
    options = parser.parse_args()
    names = options.names or [*SCENARIOS, "interim", "added"]
    print("first byte of an answer, ms: p50 / p99 before, during and after")
    print("scenario  dialect      requests failed   cut   hung")
    met = []
    if chosen := [name for name in SCENARIOS if name in names]:
        with two_host_project() as two:
            key = add_keys(two)
            met += [run_scenario(two, name, key, options.requests) for name in chosen]
    met += [replace_single_server(options.requests)] if "interim" in names else []
    met += [add_server()] if "added" in names else []
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
