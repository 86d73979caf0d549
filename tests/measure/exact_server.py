"""A server with a known schedule that records the time of each token that it sends, to check the client's measurements.

It runs in a thread. Its clock is time.perf_counter, which the client uses too.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Schedule:
    """The behaviour of an ExactServer."""

    first_s: float = 0.05  #: seconds to the first token
    gap_s: float = 0.01  #: seconds between chunks
    per_chunk: int = 1  #: tokens of a chunk
    chunks: int = 30  #: number of chunks, unless the request's max_tokens is lower
    usage: str = "continuous"  #: continuous, final, inside (in the last chunk) or none
    kind: str = "content"
    reasoning: int = 0  #: number of chunks of thinking at the beginning
    stall_at: int = -1  #: chunk before which it stalls; -1 for none
    stall_s: float = 0.0  #: seconds of the stall
    cut_at: int = -1  #: chunk at which the connection is cut; -1 for none
    #: chunk that is replaced by `error`; 0 also for the answer of a request that is not streamed, -1 for none
    error_at: int = -1
    error: str = 'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}'
    status: int = 200  #: status of every answer
    drip_s: float = 0.0  #: seconds between the bytes of the headers
    #: decode rate of each request in turn; the last rate applies to all further requests
    rates: Sequence[float] = ()
    refuses: list[str] = field(default_factory=list)  #: keys that are refused with 400
    ghost: int = 0  #: additional tokens in the server's counter
    running: int = 0  #: other running requests
    prefix_block: int = 0  #: tokens of a block of the prefix cache; 0 disables the cache
    sightings: int = 1  #: number of requests with a prefix before it hits
    prefill_s: float = 0.0  #: seconds of prefill for 1000 tokens
    health_status: int = 200  #: status of /health
    silent: bool = False  #: never send a token
    empty_last: bool = False  #: the last token has no text
    api_key: str = ""
    model: str = "m"
    metrics: bool = True
    prefix_caching: str = "True"
    dies: bool = False  #: answer the first request with 500, then close the port
    accepts: list[float] = field(default_factory=list)  #: share of accepted draft tokens by position
    greedy_only: bool = False  #: answer requests with a temperature with 500


HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class ExactServer:
    """A server on 127.0.0.1 that follows a schedule.

    `record` has (received_s, [(sent_s, cumulative tokens), ...]) for each stream.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.port = 0
        self.record: list[tuple[float, list[tuple[float, int]]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.generated = self.queries = self.hits = 0
        self._seen: dict[str, int] = {}

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                received_s = time.perf_counter()
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                raw = await reader.readexactly(int(fields.get("content-length", 0)))
                body = json.loads(raw) if raw else {}
                allowed = not self.schedule.api_key or fields.get("authorization") == f"bearer {self.schedule.api_key}"
                if not allowed and path.startswith("/v1"):
                    self._reply(writer, 401, {"error": "Unauthorized"})
                elif method == "POST":
                    await self._chat(writer, body, received_s)
                else:
                    self._get(writer, path)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        schedule = self.schedule
        if path == "/health":
            self._reply(writer, schedule.health_status, None)
        elif path == "/version":
            self._reply(writer, 200, {"version": "0.32.0"})
        elif path == "/v1/models":
            self._reply(writer, 200, {"data": [{"id": schedule.model}]})
        elif path == "/metrics" and schedule.metrics:
            self._reply(writer, 200, self._metrics().encode())
        else:
            self._reply(writer, 404, {"detail": "Not Found"})

    def _metrics(self) -> str:
        schedule = self.schedule
        rows = {"num_requests_running": schedule.running, "num_requests_waiting": 0}
        rows["generation_tokens_total"] = self.generated
        if schedule.prefix_block:
            rows |= {"prefix_cache_queries_total": self.queries, "prefix_cache_hits_total": self.hits}
        labels = '{engine="0",model_name="m"}'
        text = "".join(f"vllm:{name}{labels} {float(value)}\n" for name, value in rows.items())
        text += self._speculation() if schedule.accepts else ""
        info = f'block_size="{schedule.prefix_block}",enable_prefix_caching="{schedule.prefix_caching}"'
        return text + (f'vllm:cache_config_info{{{info},engine="0"}} 1.0\n' if schedule.prefix_block else "")

    def _speculation(self) -> str:
        """Return the counters of drafts, one draft for each token, named as in vLLM 0.32.0."""
        labels, accepted = 'engine="0",model_name="m"', [self.generated * share for share in self.schedule.accepts]
        rows = {f"num_drafts_total{{{labels}}}": float(self.generated)}
        rows[f"num_accepted_tokens_total{{{labels}}}"] = sum(accepted)
        for n, count in enumerate(accepted):
            rows[f'num_accepted_tokens_per_pos_total{{{labels},position="{n}"}}'] = count
        return "".join(f"vllm:spec_decode_{name} {float(value)}\n" for name, value in rows.items())

    @staticmethod
    def _reply(writer: asyncio.StreamWriter, status: int, payload: Any) -> None:
        data = b"" if payload is None else payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)

    async def _chat(self, writer: asyncio.StreamWriter, body: dict[str, Any], received_s: float) -> None:
        schedule = self.schedule
        self.bodies.append(body)
        refused = [key for key in schedule.refuses if key in body]
        if schedule.status != 200 or refused:
            message = f"Unrecognized request argument supplied: {refused[0]}" if refused else "no"
            return self._reply(writer, 400 if refused else schedule.status, {"error": {"message": message}})
        if schedule.dies:
            self._listener.close()
        if schedule.dies or (schedule.greedy_only and body.get("temperature")):
            return self._reply(writer, 500, {"error": {"message": "EngineCore encountered an issue."}})
        if schedule.silent:
            await asyncio.sleep(3600)
        if not body.get("stream") and schedule.error_at == 0:
            return self._reply(writer, 200, schedule.error.partition(": ")[2].encode())
        if not body.get("stream"):
            self.generated += body.get("max_tokens", 1)
            answer = {"role": "assistant", "content": None, schedule.kind: "ok"}
            return self._reply(writer, 200, {"choices": [{"message": answer}], "usage": {"completion_tokens": 1}})
        prompt = "".join(message["content"] for message in body.get("messages", ()))
        cached = self._count_cached(prompt)
        for n in range(0, len(HEAD), 4) if schedule.drip_s else ():
            writer.write(HEAD[n : n + 4])
            await asyncio.sleep(schedule.drip_s)
        if not schedule.drip_s:
            writer.write(HEAD)
        sent: list[tuple[float, int]] = []
        self.record.append((received_s, sent))
        due_s = received_s + schedule.first_s + schedule.prefill_s * (len(prompt.split()) - cached) / 1000
        for tokens, data in self._events(body, len(prompt.split())):
            if tokens > 0:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                due_s += self._gap_s() + (schedule.stall_s if len(sent) + 1 == schedule.stall_at else 0)
                if len(sent) + 1 == schedule.cut_at:
                    return writer.transport.abort()
                sent.append((time.perf_counter(), tokens))
                self.generated += tokens - (sent[-2][1] if len(sent) > 1 else 0)
            if writer.transport.is_closing():
                return None
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.generated += schedule.ghost
        return writer.write(b"0\r\n\r\n")

    def _gap_s(self) -> float:
        rates = self.schedule.rates
        return self.schedule.per_chunk / rates[min(len(self.record), len(rates)) - 1] if rates else self.schedule.gap_s

    def _count_cached(self, prompt: str) -> int:
        """Return the number of the prompt's words in whole blocks of the prefix cache."""
        block, words = self.schedule.prefix_block, prompt.split()
        if not block:
            return 0
        cached, counting = 0, True
        for end in range(block, len(words) + 1, block):
            part = " ".join(words[:end])
            counting = counting and self._seen.get(part, 0) >= self.schedule.sightings
            cached = end if counting else cached
            self._seen[part] = self._seen.get(part, 0) + 1
        self.queries += len(words)
        cached = cached if self.schedule.prefix_caching == "True" else 0
        self.hits += cached
        return cached

    def _events(self, body: dict[str, Any], prompt: int) -> Iterator[tuple[int, bytes]]:
        """Yield each event with the cumulative number of tokens; 0 for an event without a token."""
        schedule = self.schedule
        chunks = min(schedule.chunks, -(-int(body.get("max_tokens") or 10**9) // schedule.per_chunk))
        options = body.get("stream_options") or {}
        continuous_usage = schedule.usage == "continuous" and options.get("continuous_usage_stats", True)

        def event(delta: dict[str, Any] | None, tokens: int, usage: bool) -> bytes:
            data: dict[str, Any] = {"choices": [] if delta is None else [{"index": 0, "delta": delta}]}
            if usage:
                data["usage"] = {"prompt_tokens": prompt, "completion_tokens": tokens}
            return b"data: " + json.dumps(data).encode() + b"\n\n"

        yield 0, event({"role": "assistant", "content": ""}, 0, continuous_usage)
        for n in range(1, chunks + 1):
            tokens = n * schedule.per_chunk
            if n == schedule.error_at:
                yield 0, f"{schedule.error}\n\n".encode()
                yield 0, b"data: [DONE]\n\n"
                return
            kind = "reasoning" if n <= schedule.reasoning else schedule.kind
            text = "" if schedule.empty_last and n == chunks else "x"
            delta = {kind: [{"index": 0, "function": {"arguments": text}}] if kind == "tool_calls" else text}
            yield tokens, event(delta, tokens, continuous_usage or (schedule.usage == "inside" and n == chunks))
        if schedule.usage in ("continuous", "final"):
            yield 0, event(None, chunks * schedule.per_chunk, True)
        yield 0, b"data: [DONE]\n\n"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(schedule: Schedule) -> Iterator[ExactServer]:
    """Run the server in a thread of this process."""
    server, loop = ExactServer(schedule), asyncio.new_event_loop()
    started = threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start())
        started.set()
        loop.run_forever()
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
