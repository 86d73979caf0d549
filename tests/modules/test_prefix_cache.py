"""The prefix cache check against a server with a cache of a known kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import caches as prefix_verdict
from sparkwright.engines import engine
from sparkwright.errors import Exit
from sparkwright.modules.proof.repeated_requests import PrefixCache
from sparkwright.protocol.result import Result
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext

ASKED = {"enable-prefix-caching": True}


def run(tmp_path: Path, flags: dict[str, Any] | None = None, **plan: Any) -> Result:
    with serving(Schedule(first_s=0.01, gap_s=0.001, **plan)) as server:
        args = PrefixCache.Args(base_url=server.url, model="m", flags=flags or {})
        return PrefixCache().run(args, RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1"))


@pytest.mark.parametrize("sightings", [1, 2])
def test_a_cache_that_works_is_proved(tmp_path: Path, sightings: int) -> None:
    found = run(tmp_path, ASKED, prefix_block=64, sightings=sightings, prefill_s=1.0)
    assert found.data["verdict"] == "hits"
    assert found.data["hit_share"] == 1.0
    first, *_, last = found.data["sightings"]
    assert first["hits"] == 0
    assert last["ttft_s"] < first["ttft_s"]


def test_a_cache_that_never_hits_fails_where_it_was_asked_for(tmp_path: Path) -> None:
    assert run(tmp_path, ASKED, prefix_block=64, sightings=99).failed
    found = run(tmp_path, {}, prefix_block=64, sightings=99)
    assert (found.failed, found.data["verdict"]) == (False, "no hits")


def test_turned_off_is_said_without_a_request(tmp_path: Path) -> None:
    assert run(tmp_path, prefix_block=64, prefix_caching="False").data["verdict"] == "off"
    assert run(tmp_path, ASKED, prefix_block=64, prefix_caching="False").failed


def test_a_server_without_counters_is_unknown(tmp_path: Path) -> None:
    found = run(tmp_path, ASKED)
    assert (found.failed, found.data["verdict"]) == (False, "unknown")


def test_a_stream_that_breaks_off_fails(tmp_path: Path) -> None:
    assert run(tmp_path, prefix_block=64, error_at=1).failed


def test_requests_of_others_make_it_inconclusive(tmp_path: Path) -> None:
    with serving(Schedule(first_s=0.01, gap_s=0.001, prefix_block=64)) as server:
        count = server._cached
        server._cached = lambda prompt: count(prompt) + count("of somebody else " * 50) * 0  # type: ignore[method-assign]
        args = PrefixCache.Args(base_url=server.url, model="m")
        found = PrefixCache().run(args, RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1"))
    assert found.exit is Exit.INCONCLUSIVE


@pytest.mark.parametrize(
    ("name", "flags", "asked"),
    [
        ("vllm", {"enable-prefix-caching": True}, True),
        ("vllm", {"enable_prefix_caching": False}, False),
        ("vllm", {}, False),
        ("sglang", {"disable-radix-cache": False}, True),
        ("sglang", {"disable-radix-cache": True}, False),
        ("llama_cpp", {"cache-prompt": True}, True),
        ("llama_cpp", {"no-cache-prompt": True}, False),
    ],
)
def test_each_engine_is_asked_for_its_prefix_cache_by_its_own_flag(
    name: str, flags: dict[str, Any], asked: bool
) -> None:
    assert prefix_verdict.asked_for(name, engine.of(name).flags.named(flags)) is asked
