"""Do clients notice? Eight that never stop, half of them with streams, while the servers behind their gateway are replaced.

    make bench-gateway_drain                  (needs haproxy; some minutes)

Two simulated Sparks serve one model behind the real HAProxy. In each scenario the clients make at least 2,000 requests: some
before, all through it, the rest after. In another one a host that alone serves a model replaces it beside itself (`swap`).
Counted are those that failed and the streams that were cut; for each phase p50 and p99 of the first byte of an answer. The
aim: none failed and none cut, but when the gateway itself is killed, where the time is told in which clients saw errors. Then
a server is added to a gateway of eight, while 64 streams run through it.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

import psutil
from tests.e2e.alone import MODEL as ALONE
from tests.e2e.alone import one_host
from tests.e2e.two_hosts import HOSTS, MODEL, Two, two_hosts
from tests.gateway.loopback import Server, gateway, model, running
from tests.gateway.steady import Asked, Steady

from sparkwright.gateway import render
from sparkwright.host.gateway import admin, states

REQUESTS, BEFORE, AFTER = 2000, 500, 500
STREAMS, SERVERS = 64, 8
#: what a scenario may end with: done, or done while the clients' traffic kept the throughput from being judged
WELL = (0, 4)


def restart(two: Two) -> None:
    """A rolling restart of both."""
    said = two.run("restart", "--host", "box", "--json", timeout_s=600)
    assert said.code in WELL, said.out[-3000:]


def canary(two: Two) -> None:
    """A canary that is found too slow, and rolled back."""
    recipe = two.root / f"recipes/{MODEL}.yml"
    text = recipe.read_text()
    recipe.write_text(
        re.sub(r"tok_per_s: .*", "tok_per_s: 9000", re.sub(r"max-num-seqs: \d+", "max-num-seqs: 4", text))
    )
    try:
        said = two.run("deploy", "--host", "box", "--canary", "1", "--json", timeout_s=600)
    finally:
        recipe.write_text(text)
    assert said.code == 1, said.out[-3000:]


def reload(two: Two) -> None:
    """Other limits, which HAProxy reads anew."""
    limits = two.groups["box"]["gateway"]["limits"]
    limits["queue_s"] = limits.get("queue_s", 60) + 1
    two.write()
    said = two.run("gateway.deploy", "--host", "box", "--json")
    assert said.code == 0, said.out[-3000:]


def killed(two: Two) -> None:
    """The gateway is killed with -9; its restart policy brings it back."""
    config = two.home(HOSTS[0]) / "gateway/files"
    for one in psutil.process_iter(["name"]):
        if one.info["name"] == "haproxy" and Path(one.cwd()) == config:
            os.kill(one.pid, signal.SIGKILL)


SCENARIOS: dict[str, Callable[[Two], None]] = {
    "rolling restart of two": restart,
    "canary rolled back": canary,
    "gateway reload": reload,
    "gateway killed -9": killed,
}


def scenario(two: Two, name: str) -> bool:
    """Print its row. Whether its aim is met."""
    two.wait(**dict.fromkeys(HOSTS, "up"))
    steady = Steady(two.gateway, MODEL, tokens=24)
    with steady.running():
        steady.answered(BEFORE)
        began_s = time.monotonic()
        SCENARIOS[name](two)
        ended_s = time.monotonic()
        _rest(steady)
    wrong = steady.wrong
    phases = [(0.0, began_s), (began_s, ended_s), (ended_s, ended_s + 1e9)]
    _row(name, steady, ended_s - began_s, phases)
    if wrong:
        seen_s = max(one.at_s for one in wrong) - min(one.at_s for one in wrong)
        print(f"{'':24} errors over {seen_s:.2f} s: {', '.join(sorted({one.end for one in wrong}))}", flush=True)
    return name == "gateway killed -9" or not wrong


def beside() -> bool:
    """The only server of a model is replaced. Whether no request failed, and how long clients were without any answer."""
    with one_host() as host:
        steady = Steady(host.port, ALONE, tokens=6)
        with steady.running():
            steady.answered(BEFORE)
            began_s = time.monotonic()
            host.changed()
            said = host.deploy()
            assert said.code in WELL, said.out[-3000:]
            ended_s = time.monotonic()
            _rest(steady)
    phases = [(0.0, began_s), (began_s, ended_s), (ended_s, ended_s + 1e9)]
    _row("beside, one host", steady, ended_s - began_s, phases)
    gaps = "  ".join(f"{_longest_gap_s(steady.between(*one)):.2f} s" for one in phases)
    print(f"{'':24} longest time without a first byte: {gaps}", flush=True)
    return not steady.wrong


def _rest(steady: Steady) -> None:
    """Wait until all requests of a scenario have ended. A few at a time: one server on a busy machine is slow."""
    until = max(len(steady.asked) + AFTER, REQUESTS)
    while len(steady.asked) < until:
        steady.answered(min(50, until - len(steady.asked)))


def _longest_gap_s(asked: list[Asked]) -> float:
    at_s = sorted(one.at_s + one.first_s for one in asked if one.end == "answered")
    return max((after - before for before, after in itertools.pairwise(at_s)), default=0.0)


def _row(name: str, steady: Steady, took_s: float, phases: list[tuple[float, float]]) -> None:
    first = "  ".join(_percentiles(steady.between(*one)) for one in phases)
    cut = sum(one.end.startswith("cut") for one in steady.wrong)
    print(f"{name:24} {len(steady.asked):6} {len(steady.wrong) - cut:6} {cut:4}  {took_s:6.1f} s  {first}", flush=True)


def _percentiles(asked: list[Asked]) -> str:
    ms = sorted(1000 * one.first_s for one in asked if one.end == "answered")
    return f"{statistics.median(ms):6.0f} /{ms[int(0.99 * (len(ms) - 1))]:6.0f}" if ms else f"{'-':>6} /{'-':>6}"


def added() -> bool:
    """A server is added to a gateway of eight while 64 streams run. Whether none of them is cut."""
    servers = [Server(f"s{n}") for n in range(SERVERS + 1)]
    made = gateway(model("m", *servers[:SERVERS], slots=16), clients=256)
    ends: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), made) as lab:
        lab.up("m")
        for one in servers:
            one.go_on.clear()
        body = {"model": "m", "stream": True}
        threads = [threading.Thread(target=lambda: ends.append(lab.chat(body).body)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        while sum(one.running for one in servers) < STREAMS:
            time.sleep(0.02)
        config = render.files(replace(made, models=(model("m", *servers, slots=16),)))[render.CONFIG]
        config = config.replace(render.DIGEST, "nine")
        states.keep(Path(folder), config)
        (Path(folder) / render.CONFIG).write_text(config)
        admin.ask(Path(folder), "reload", render.MASTER_SOCKET)
        while admin.running_digest(Path(folder)) != "nine":
            time.sleep(0.02)
        for one in servers:
            one.go_on.set()
        for thread in threads:
            thread.join()
        rows = admin.rows(Path(folder))
    whole = sum(one.endswith(b"data: [DONE]\n\n") for one in ends)
    count = sum(one["svname"].startswith("s") for one in rows)
    print(
        f"\na server added to a gateway of {SERVERS}: {count} servers, {whole} of {STREAMS} streams ended whole",
        flush=True,
    )
    return whole == STREAMS and count == SERVERS + 1


def main() -> int:
    """Print a table. 1 where an aim is missed."""
    print("first byte of an answer, ms: p50 / p99           before          during           after")
    print("scenario               requests failed  cut     took")
    with two_hosts() as two:
        met = [scenario(two, name) for name in SCENARIOS]
    return int(not all([*met, beside(), added()]))


if __name__ == "__main__":
    sys.exit(main())
