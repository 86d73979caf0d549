"""The options of each release of SGLang and llama.cpp, and lint's advice for those that a release lacks."""

from typing import Any

import pytest

from sparkwright import host_side
from sparkwright.engines import engine, options
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding
from sparkwright.engines.llama_cpp import flags as llama_flags
from sparkwright.engines.sglang import flags as sglang_flags
from tests.engine_options import kept, table

HISTORIES = {"sglang": sglang_flags.HISTORY, "llama_cpp": llama_flags.HISTORY}
RELEASES = [(name, release) for name in HISTORIES for release in kept.list_releases(name)]
#: missing in builds that were compiled without it; removed for two releases
INTERRUPTED = {"rpc", "hierarchical-sparse-attention-extra-config"}
STRATEGY = {"mamba-scheduler-strategy": "extra_buffer"}
RADIX = {"mamba-radix-cache-strategy": "extra_buffer"}


def find_unknown_flags(name: str, flags: dict[str, Any], release: str | None) -> list[Finding]:
    """Return the findings about flags that a release lacks."""
    server_engine = engine.get_engine(name)
    checked = server_engine.advice.check(
        ServerRequest(server_engine.flags.normalize(flags)), {}, server_engine.advice.version(release)
    )
    return [finding for finding in checked if finding.rule == "unknown-flag"]


def list_remedies(name: str, flags: dict[str, Any], release: str | None) -> list[tuple[str, str]]:
    """Return severity and first remedy of the findings about flags that a release lacks."""
    return [(finding.severity, finding.ways_out[0].text) for finding in find_unknown_flags(name, flags, release)]


@pytest.mark.parametrize("name", HISTORIES)
def test_the_history_matches_the_stored_releases(name: str) -> None:
    path = table.ENGINES / name / "option_history.json"
    assert path.read_text() == table.render_table(name), "stale: python -m tests.engine_options.table"


def test_a_host_gets_the_tables_that_its_code_reads() -> None:
    tables = {
        path.relative_to(host_side.PACKAGE_FOLDER) for path in (host_side.PACKAGE_FOLDER / "engines").rglob("*.json")
    }
    assert {str(path) for path in tables} <= {name for name, _ in host_side.iter_sources()}


@pytest.mark.parametrize(("name", "release"), RELEASES)
def test_every_option_of_a_release_is_accepted_and_no_other(name: str, release: str) -> None:
    current = {word for option in kept.load(name, release) for word in option.names}
    all_words = {
        word for other in kept.list_releases(name) for option in kept.load(name, other) for word in option.names
    }
    history = HISTORIES[name]
    newest = (sglang_flags if name == "sglang" else llama_flags).TABLE.newest_options
    words = all_words & (history.spans.keys() | newest.keys()) - INTERRUPTED
    assert {word for word in words if history.existence(word, release).exists} == words & current


@pytest.mark.parametrize(
    ("name", "release", "flags", "severity", "remedy"),
    [
        ("sglang", "0.5.9", STRATEGY, "", ""),
        ("sglang", "0.5.13", STRATEGY, "", ""),
        ("sglang", "0.5.23", STRATEGY, "error", "write mamba-radix-cache-strategy"),
        ("sglang", "0.5.24", STRATEGY, "error", "write mamba-radix-cache-strategy"),
        ("sglang", None, STRATEGY, "warning", "write mamba-radix-cache-strategy"),
        ("sglang", "0.5.9", RADIX, "error", "write mamba-scheduler-strategy"),
        ("sglang", "0.5.23", RADIX, "", ""),
        ("sglang", None, RADIX, "", ""),
        ("sglang", "0.5.23", {"nsa-prefill-cp-mode": "in-seq-split"}, "error", "write cp-strategy: zigzag"),
        ("sglang", "0.5.23", {"disable-piecewise-cuda-graph": True}, "error", "write cuda-graph-backend-prefill: disabled"),
        ("sglang", "0.5.23", {"elastic-ep-rejoin": True}, "error", "write elastic-ep-join-mode: recover"),
        ("sglang", "0.5.23", {"enable-double-sparsity": True}, "error", "remove it"),
        ("sglang", "0.5.23", {"torchao-config": "int4wo-128"}, "error", "see the release notes after 0.5.17 for its replacement"),
        ("sglang", "0.5.23", {"context-lenght": 8192}, "error", "write context-length"),
        ("sglang", "0.5.23", {"enable-radix-cache": True}, "error", "write disable-radix-cache: false"),
        ("llama_cpp", "b10434", {"no-mmap": True}, "", ""),
        ("llama_cpp", "b11549", {"no-mmap": True}, "error", "write load-mode: none"),
        ("llama_cpp", "b11549", {"mmap": True}, "error", "write load-mode: mmap"),
        ("llama_cpp", "b11549", {"mlock": True}, "error", "write load-mode: mlock"),
        ("llama_cpp", "b11549", {"draft-max": 8}, "error", "write spec-draft-n-max"),
        ("llama_cpp", None, {"no-mmap": True}, "warning", "write load-mode: none"),
    ],
)  # fmt: skip
def test_a_flag_is_judged_by_the_release_and_its_successor_is_offered(
    name: str, release: str | None, flags: dict[str, Any], severity: str, remedy: str
) -> None:
    assert list_remedies(name, flags, release) == ([(severity, remedy)] if severity else [])


@pytest.mark.parametrize("name", HISTORIES)
def test_an_option_with_a_successor_is_not_just_removed(name: str) -> None:
    history = HISTORIES[name]
    newest = history.releases[-1]
    for option, span in history.spans.items():
        if span.last is None or span.successor in ("", options.NO_SUCCESSOR):
            continue
        value = True if span.kind in ("switch", "bare", "both") else "1"
        ((_, remedy),) = list_remedies(name, {option: value}, newest)
        assert not remedy.startswith("remove"), option


@pytest.mark.parametrize(
    ("version", "flags", "severity", "remedy"),
    [
        ("0.32.0", {"disable-log-requests": True}, "error", "remove it"),
        ("0.33.0", {"disable-log-requests": True}, "", ""),
        ("0.33.0", {"monokernel": True}, "", ""),
        ("0.33.0", {"enable-sliding-window": True}, "", ""),
        ("0.32.0", {"enable-sliding-window": True}, "error", "write disable-sliding-window: false"),
        ("0.32.0", {"disable-chunked-prefill": True}, "error", "write enable-chunked-prefill: false"),
        ("0.33.0", {"nonsense": 1}, "error", "remove it"),
    ],
)
def test_negated_switches_of_vllm(version: str, flags: dict[str, Any], severity: str, remedy: str) -> None:
    assert list_remedies("vllm", flags, version) == ([(severity, remedy)] if severity else [])


def test_an_unknown_version_is_not_named() -> None:
    (finding,) = find_unknown_flags("sglang", STRATEGY, None)
    assert finding.sentence == "mamba-scheduler-strategy: it was removed in 0.5.20; SGLang may refuse to start."


@pytest.mark.parametrize(
    ("name", "near"),
    [("max-num-seq", "max-num-seqs"), ("enable-sliding-window", ""), ("no-mmap", ""), ("enable-lorra", "enable-lora")],
)
def test_the_opposite_of_a_name_is_not_similar(name: str, near: str) -> None:
    known = ["max-num-seqs", "disable-sliding-window", "mmap", "enable-lora"]
    assert options.find_similar(name, known) == near
