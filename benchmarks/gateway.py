"""The latency that the gateway adds: first token and each chunk, with and without it, for 1, 16 and 64 streams.

make bench-gateway (needs haproxy and a C compiler; two minutes)

The server is exact_server.c, whose chunks contain the time at which they were sent. The client is one epoll loop that parses
its data only afterwards, because a server and clients that compete with HAProxy for the CPU would dominate the measurement.
The routes alternate in one run, because the machine's load differs between runs. A model with two servers has both on one
port; HAProxy keeps its requests for a retry, which it does not do for a single server. "A client" has one of a hundred keys
and all limits, and its tokens are counted by a Lua filter through which its chunks pass. The streams of a round begin evenly
spread over the length of one stream, as with continuous clients; in the last rows all begin within 20 ms. Short answers of
one chunk follow, with the key for all and with a client's.

The goals: the first token at most 0.5 ms later and a chunk at most 0.1 ms later, for /v1/messages as for chat; a hundred keys add
at most 0.1 ms to a short request.
"""

import contextlib
import hashlib
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks import common, measuring
from sparkwright.engines import api_paths
from sparkwright.engines.vllm.http import PATHS as VLLM
from sparkwright.gateway import clients, operations, render
from sparkwright.gateway.model import Client, Gateway, Model, Upstream

CHUNKS, EVERY_S = 30, 0.02
#: number of streams, seconds in which they all begin, number of rounds of each route
SHAPES = ((1, CHUNKS * EVERY_S, 40), (16, CHUNKS * EVERY_S, 8), (64, CHUNKS * EVERY_S, 6), (64, EVERY_S, 6))
PORT = 18393
GOALS_MS = {"first token": 0.5, "chunk": 0.1}
DIRECT, ONE, TWO, MESSAGES, COUNTED = "direct", "one-server", "two-servers", "/v1/messages", "client"
#: routes of requests with a short answer: with the key for all, and with a client's
SHORT, SHORT_COUNTED = "short", "short-client"
#: number of clients with keys and limits
CLIENTS = 100
#: number of short requests at once, seconds in which they begin, number of rounds of each route
SHORT_SHAPE = (16, 0.1, 125)
SHORT_GOAL_MS = 0.1
#: the key for all, and that of a client whose tokens are counted
KEYS = {ONE: "key-for-all-0123456789", COUNTED: f"key-of-client-{CLIENTS - 1:04}"}
#: the models of routes that do not use ONE
MODELS = {TWO: TWO, SHORT: SHORT, SHORT_COUNTED: SHORT}
SENT = re.compile(rb'"sent_ns":(\d+)')
LAST = b"0\r\n\r\n"


@dataclass
class Stream:
    """One stream. requested_ns is the time of the request; reads has the time and the bytes of each read."""

    link: socket.socket
    requested_ns: int = 0
    reads: list[tuple[int, bytes]] = field(default_factory=list)

    def figures(self) -> tuple[float, list[float]]:
        """Return the ms from the request to the first chunk, and those that each later chunk took, without role and end."""
        late = [(at_ns - int(sent)) / 1e6 for at_ns, data in self.reads for sent in SENT.findall(data)]
        first_ns = next(at_ns for at_ns, data in self.reads if SENT.search(data))
        return (first_ns - self.requested_ns) / 1e6, late[2:-1]


def _request(model: str, path: str, key: str) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "stream": True, "model": model}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _round(port: int, way: str, streams: int, within_s: float) -> list[Stream]:
    """Run the streams, each on its own connection, with their starts spread evenly over within_s."""
    key = KEYS[COUNTED if way in (COUNTED, SHORT_COUNTED) else ONE]
    path = MESSAGES if way == MESSAGES else "/v1/chat/completions"
    request, start_ns = _request(MODELS.get(way, ONE), path, key), time.monotonic_ns()
    due_ns = [start_ns + int(within_s * 1e9 * n / streams) for n in range(streams)]
    started: list[Stream] = []
    running: dict[int, Stream] = {}
    with select.epoll() as poller:
        while len(started) < streams or running:
            while len(started) < streams and time.monotonic_ns() >= due_ns[len(started)]:
                stream = Stream(socket.create_connection(("127.0.0.1", port)))
                stream.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                poller.register(stream.link, select.EPOLLIN)
                running[stream.link.fileno()] = stream
                started.append(stream)
                stream.requested_ns = time.monotonic_ns()
                stream.link.send(request)
            left_s = 10.0
            if len(started) < streams:
                left_s = (due_ns[len(started)] - time.monotonic_ns()) / 1e9
            for number, _ in poller.poll(max(0.0, left_s)):
                stream = running[number]
                data = stream.link.recv(65536)
                stream.reads.append((time.monotonic_ns(), data))
                if not data or not stream.reads[0][1].startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"incomplete stream: {stream.reads[0][1].decode()}")
                if data.endswith(LAST):
                    stream.link.close()
                    del running[number]
    return started


def _measure(direct: int, shape: tuple[int, float, int], haproxy: psutil.Process) -> bool:
    """Print the medians of all routes. Return True if the goals are met with one server."""
    streams, within_s, rounds = shape
    times_ms: dict[str, dict[str, list[float]]] = {DIRECT: {}, ONE: {}, TWO: {}, MESSAGES: {}, COUNTED: {}}
    spent_s = dict.fromkeys(times_ms, 0.0)
    for _ in range(rounds):
        for way, rows in times_ms.items():
            before_s = sum(haproxy.cpu_times()[:2])
            for stream in _round(direct if way == DIRECT else PORT, way, streams, within_s):
                first_ms, late_ms = stream.figures()
                rows.setdefault("first token", []).append(first_ms)
                rows.setdefault("chunk", []).extend(late_ms)
            spent_s[way] += sum(haproxy.cpu_times()[:2]) - before_s
    met = True
    for name in GOALS_MS:
        medians = {way: statistics.median(rows[name]) for way, rows in times_ms.items()}
        met &= medians[ONE] - medians[DIRECT] <= GOALS_MS[name]
        added = "".join(f"{medians[way] - medians[DIRECT]:+13.3f} ms" for way in (ONE, TWO, MESSAGES, COUNTED))
        print(
            f"{streams:7} {within_s:6g} s  {name:11} {medians[DIRECT]:8.3f} ms{added}  {GOALS_MS[name]} ms", flush=True
        )
    cost = "".join(f"{1000 * spent_s[way] / streams / rounds:13.2f} ms" for way in (ONE, TWO, MESSAGES, COUNTED))
    print(f"{'':18}CPU time per stream   {cost[3:]}", flush=True)
    return met


def _measure_short(haproxy: psutil.Process) -> bool:
    """Print the medians of requests with a short answer. Return True if a hundred keys add no more than the goal."""
    requests, within_s, rounds = SHORT_SHAPE
    took_ms: dict[str, list[float]] = {SHORT: [], SHORT_COUNTED: []}
    spent_ms = dict.fromkeys(took_ms, 0.0)
    for _ in range(rounds):
        for way, rows in took_ms.items():
            before_s = sum(haproxy.cpu_times()[:2])
            rows += [
                (stream.reads[-1][0] - stream.requested_ns) / 1e6 for stream in _round(PORT, way, requests, within_s)
            ]
            spent_ms[way] += 1000 * (sum(haproxy.cpu_times()[:2]) - before_s) / requests / rounds
    medians = {way: statistics.median(rows) for way, rows in took_ms.items()}
    for name, figures in (("whole answer", medians), ("CPU time", spent_ms)):
        shown = f"one key {figures[SHORT]:.3f} ms   one of {CLIENTS} {figures[SHORT_COUNTED] - figures[SHORT]:+.3f} ms"
        print(f"{requests * rounds} short requests, {name:18}  {shown}   goal {SHORT_GOAL_MS} ms", flush=True)
    return medians[SHORT_COUNTED] - medians[SHORT] <= SHORT_GOAL_MS


def _gateway(folder: Path, port: int, short_port: int) -> subprocess.Popen[bytes]:
    check = json.dumps({"model": "m", "max_tokens": 1})
    servers = [Upstream(name, "127.0.0.1", port, 64) for name in ("a", "b")]
    short = Model(SHORT, (Upstream("a", "127.0.0.1", short_port, 64),), 4096, check)
    models = (Model(ONE, (servers[0],), 4096, check), Model(TWO, tuple(servers), 4096, check), short)
    paths = api_paths.merge_paths([VLLM])
    gateway = Gateway("bench", "127.0.0.1", PORT, PORT + 1, False, True, "none", 256, 2**20, 60, 600, 10, models, paths)
    limits = Client("client", requests_per_minute=10**6, concurrent=1000, tokens_per_day=10**9, expires_at_s=4 * 10**9)
    gateway = replace(gateway, named_clients=tuple(replace(limits, name=f"client-{n}") for n in range(CLIENTS)))
    of_clients = {f"client-{n}": _hash(f"key-of-client-{n:04}") for n in range(CLIENTS)}
    keys = {render.CLIENT_KEYS_FILE: _hash(KEYS[ONE]) + "\n", clients.KEYS_FILE: clients.format_keys(of_clients)}
    files = folder / "files"
    for path in (files, folder / "sockets"):
        path.mkdir()
    for name, text in {**render.render_files(gateway), operations.HOST_KEYS_FILE: "", **keys}.items():
        (files / name).write_text(text)
    log = (folder / "log").open("wb")
    words, env = ["haproxy", *render.HAPROXY_ARGUMENTS], {**os.environ, **render.ENVIRONMENT}
    return subprocess.Popen(words, cwd=files, env=env, stdout=log, stderr=log)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _worker(gateway: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the server process once it listens."""
    until_s = time.monotonic() + 30
    while gateway.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
            if workers := psutil.Process(gateway.pid).children():
                return workers[0]
        time.sleep(0.05)
    raise SystemExit(f"haproxy does not listen on port {PORT}.")


def main() -> int:
    """Print a table. Return 1 if a goal is missed."""
    with contextlib.suppress(OSError):  # HAProxy would share the port, and so the streams, with another process
        socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
        raise SystemExit(f"another process listens on port {PORT}.")
    print(f"{common.describe_machine()}; medians")
    with (
        tempfile.TemporaryDirectory() as folder,
        measuring.server(first_s=0, gap_s=EVERY_S, chunks=CHUNKS) as url,
        measuring.server(first_s=0, gap_s=0, chunks=1) as short_url,
    ):
        port = urlsplit(url).port or 0
        gateway = _gateway(Path(folder), port, urlsplit(short_url).port or 0)
        try:
            worker = _worker(gateway)
            print(
                "streams   begin  what          direct    gateway, one server  two servers    /v1/messages    a client     goal"
            )
            met = [*(_measure(port, shape, worker) for shape in SHAPES), _measure_short(worker)]
        finally:
            gateway.kill()
            gateway.wait()
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
