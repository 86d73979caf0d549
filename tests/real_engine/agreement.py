"""The evaluation of a case: the prediction, sparkwright's reading of the log, and the engine's own report must agree.

The engine reports its exit code, `/server_info` (in dev mode only) and a generated token. For a case whose arguments
were only parsed (releases/asked.py), it reports the resulting configuration.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api
from sparkwright.engines.log.reader import EngineState, Reading, read_log
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.http import HTTP
from sparkwright.engines.vllm.log import LOG
from sparkwright.measure import stream, throughput
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.modules.proof.smoke_test import SmokeTest
from tests.modules.context import RecordingContext
from tests.real_engine import prediction
from tests.real_engine.cases import Case, Prediction
from tests.real_engine.engine import VERSION, Engine, Server, serving
from tests.real_engine.releases.asked import Answer
from tests.real_engine.releases.install import NEWEST

SETTINGS = ("chunked_prefill", "prefix_caching", "mamba_cache_mode", "block_size")
#: settings that every log of a start contains
ALWAYS_READ = ("chunked_prefill", "prefix_caching")
STREAMS, STREAM_TOKENS, SAME_COUNT = 3, 128, 0.01
TRIES = 4
#: limits for a busy machine: the time of a first token, and the failure of a client that gets too little CPU time
TOKEN_S, HELD_UP = 180.0, "client is too slow"
#: failures that only a CPU causes, which are no disagreement: a part of the log, and the reason
CPU_ONLY = {
    "too many values to unpack (expected 2)": "the CPU backend can't run recurrent layers",
    "FP8 KV cache on CPU requires x86": "FP8 caches need AVX-512 or AMX on a CPU",
    "on the CPU backend is not compatible with FP8 KV cache": "the CPU backend has no FP8 cache beside chunked prefill",
}


@dataclass
class Outcome:
    """The outcome of a case.

    read: sparkwright's reading of the log. true: the settings that the engine reported. started: False if the arguments were
    only parsed. not_here: why the case cannot start on a CPU.
    """

    case: Case
    predicted: Prediction
    folder: Path
    starts: bool
    exit_code: int | None
    took_s: float
    read: EngineState
    true: dict[str, Any] = field(default_factory=dict)
    health: str = ""
    figures: str = ""
    wrong: list[str] = field(default_factory=list)
    started: bool = True
    not_here: str = ""

    def evidence(self) -> str:
        """Return the decisive line of the log: the reason of a refusal, or the settings of a start."""
        if not self.starts:
            return self.read.failure.evidence
        return self.read.readings.get("chunked_prefill", Reading()).evidence


def run_case(case: Case, engine: Engine, runs: Path, answer: Answer | None = None) -> Outcome:
    """Run a case and evaluate it. Its log, command and result stay in runs/NAME.

    answer: the settings for a release that does not report them over HTTP.
    """
    folder, model = runs / case.name, str(engine.models / case.model)
    predicted = prediction.predict(case, engine.model_config(case.model), VERSION)
    with serving(engine, case.argv(model), folder / "server.log") as server:
        outcome = Outcome(case, predicted, folder, server.ready, None, 0, server.reader.state)
        if server.ready:
            outcome.true = _read_settings(server) or dict(answer.settings or {} if answer else {})
            _query_server(server, outcome, flags.served_names(case.settings(), model)[0])
    outcome.exit_code, outcome.took_s = server.process.poll(), server.took_s
    log = (folder / "server.log").read_bytes()
    outcome.read = read_log(log, LOG)
    outcome.not_here = "" if outcome.starts else _cpu_only_reason(log.decode(errors="replace"))
    _save_run(server, folder)
    outcome.wrong += disagreements(outcome, model)
    return outcome


def evaluate_answer(case: Case, answer: Answer, engine: Engine, runs: Path) -> Outcome:
    """Evaluate a case whose arguments were only parsed."""
    folder, starts = runs / case.name, answer.exit_code == 0
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.log").write_text(answer.output)
    predicted, read = prediction.predict(case, engine.model_config(case.model), VERSION), read_log(answer.output, LOG)
    outcome = Outcome(case, predicted, folder, starts, answer.exit_code or None, 0, read, started=False)
    outcome.not_here = "" if starts else _cpu_only_reason(answer.output)
    outcome.true = dict(answer.settings or {})
    outcome.wrong = disagreements(outcome, str(engine.models / case.model))
    return outcome


def _cpu_only_reason(log: str) -> str:
    return next((why for line, why in CPU_ONLY.items() if line in log), "")


def disagreements(outcome: Outcome, model: str) -> list[str]:
    """Return a sentence for each disagreement."""
    expected = outcome.case.expected if VERSION == NEWEST else Prediction(None)
    sides = {"predicted": outcome.predicted, "expected": expected}
    wrong = [sentence for side, value in sides.items() for sentence in find_contradictions(value, side, outcome)]
    if not outcome.starts and not outcome.not_here:
        return wrong + _misread_refusal(outcome.read, expected, model)
    return wrong + (_misread_start(outcome) if outcome.started else [])


def _misread_refusal(state: EngineState, expected: Prediction, model: str) -> list[str]:
    sentence = expected.why.replace("{model}", model)
    if expected.starts is False and state.failure.value != sentence:
        return [f"expected {sentence!r}; read from the log: {state.failure.value!r}"]
    return [] if state.failure.value else ["no reason was read from the log of a refusal"]


def _misread_start(outcome: Outcome) -> list[str]:
    state, wrong = outcome.read, []
    if outcome.starts:
        wrong += [] if state.ready else ["the log of a start was read as not ready"]
        wrong += [f"a failure was read from the log of a start: {state.failure.value}"] if state.failure.value else []
    for name in SETTINGS:
        true, read_value = outcome.true.get(name), state.value(name)
        if name in outcome.true and read_value != true and (read_value is not None or name in ALWAYS_READ):
            wrong.append(f"{name}: read {read_value}, is {true}")
    return wrong


def find_contradictions(stated: Prediction, side: str, outcome: Outcome) -> list[str]:
    """Return the predictions that the outcome contradicts. For a start that fails on a CPU, the settings in the log count."""
    if stated.starts is None:
        return []
    late = not outcome.started and stated.why.startswith(prediction.LATE)
    if stated.starts != outcome.starts and not outcome.not_here and not late:
        end = "started" if outcome.starts else f"was refused: {outcome.read.failure.value}"
        return [f"{side} that it {'starts' if stated.starts else 'is refused'}; it {end}"]
    if not outcome.starts and not outcome.not_here:
        return []
    effective = effective_settings(outcome)
    rows = [(name, getattr(stated, name), effective.get(name)) for name in SETTINGS]
    return [
        f"{name}: {side} {value}, is {true}"
        for name, value, true in rows
        if None not in (value, true) and value != true
    ]


def effective_settings(outcome: Outcome) -> dict[str, Any]:
    """Return the settings that the engine reported, or those in the log of a start that failed on a CPU."""
    read_there = {name: outcome.read.value(name) for name in SETTINGS if outcome.read.value(name) is not None}
    return outcome.true or (read_there if outcome.not_here else {})


def _query_server(server: Server, outcome: Outcome, model: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        context = RecordingContext(Path(home))
        args = VerifyHealth.Args(base_url=server.base_url, model=model, timeout_s=TOKEN_S)
        health = VerifyHealth().run(args, context)
        outcome.health = health.msg
        if health.failed:
            outcome.wrong.append(f"verify_health: {health.msg}")
        elif outcome.case.measured:
            _measure(server, outcome, model, context)


def _read_settings(server: Server) -> dict[str, Any]:
    config = (server.ask("/server_info?config_format=json").json() or {}).get("vllm_config") or {}
    if not config:
        return {}
    cache, scheduler = config.get("cache_config") or {}, config.get("scheduler_config") or {}
    settings = {name: cache.get(name) for name in ("mamba_cache_mode", "block_size")}
    settings["prefix_caching"] = cache.get("enable_prefix_caching")
    return {**settings, "chunked_prefill": scheduler.get("enable_chunked_prefill")}


def _measure(server: Server, outcome: Outcome, model: str, context: RecordingContext) -> None:
    """Run the clients that measure a deployed server; their count of tokens and the server's must agree."""
    for _ in range(TRIES):
        result = SmokeTest().run(SmokeTest.Args(base_url=server.base_url, model=model), context)
        if HELD_UP not in result.msg:
            break
    if result.failed and HELD_UP not in result.msg:
        outcome.wrong.append(f"smoke_test: {result.msg}")
    before = _count_generated(server)
    body = openai_api.build_stream_request(HTTP, model, throughput.build_prompt(), STREAM_TOKENS)
    streams = [stream.measure_stream(server.base_url, body) for _ in range(STREAMS)]
    counted, served = sum(stream.tokens for stream in streams), _count_generated(server) - before
    if any(stream.approximate for stream in streams) or abs(served - counted) > SAME_COUNT * served:
        outcome.wrong.append(f"the client counted {counted} tokens, the server {served:.0f}")
    rate = counted / sum(stream.points[-1][0] for stream in streams)
    held = sum((stream.ttft_s or 0) > stream.points[-1][0] / 2 for stream in streams)
    outcome.figures = (
        f"{result.msg}; client {counted} tokens, server {served:.0f}; {rate:.0f} tok/s from request to last token, "
        f"{held} of {STREAMS} streams came mostly at once"
    )


def _count_generated(server: Server) -> float:
    return HTTP.counters(server.ask(HTTP.metrics_path).body.decode())[engine_http.GENERATED]


def _save_run(server: Server, folder: Path) -> None:
    words = ["vllm", "serve", *server.argv]
    times = {"start_s": round(server.took_s, 2), "stop_s": round(server.stop_s, 2)}
    result = {"cmd": words, "health_transitions": server.transitions, **times, "exit_code": server.process.poll()}
    (folder / "command.txt").write_text(" ".join(words) + "\n")
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
