"""What the gateway adds: first token and each chunk, direct and through it, at 1, 16 and 64 streams.

.venv/bin/python benchmarks/gateway.py        (needs haproxy; a minute)

A server on the loopback streams chunks that say when they were sent; a client reads when they come. Both ways take turns in one
run, for what else the machine does changes between two. The aim: the first token at most 0.5 ms later, a chunk at most 0.1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sparkwright.gateway import render
from sparkwright.gateway.model import Gateway, Model, Upstream

STREAMS, ROUNDS, CHUNKS, EVERY_S = (1, 16, 64), 6, 30, 0.02
PORT, SERVER_PORT = 18393, 18394
AIM_MS = {"first token": 0.5, "chunk": 0.1}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "model": "m", "stream": True}).encode()
CHECKED = b'{"choices":[]}'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of the server."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(size)
            if b'"stream"' not in body:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(CHECKED), CHECKED))
                continue
            writer.write(HEAD)
            for n in range(CHUNKS):
                await asyncio.sleep(EVERY_S if n else 0)
                part = b"data: %d\n\n" % time.monotonic_ns()
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve() -> None:
    async def forever() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", SERVER_PORT, backlog=256)
        await server.serve_forever()

    asyncio.run(forever())


async def _stream(port: int) -> tuple[float, list[float]]:
    """How long the first chunk took since the request, and each chunk since it was sent, ms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    asked_ns, first_ms, late_ms = time.monotonic_ns(), 0.0, list[float]()
    writer.write(head + BODY)
    while len(late_ms) < CHUNKS:
        line = await reader.readline()
        if line.startswith(b"data: "):
            now_ns = time.monotonic_ns()
            first_ms = first_ms or (now_ns - asked_ns) / 1e6
            late_ms.append((now_ns - int(line[6:])) / 1e6)
        elif not line:
            raise SystemExit("a stream was cut.")
    writer.close()
    return first_ms, late_ms[1:]


async def _round(port: int, streams: int) -> tuple[list[float], list[float]]:
    """Streams that begin within 20 ms of each other, as clients do not all ask at one moment."""

    async def later(n: int) -> tuple[float, list[float]]:
        await asyncio.sleep(EVERY_S * n / streams)
        return await _stream(port)

    found = await asyncio.gather(*(later(n) for n in range(streams)))
    return [first for first, _ in found], [one for _, late in found for one in late]


def _measure(streams: int) -> dict[str, dict[str, float]]:
    """Medians by what was measured and by way, ms."""
    seen: dict[str, dict[str, list[float]]] = {name: {"direct": [], "gateway": []} for name in AIM_MS}
    for turn in range(2 * ROUNDS):
        way, port = (("direct", SERVER_PORT), ("gateway", PORT))[turn % 2]
        firsts, chunks = asyncio.run(_round(port, streams))
        seen["first token"][way] += firsts
        seen["chunk"][way] += chunks
    return {name: {way: statistics.median(rows) for way, rows in ways.items()} for name, ways in seen.items()}


def _gateway(folder: Path) -> subprocess.Popen[bytes]:
    model = Model("m", (Upstream("one", "127.0.0.1", SERVER_PORT, 64),), 4096, json.dumps({"model": "m"}))
    made = Gateway("bench", "127.0.0.1", PORT, False, False, "none", 256, 2**20, 60, 600, 10, (model,))
    for name, text in render.files(made).items():
        (folder / name).write_text(text)
    log = (folder / "log").open("wb")
    words, env = ["haproxy", *render.COMMAND], {**os.environ, **render.ENVIRONMENT}
    return subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log)


def _listen(port: int) -> None:
    """Wait until somebody listens there."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens on port {port}.")


def main() -> int:
    """Print a table. 1 where an aim is missed."""
    server = multiprocessing.Process(target=_serve, daemon=True)
    server.start()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        gateway = _gateway(Path(folder))
        try:
            _listen(SERVER_PORT)
            _listen(PORT)
            print("streams  what          direct     gateway    added      aim")
            for streams in STREAMS:
                for name, found in _measure(streams).items():
                    added = found["gateway"] - found["direct"]
                    missed |= added > AIM_MS[name]
                    figures = (
                        f"{found['direct']:7.3f} ms {found['gateway']:7.3f} ms {added:+7.3f} ms  {AIM_MS[name]} ms"
                    )
                    print(f"{streams:7}  {name:11} {figures}", flush=True)
        finally:
            gateway.kill()
            gateway.wait()
            server.kill()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
