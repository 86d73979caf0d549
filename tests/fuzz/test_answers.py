"""Damaged answers of servers, Ollama and nvidia-smi, and damaged engine logs: readable values are used, others are unknown."""

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api
from sparkwright.engines.log import reader
from sparkwright.engines.log import text as log_text
from sparkwright.engines.vllm import log
from sparkwright.engines.vllm.http import HTTP
from sparkwright.host import nvidia_smi
from sparkwright.host.ollama import LoadedModel, Ollama, OllamaBusy
from sparkwright.measure import gpu_sampler, http_probe, stream
from sparkwright.measure.stream import Recording, StreamError
from tests.fuzz.harness import damaged_texts, damaged_values, feed, feed_texts
from tests.http_servers import QuietHandler, in_background

DATA = Path(__file__).parent.parent / "data/vllm-0.32.0"
LOGS = [path.read_bytes() for at in ("*", "../llama-b*/*") for path in sorted(DATA.glob(f"{at}/server.log"))]
METRICS = (
    b"# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    b'vllm:generation_tokens_total{engine="0",model_name="m"} 1.25e+06\nvllm:kv_cache_usage_perc{engine="0"} 0.31\n'
    b'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0"} 1.0\n'
)
STREAM = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"content": "b"}}], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}\n\ndata: [DONE]\n\n',
    b'data: {"choices": [{"delta": {"reasoning": "x"}}]}\n\ndata: {"error": {"message": "out of memory", "code": 500}}\n\n',
]
SMI = b"850, 4.6, 41, 0\n2411, [N/A], 63, 96\n"
PS: dict[str, Any] = {
    "models": [
        {"name": "qwen3:8b", "size": 6_000_000_000, "context_length": 4096, "expires_at": "2318-01-01T00:00:00Z"},
        {"name": "gpt-oss:20b", "size": 14_000_000_000, "size_vram": 14_000_000_000},
    ]
}


@pytest.mark.parametrize("name", engines.TITLES)
def test_logs(name: str) -> None:
    def read(data: bytes) -> None:
        state = reader.read_log(data, engines.get_engine(name).log)
        json.dumps(state.to_json())
        for line in log_text.iter_lines(data):
            log.parse_settings_line(line)

    feed(read, damaged_texts(LOGS))


def test_metrics() -> None:
    def read(text: str) -> None:
        counters = HTTP.counters(text)
        assert all(0 <= value < 2**60 for value in counters.values())
        HTTP.parse_cache_settings(text)

    feed_texts(read, [METRICS])


def test_invalid_counter_values_are_ignored() -> None:
    name = HTTP.roles[engine_http.GENERATED].name
    text = "\n".join(f"{name} {value}" for value in ("NaN", "+Inf", "1e308", "-5", "9" * 5000, "7"))
    assert HTTP.counters(text) == {engine_http.GENERATED: 7.0, engine_http.HEARTBEAT: 7.0}


def test_nvidia_smi() -> None:
    def read(text: str) -> None:
        sample = gpu_sampler.build_sample(nvidia_smi.parse_figures(text, nvidia_smi.SAMPLE_VALUES))
        state = gpu_sampler.summarize_samples([sample] if sample else [])
        json.dumps(state.to_json(), allow_nan=False)
        assert state.sentence

    feed_texts(read, [SMI])


def test_compute_processes() -> None:
    def read(text: str) -> None:
        processes = nvidia_smi.parse_processes(text)
        assert all(process.pid >= 0 and (process.bytes or 0) >= 0 for process in processes.processes)

    feed_texts(read, [b"4242, VLLM::EngineCore, 104140\n77, [Not Found], [N/A]\n[N/A], [N/A], [N/A]\n"])


def test_streams() -> None:
    def read(data: bytes) -> None:
        half = len(data) // 2
        measured = stream.parse_recording(Recording([(0.1, data[:half]), (0.2, data[half:])]))
        assert 0 <= measured.tokens <= stream.MAX_TOKENS
        json.dumps([measured.tok_per_s, measured.ttft_s, measured.gaps_s])

    feed(read, damaged_texts(STREAM), refuses=(StreamError,))


def test_chunks() -> None:
    chunks = [json.loads(line[5:]) for item in STREAM for line in item.split(b"\n") if line.startswith(b"data: {")]

    def read(chunk: Any) -> None:
        stream.parse_recording(Recording([(0.1, b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")]))

    feed(read, damaged_values(chunks), refuses=(StreamError,))


def test_an_endless_chunk_is_refused() -> None:
    with pytest.raises(StreamError, match="a chunk exceeds 1 MiB"):
        stream.parse_recording(Recording([(0.1, b"data: " + b"x" * 2**16)] * 40))


def test_answers_of_a_server() -> None:
    models = {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}
    answer = {"choices": [{"message": {"content": "ok", "reasoning": None}}], "usage": {"completion_tokens": 1}}
    error = {"error": {"message": "no such model", "code": 404}}

    def read(value: Any) -> None:
        body = http_probe.Response(200, json.dumps(value).encode())
        openai_api.parse_models(HTTP, body.json()).get("m")
        openai_api.parse_answer(body.json())
        openai_api.count_tokens(body.json())
        assert len(body.message()) <= 200

    feed(read, damaged_values([models, answer, error]))


class HostileServer(ThreadingHTTPServer):
    """A server that answers every request with these bytes."""

    answer: bytes = b""


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            assert isinstance(self.server, HostileServer)
            self.wfile.write(self.server.answer)
        except OSError:
            pass  # the client has closed the connection

    do_POST = do_GET


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileServer]:
    server = HostileServer(("127.0.0.1", 0), _Handler)
    with in_background(server):
        yield server


def test_ollama(hostile: HostileServer) -> None:
    ollama = Ollama(f"http://127.0.0.1:{hostile.server_port}")

    def read(value: Any) -> None:
        hostile.answer = json.dumps(value).encode()
        for item in ollama.list_loaded():
            assert item.size_bytes is None or 0 <= item.size_bytes < 2**60
            assert 0 <= item.context_length < 2**60

    feed(read, damaged_values([PS]), refuses=(OllamaBusy,))


@pytest.mark.parametrize(
    ("answer", "loaded"),
    [
        ({"models": [{"name": "m", "size": 10**30, "context_length": -1}]}, [LoadedModel("m", None)]),
        ({"models": [{"size": 1}, "x", {"name": "m", "size": 5}]}, [LoadedModel("m", 5)]),
        ({"models": 7}, []),
    ],
)
def test_absurd_sizes_of_loaded_models_are_unknown(
    hostile: HostileServer, answer: Any, loaded: list[LoadedModel]
) -> None:
    hostile.answer = json.dumps(answer).encode()
    assert Ollama(f"http://127.0.0.1:{hostile.server_port}").list_loaded() == loaded


@pytest.mark.parametrize(
    ("answer", "message"),
    [(b"<html>", "not JSON"), (b"[" * 10**6, "deeper"), (b" " * 2**24, "more than 8 MiB")],
    ids=["HTML", "deep nesting", "too large"],
)
def test_an_unreadable_answer_of_ollama_counts_as_no_answer(
    hostile: HostileServer, answer: bytes, message: str
) -> None:
    hostile.answer = answer
    with pytest.raises(OllamaBusy, match=message):
        Ollama(f"http://127.0.0.1:{hostile.server_port}").list_loaded()


def test_a_probe_limits_the_size_of_a_response(hostile: HostileServer) -> None:
    hostile.answer = b"x" * 2**24
    answer = http_probe.send_request(f"http://127.0.0.1:{hostile.server_port}", "/metrics", timeout_s=20)
    assert (answer.status, answer.body, answer.error) == (0, b"", "the response has more than 8 MiB")
