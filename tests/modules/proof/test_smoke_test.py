"""The smoke test against a server with a known schedule: its verdicts, its refusals and its baselines."""

import gc
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright import defaults
from sparkwright.engines.model import roofline
from sparkwright.errors import Exit
from sparkwright.host.runs import lock
from sparkwright.measure import gpu_sampler
from sparkwright.measure.background import LagSampler
from sparkwright.modules.proof.smoke_test import SmokeTest
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.measure.exact_server import ExactServer, Schedule, serving
from tests.modules.context import RecordingContext

COMMAND = ["m", "--max-num-seqs", "8"]
KEY = {"image": "vllm/vllm-openai:v1@sha256:aa", "model": "c0ffee", "command": COMMAND, "env": {}}
FAST: dict[str, Any] = {"first_s": 0.01, "rates": [300.0]}
SMI = '#!/bin/sh\necho "{clock}, 28.5, 45, 96"\n'


@pytest.fixture(autouse=True)
def ignored_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept measurements on a busy machine."""
    monkeypatch.setattr(LagSampler, "spoils_rates", lambda lag, decoding_s: False)


def make_context(home: Path, *, clock: int = 0) -> RecordingContext:
    env = {"PATH": "/usr/bin:/bin"}
    if clock:
        tool = home / "bin/nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(SMI.format(clock=clock))
        tool.chmod(0o755)
        env = {"PATH": f"{home}/bin:/usr/bin:/bin"}
    (home / "root/proc").mkdir(parents=True, exist_ok=True)
    (home / "root/proc/meminfo").write_text("MemTotal: 125000000 kB\nMemAvailable: 60000000 kB\nMemFree: 50000000 kB\n")
    (home / "root/etc").mkdir(exist_ok=True)
    (home / "root/etc/machine-id").write_text("spark-one\n")
    return RecordingContext(home, root=f"{home}/root", env=env, ollama_url="http://127.0.0.1:1")


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    return make_context(tmp_path)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    with serving(Schedule(**FAST)) as value:
        yield value


def run_smoke_test(server: ExactServer, context: RecordingContext, **arguments: Any) -> Result:
    args = {"base_url": server.url, "model": "m", "tokens": 40, "baseline_key": KEY, **arguments}
    return SmokeTest().run(SmokeTest.Args(**args), context)


def test_baseline_of_an_unknown_server_is_not_stored(server: ExactServer, context: RecordingContext) -> None:
    result = run_smoke_test(server, context, baseline_key={})
    assert (result.failed, result.data["verdict"], result.data["baseline"]) == (False, "not compared", None)
    assert not list(context.state.path.glob("baselines/*"))


def test_smoke_test_sends_nothing_during_another_measurement(server: ExactServer, context: RecordingContext) -> None:
    with lock.acquire_measurement(context.state, "run-2", "Verify"):
        result = run_smoke_test(server, context, wait_s=0)
    assert not server.record
    assert (result.exit, "Verify is in progress on this host (run run-2)" in result.msg) == (Exit.INCONCLUSIVE, True)


def test_first_run_creates_the_baseline_for_later_runs(server: ExactServer, context: RecordingContext) -> None:
    first, second = run_smoke_test(server, context), run_smoke_test(server, context)
    assert (first.data["verdict"], second.data["verdict"]) == ("new baseline", "proved")
    assert second.data["baseline"] == pytest.approx(first.data["tok_per_s"], rel=0.2)


def test_check_mode_stores_no_baseline(server: ExactServer, context: RecordingContext) -> None:
    context.check = True
    assert run_smoke_test(server, context).data["verdict"] == "new baseline"
    assert not list(context.state.path.glob("baselines/*"))


def test_baseline_is_replaced_only_on_request(server: ExactServer, context: RecordingContext) -> None:
    run_smoke_test(server, context)
    server.schedule.rates = [130.0]
    regression = run_smoke_test(server, context)
    assert (regression.failed, regression.data["verdict"]) == (True, "regression")
    assert run_smoke_test(server, context, new_baseline=True).data["verdict"] == "new baseline"
    assert run_smoke_test(server, context).data["verdict"] == "proved"


def test_garbage_collection_pauses_while_tokens_arrive(server: ExactServer, context: RecordingContext) -> None:
    collections_s: list[float] = []

    def record_collection(phase: str, info: dict[str, int]) -> None:
        collections_s.append(time.perf_counter())

    threshold = gc.get_threshold()
    gc.callbacks.append(record_collection)
    gc.set_threshold(10)
    try:
        run_smoke_test(server, context)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(record_collection)
    streams = [sent for _, sent in server.record]
    assert collections_s, "garbage is collected before and after the streams"
    assert not [at_s for at_s in collections_s if streams[0][0][0] < at_s < streams[-1][-1][0]]


def test_failed_run_does_not_become_the_baseline(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.rates = [100.0]
    assert run_smoke_test(server, context, tok_per_s=300).data["verdict"] == "misconfigured"
    server.schedule.rates = [300.0]
    assert run_smoke_test(server, context, tok_per_s=300).data["verdict"] == "new baseline"


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"command": ["--max-num-seqs", "8", "m"]}, False),
        ({"command": ["m", "--max-num-seqs", "16"]}, False),
        ({"command": ["m", "--enforce-eager", "--max-num-seqs", "8"]}, True),
        ({"image": "vllm/vllm-openai:v2@sha256:aa"}, True),
        ({"image": "vllm/vllm-openai:v1@sha256:bb"}, False),
        ({"model": "beef"}, False),
        ({"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}}, False),
    ],
    ids=str,
)
def test_comparable_configurations_share_a_baseline(
    server: ExactServer, context: RecordingContext, changes: dict[str, Any], is_same: bool
) -> None:
    command = [*COMMAND, "--enforce-eager"] if "--enforce-eager" in changes.get("command", ()) else COMMAND
    run_smoke_test(server, context, baseline_key={**KEY, "command": command})
    result = run_smoke_test(server, context, baseline_key={**KEY, **changes})
    assert (result.data["baseline"] is not None) == is_same, result.msg


def test_new_baseline_is_compared_with_the_nearest_one(server: ExactServer, context: RecordingContext) -> None:
    run_smoke_test(server, context)
    result = run_smoke_test(server, context, baseline_key={**KEY, "image": "vllm/vllm-openai@sha256:bb"})
    assert "with another image" in result.msg


def test_running_requests_of_other_clients_are_inconclusive(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.running = 2
    result = run_smoke_test(server, context)
    assert (result.failed, result.exit) == (True, Exit.INCONCLUSIVE)
    assert "2 requests" in result.msg
    assert not server.bodies


@pytest.mark.parametrize("changes", [{"running": 2}, {"ghost": 20}], ids=["before the measurement", "during it"])
def test_inconclusive_measurement_does_not_fail_a_deploy(context: RecordingContext, changes: dict[str, Any]) -> None:
    with serving(Schedule(**FAST, **changes)) as server:
        result = run_smoke_test(server, context, unclear="report")
    assert (result.failed, result.exit) == (False, Exit.INCONCLUSIVE)
    assert "other traffic" in result.msg
    assert result.data["tok_per_s"] is None


def test_slow_server_fails_in_a_deploy(server: ExactServer, context: RecordingContext) -> None:
    assert run_smoke_test(server, context, unclear="report", tok_per_s=1_000_000).failed


@pytest.mark.parametrize(("ghost", "doubted"), [(0, False), (20, True), (-3, True)])
def test_token_counts_must_agree(server: ExactServer, context: RecordingContext, ghost: int, doubted: bool) -> None:
    server.schedule.ghost = ghost
    result = run_smoke_test(server, context)
    assert (result.exit is Exit.INCONCLUSIVE) is doubted
    assert ("the server counted" in result.msg) is doubted


def test_server_without_counters_is_measured(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.metrics = False
    assert run_smoke_test(server, context).data["verdict"] == "new baseline"


def test_host_with_a_low_clock_is_not_a_regression(tmp_path: Path) -> None:
    with serving(Schedule(first_s=0.01, rates=[100.0])) as server:
        result = run_smoke_test(server, make_context(tmp_path, clock=851), tok_per_s=300)
    assert (result.exit, result.data["verdict"]) == (Exit.INCONCLUSIVE, "host degraded")
    assert "851 MHz" in result.msg


def test_normal_clock_is_stored_with_the_baseline(server: ExactServer, tmp_path: Path) -> None:
    context = make_context(tmp_path, clock=2411)
    assert run_smoke_test(server, context).data["gpu"]["clock_mhz"] == 2411
    (path,) = context.state.path.glob("baselines/*.json")
    assert json.loads(path.read_text())["clock_mhz"] == 2411


def test_very_slow_server_fails_quickly_with_likely_causes(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with serving(Schedule(first_s=0.1, gap_s=1 / 5.7, chunks=10_000)) as server:
        result = run_smoke_test(server, make_context(tmp_path, clock=2411), tok_per_s=47, tokens=128)
    assert time.monotonic() - began_s < 25
    assert (result.failed, result.exit, result.data["verdict"]) == (True, None, "misconfigured"), result.msg
    names = [cause["cause"] for cause in result.data["causes"]]
    assert "an image without kernels for this GPU (sm_121)" in names
    assert not any("power fault" in name for name in names)  # the clock was seen to be normal
    assert all(cause["evidence"] for cause in result.data["causes"])


def test_rate_above_memory_bandwidth_is_invalid(server: ExactServer, context: RecordingContext, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 8, "num_hidden_layers": 1}))
    header = json.dumps({"layer.weight": {"dtype": "F8", "shape": [1], "data_offsets": [0, 3 * 10**9]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    context.facts = {"gpu": {"name": "NVIDIA GB10"}}
    result = run_smoke_test(server, context, model_dir=str(model), tok_per_s=47)
    assert (result.data["ceiling_tok_per_s"], result.data["verdict"]) == (91.0, "invalid")


def test_ceiling_of_a_mixture_counts_the_experts_of_one_token() -> None:
    config = {"text_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_experts": 256, "num_experts_per_tok": 8}}
    tensors = [
        ("model.layers.0.mlp.experts.0.up_proj.weight", 256_000),
        ("lm_head.weight", 1000),
        ("model.embed_tokens.weight", 1000),
        ("model.visual.blocks.0.weight", 5000),
    ]
    assert roofline.bytes_per_token(config, tensors) == 9000
    assert roofline.bytes_per_token({**config, "tie_word_embeddings": True}, tensors) == 10_000
    assert roofline.ceiling("NVIDIA GB10", 3_650_000_000) == pytest.approx(74.8, abs=0.1)
    assert roofline.ceiling("NVIDIA H100", 3_650_000_000) is None


def test_api_key_is_used_and_never_shown(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.api_key = "sesame-opens"
    context.secrets = {"VLLM_API_KEY": Secret("sesame-opens")}
    result = run_smoke_test(server, context)
    assert result.data["verdict"] == "new baseline"
    assert "sesame" not in json.dumps([result.registered(), context.events])


def test_interrupted_stream_fails_in_the_words_of_the_server(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.error_at = 5
    result = run_smoke_test(server, context)
    assert result.failed
    assert "EngineCore encountered an issue" in result.msg


def test_smoke_test_with_a_baseline_sends_four_requests(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.rates = [20.0]  # slow, so that a busy machine has little effect
    run_smoke_test(server, context)
    server.bodies.clear()
    run_smoke_test(server, context)
    assert [body["max_tokens"] for body in server.bodies] == [32, 40, 40, 40]
    assert defaults.SMOKE_TOKEN_COUNT == 128


def test_busy_gpu_with_little_power_is_reported() -> None:
    waiting = gpu_sampler.GpuState(clock_mhz=2400.0, power_w=28.5, utilization_percent=96.0, samples=9)
    assert waiting.describe_stall(70.0).startswith("the GPU is 96 % busy at 28 W, against 70 W before")
    assert waiting.describe_stall(30.0) == waiting.describe_stall(None) == ""
    idle = gpu_sampler.GpuState(power_w=28.5, utilization_percent=40.0)
    assert idle.describe_stall(70.0) == ""


SPECULATING = {**KEY, "command": ["m", "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']}


@pytest.mark.parametrize(("lagging", "verdict"), [(2, "new baseline"), (3, "inconclusive")])
def test_measurement_is_repeated_while_the_client_lags(
    server: ExactServer, context: RecordingContext, monkeypatch: pytest.MonkeyPatch, lagging: int, verdict: str
) -> None:
    measurements: list[LagSampler] = []

    def spoils_rates(lag: LagSampler, decoding_s: float) -> bool:
        if lag not in measurements:
            measurements.append(lag)
        return len(measurements) <= lagging

    monkeypatch.setattr(LagSampler, "spoils_rates", spoils_rates)
    result = run_smoke_test(server, context)
    assert (result.data["verdict"], len(measurements)) == (verdict, 3), result.msg


def test_acceptance_by_position_is_stored_and_a_drop_fails(context: RecordingContext) -> None:
    with serving(Schedule(first_s=0.01, rates=[100.0], accepts=[0.8, 0.5])) as server:
        first = run_smoke_test(server, context, baseline_key=SPECULATING)
        server.schedule.accepts = [0.75, 0.4]
        similar = run_smoke_test(server, context, baseline_key=SPECULATING)
        server.generated = 0  # as after a restart
        server.schedule.accepts = [0.3, 0.05]
        dropped = run_smoke_test(server, context, baseline_key=SPECULATING)
    assert (first.failed, first.data["verdict"]) == (False, "new baseline"), first.msg
    assert first.data["acceptance_by_position"] == [0.8, 0.5] and first.data["acceptance"] == 1.3
    assert "acceptance by position 0.80, 0.50" in first.msg
    (path,) = context.state.path.glob("baselines/*.json")
    assert json.loads(path.read_text())["acceptance"] == [0.8, 0.5]
    assert similar.failed is False
    assert (dropped.failed, dropped.data["verdict"]) == (True, "regression")
    assert "30% of the drafts' first tokens are accepted, against 80% before" in dropped.msg
    assert any("few draft tokens are accepted" in row for row in dropped.data["evidence"])


def test_speculation_that_fails_with_a_temperature_creates_no_baseline(context: RecordingContext) -> None:
    with serving(Schedule(**FAST, accepts=[0.8], greedy_only=True)) as server:
        result = run_smoke_test(server, context, baseline_key=SPECULATING)
        plain = run_smoke_test(server, context)
    assert (result.failed, result.data["verdict"]) == (True, "broken")
    assert "with 1 stream at temperature 0.7 the server did not answer" in result.msg and "EngineCore" in result.msg
    assert (plain.failed, plain.data["verdict"]) == (False, "new baseline"), "no temperatures without speculation"
    assert len(list(context.state.path.glob("baselines/*.json"))) == 1


def test_speculation_is_probed_at_both_temperatures(server: ExactServer, context: RecordingContext) -> None:
    server.schedule.accepts = [0.8]
    result = run_smoke_test(server, context, baseline_key=SPECULATING)
    cells = [(cell["streams"], cell["temperature"]) for cell in result.data["speculation"]]
    assert cells == [(1, 0.0), (1, 0.7), (8, 0.0), (8, 0.7)]
    temperatures = [body["temperature"] for body in server.bodies if not body.get("stream")]
    assert temperatures == [0.0] * 8 + [0.7] * 8 + [0.0] * 8 + [0.7] * 8
