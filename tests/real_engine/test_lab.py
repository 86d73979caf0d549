"""The lab with a real vLLM on a CPU: smoke test, prefix cache, chunked prefill on and off, and a sweep of three sizes."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines.log import resolution as log_dump
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm import log as vllm_settings
from sparkwright.engines.vllm.http import HTTP
from sparkwright.engines.vllm.log import LOG
from sparkwright.measure import lab, server_client
from sparkwright.measure.http_probe import Target
from sparkwright.measure.workload import Load
from tests.real_engine.engine import RUNS, Engine, Server, serving_ready

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]

CONTEXT = 4096
RECURRENT = ("--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "16")
CHUNKED = "enable-chunked-prefill"
LONG = 3000
STEPS = (256, 512, 1024)
TIMES = 5


@contextmanager
def running_server(engine: Engine, name: str, model: str, *words: str) -> Iterator[Server]:
    words = (str(engine.models / model), *RECURRENT, *words)
    with serving_ready(engine, words, RUNS / f"lab-{name}" / "server.log") as server:
        yield server


def measure(server: Server, load: Load) -> dict[str, Any]:
    cell = lab.measure_load(Target(HTTP, server.base_url, server.argv[0], timeout_s=600), load)
    assert cell["verdict"] == "measured", cell["doubts"]
    return cell


def chunks_meanwhile(server: Server, load: Load) -> float:
    """Return the number of chunks of a decoding stream during a long prefill: the median, because it depends on the scheduler."""
    derived = [measure(server, load)["derived"] for _ in range(TIMES)]
    assert all(item["long_prompt_tokens"] == pytest.approx(LONG, rel=0.1) for item in derived)
    chunks: list[float] = [item["chunks_meanwhile"] for item in derived]
    return median(chunks)


def read_settings(server: Server) -> dict[str, str]:
    lines = server.log.read_text(errors="replace").splitlines()
    return next(settings for line in lines if (settings := vllm_settings.parse_settings_line(line)))


def test_smoke_load_and_prefix_cache(engine: Engine) -> None:
    with running_server(engine, "dense", "dense") as server:
        streamed = measure(server, Load("smoke", requests=3, prompt_tokens=1024, output_tokens=64))
        assert streamed["derived"]["prompt_tokens"] == pytest.approx(1024, rel=0.1)
        assert streamed["figures"]["output_tokens"] == 3 * 64
        assert streamed["figures"]["approximate"] is False
        assert streamed["prefix_hit_share"] is not None and streamed["prefix_hit_share"] < 0.05
        requests = server_client.measure_prefix_reuse(Target(HTTP, server.base_url, server.argv[0]), 500)
        assert [bool(request.hits) for request in requests] == [False, True, True]


def test_chunked_prefill_lets_other_streams_continue_during_a_long_prompt(engine: Engine) -> None:
    """With it, a decoding stream gets a token after each piece of a long prompt; without it, only after the whole prompt."""
    hol1 = Load("hol1", streams=2, output_tokens=400, long_tokens=LONG, after_s=0.4)
    off_words = ("--no-enable-chunked-prefill", "--no-enable-prefix-caching")
    on_words = ("--no-enable-prefix-caching", "--max-num-batched-tokens", str(STEPS[0]))
    meanwhile, dumps = {}, {}
    for name, words in (("on", on_words), ("off", off_words)):
        with running_server(engine, name, "gated_delta", *words) as server:
            meanwhile[name], dumps[name] = chunks_meanwhile(server, hol1), read_settings(server)
            state = read_log(server.log.read_bytes(), LOG)
            assert (state.value("chunked_prefill"), state.value("prefix_caching")) == (name == "on", False)
    assert log_dump.evaluate_settings(dumps["on"], dumps["off"], [CHUNKED], engines.get_engine("vllm")) == "differs"
    assert meanwhile["on"] - meanwhile["off"] >= LONG / STEPS[0] / 2, meanwhile


def test_an_explicit_default_changes_nothing(engine: Engine) -> None:
    dumps = []
    for name, words in (("plain", ()), ("explicit", (f"--{CHUNKED}",))):
        with running_server(engine, name, "gated_delta", *words) as server:
            dumps.append(read_settings(server))
    plain, explicit = dumps
    assert log_dump.find_differences(plain, explicit) == {}
    assert log_dump.evaluate_settings(plain, explicit, [CHUNKED], engines.get_engine("vllm")) == "same"


def test_a_sweep_of_three_sizes(engine: Engine) -> None:
    """The larger the step, the fewer tokens a decoding stream gets during a long prompt."""
    meanwhile = []
    for size in STEPS:
        with running_server(engine, f"step-{size}", "gated_delta", "--max-num-batched-tokens", str(size)) as server:
            hol1 = Load("hol1", streams=1, output_tokens=400, long_tokens=LONG, after_s=0.4)
            meanwhile.append(chunks_meanwhile(server, hol1))
    assert meanwhile[0] - meanwhile[-1] >= LONG / STEPS[0] / 2, meanwhile
