"""The verdict on a server's throughput, by the rule in docs/measuring.md."""

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.host import nvidia_smi
from sparkwright.measure import gpu_sampler, throughput
from sparkwright.measure.background import LagSampler
from sparkwright.measure.http_probe import Target
from sparkwright.measure.throughput import Baseline, Bounds, Run
from tests.measure.exact_server import ExactServer, Schedule, serving

NAMES = tuple(throughput.PROMPTS)


def make_runs(*rates: float) -> list[Run]:
    return [Run(NAMES[n % len(NAMES)], rate, 0.1) for n, rate in enumerate(rates)]


def make_baseline(rate: float, deviation: float = 0.0) -> Baseline:
    return Baseline(dict.fromkeys(NAMES, rate), deviation, 5)


def measure(
    schedule: Schedule, baseline: Baseline | None = None, *, expected: float | None = None, tokens: int = 40
) -> tuple[throughput.SmokeResult, ExactServer]:
    with serving(schedule) as server:
        bounds = Bounds(expected)
        measurement = throughput.measure_decode_rate(
            Target(HTTP, server.url, "m"), bounds=bounds, baseline=baseline, tokens=tokens
        )
    return measurement, server


@pytest.mark.parametrize(
    ("rates", "bounds", "baseline", "verdict"),
    [
        ((47, 47, 46), Bounds(47), None, "unclear"),
        ((5.7, 5.7, 5.6), Bounds(47), None, "misconfigured"),
        ((5.7, 5.7, 5.6), Bounds(47), make_baseline(5.7), "misconfigured"),
        ((23.4, 23.4, 23.4), Bounds(47), make_baseline(23.4), "misconfigured"),
        ((23.6, 23.6, 23.6), Bounds(47), make_baseline(23.6), "proved"),
        ((76, 76, 76), Bounds(47, ceiling=75), make_baseline(76), "invalid"),
        ((76, 76, 76), Bounds(47, ceiling=75, speculation=True), make_baseline(76), "proved"),
        ((44.7, 44.7, 44.7), Bounds(), make_baseline(47), "proved"),
        ((44.6, 44.6, 44.6), Bounds(), make_baseline(47), "unclear"),
        ((35.3, 35.3, 35.3), Bounds(), make_baseline(47), "unclear"),
        ((35.2, 35.2, 35.2), Bounds(), make_baseline(47), "regression"),
        ((47, 20, 46), Bounds(), make_baseline(47), "proved"),
        ((42, 42, 42), Bounds(), make_baseline(47, 0.0337), "unclear"),
        ((42.4, 42.4, 42.4), Bounds(), make_baseline(47, 0.05), "proved"),
        ((), Bounds(47), None, "misconfigured"),
    ],
)
def test_verdict_of_3_runs(rates: tuple[float, ...], bounds: Bounds, baseline: Baseline | None, verdict: str) -> None:
    assert throughput.evaluate_runs(make_runs(*rates), bounds, baseline)[0] == verdict


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((42, 42, 42, 43, 43, 43, 43), "proved"),
        ((42, 42, 42, 42.2, 42.2, 42.2, 42.2), "regression"),
        ((42, 42, 42, 42.2, 46, 46, 46), "regression"),
        ((42, 42, 42, 47, 47, 47, 47), "proved"),
    ],
)
def test_verdict_of_7_runs(rates: tuple[float, ...], verdict: str) -> None:
    assert throughput.evaluate_runs(make_runs(*rates), Bounds(), make_baseline(47), is_final=True)[0] == verdict


@pytest.mark.parametrize(
    ("deviation", "tolerance"), [(0.0, 0.10), (0.01, 0.10), (0.025, 0.148), (0.05, 0.20), (0.5, 0.20)]
)
def test_tolerance_follows_the_noise_within_limits(deviation: float, tolerance: float) -> None:
    assert make_baseline(47, deviation).tolerance == pytest.approx(tolerance, abs=0.001)


def test_faster_server_passes_with_a_note() -> None:
    verdict, _, note = throughput.evaluate_runs(make_runs(60, 60, 60), Bounds(), make_baseline(47))
    assert verdict == "proved"
    assert "faster than the baseline" in note


def test_with_speculation_each_prompt_is_compared_with_itself() -> None:
    runs = make_runs(41, 84, 127, 41, 84, 127)
    baseline = Baseline.from_runs(runs, by_prompt=True)
    assert baseline.deviation == 0
    assert throughput.evaluate_runs(make_runs(30, 62, 94), Bounds(speculation=True), baseline)[0] == "regression"
    assert throughput.evaluate_runs(runs[:3], Bounds(speculation=True), baseline)[0] == "proved"


def test_baseline_has_five_runs_and_survives_json() -> None:
    measurement, server = measure(Schedule(first_s=0.01, gap_s=0.004, chunks=40))
    assert (measurement.verdict, len(measurement.runs)) == ("new baseline", 5)
    assert [body["max_tokens"] for body in server.bodies] == [32, 40, 40, 40, 40, 40]
    assert len({body["messages"][0]["content"][:8] for body in server.bodies}) == 6
    baseline = Baseline.from_runs(measurement.runs)
    assert Baseline.from_json(baseline.to_json()) == baseline


def test_unclear_rate_causes_four_more_runs() -> None:
    measurement, _ = measure(Schedule(first_s=0.01, rates=[200] * 4 + [240], chunks=40), make_baseline(235, 0.05))
    assert (measurement.verdict, len(measurement.runs)) == ("proved", 7)


def test_refused_request_keys_are_not_a_failure() -> None:
    schedule = Schedule(first_s=0.01, gap_s=0.004, refuses=["chat_template_kwargs", "ignore_eos"])
    measurement, server = measure(schedule, tokens=30)
    assert [("ignore_eos" in body) for body in server.bodies] == [True, True] + [False] * 6
    assert measurement.verdict == "new baseline"


def test_prompts_have_different_beginnings() -> None:
    assert len({throughput.build_prompt()[:8] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("printed", "baseline_mhz", "degraded"),
    [
        ("2411, 45.2, 60, 96\n", None, False),
        ("851, 28.0, 45, 96\n", None, True),
        ("851, 28.0, 45, 3\n", None, False),
        ("1800, 40.0, 45, 96\n", None, False),
        ("1800, 40.0, 45, 96\n", 2400.0, True),
        ("[N/A], 40.0, 45, 96\n", None, False),
    ],
)
def test_busy_gpu_with_a_low_clock_is_degraded(printed: str, baseline_mhz: float | None, degraded: bool) -> None:
    sample = gpu_sampler.build_sample(nvidia_smi.parse_figures(printed, nvidia_smi.SAMPLE_VALUES))
    assert sample is not None
    assert gpu_sampler.summarize_samples([sample]).is_degraded(baseline_mhz) is degraded


def test_host_without_a_gpu_gives_no_sample() -> None:
    printed = nvidia_smi.parse_figures("NVIDIA-SMI has failed\n", nvidia_smi.SAMPLE_VALUES)
    assert gpu_sampler.build_sample(printed) is None
    assert gpu_sampler.summarize_samples([]).has_clock is False


def test_client_lag_spoils_percentiles_before_rates() -> None:
    lag = LagSampler(samples_s=[0.0001] * 95 + [0.02] * 5)
    assert lag.spoils_percentiles(0.02)
    assert not lag.spoils_rates(2.5)
    assert lag.spoils_rates(0.15)
    assert not LagSampler(samples_s=[0.0001] * 100).spoils_percentiles(0.02)


def test_server_that_answers_in_bursts_gets_no_baseline() -> None:
    measurement, _ = measure(Schedule(per_chunk=40, chunks=4, gap_s=0.2, first_s=0.2), expected=47, tokens=128)
    assert (measurement.verdict, measurement.runs) == ("not compared", [])
    assert len(measurement.burst_rates) == throughput.MIN_RUNS
    assert "in bursts" in measurement.reason
    assert "from the request to the last token" in measurement.reason


@pytest.mark.parametrize(
    ("expected", "verdict"), [(47, "not compared"), (150, "misconfigured"), (None, "not compared")]
)
def test_bursts_below_half_of_the_expected_rate_are_misconfigured(expected: float | None, verdict: str) -> None:
    assert throughput.evaluate_bursts([69.6, 70.1, 68.0], Bounds(expected))[0] == verdict
