"""One case: what was predicted, what the log was read as, and what the engine itself says. All three have to agree.

The engine's own word: its exit code, `/server_info` (which only dev mode opens) and a generated token. Of a case whose arguments were
only asked about (releases/asked.py): the configuration that it makes of them.
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
#: a log that shows a start names these two always
ALWAYS_READ = ("chunked_prefill", "prefix_caching")
STREAMS, STREAM_TOKENS, SAME_COUNT = 3, 128, 0.01
TRIES = 4
#: what a busy machine makes of a first token, and of a client beside an engine that wants every processor
TOKEN_S, HELD_UP = 180.0, "client is too slow"
#: what ends a start on a CPU, and nowhere else: a line of the log, and what it is. That is no disagreement.
CPU_ONLY = {
    "too many values to unpack (expected 2)": "the CPU backend can't run recurrent layers",
    "FP8 KV cache on CPU requires x86": "FP8 caches need AVX-512 or AMX on a CPU",
    "on the CPU backend is not compatible with FP8 KV cache": "the CPU backend has no FP8 cache beside chunked prefill",
}


@dataclass
class Outcome:
    """read: what sparkwright's reader made of the log. true: what the engine said of itself. started: False where it was only asked.
    not_here: why it can't start on a CPU."""

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
        """The line that decided: of a refusal its reason, of a start the config dump."""
        if not self.starts:
            return self.read.failure.evidence
        return self.read.readings.get("chunked_prefill", Reading()).evidence


def run_case(case: Case, engine: Engine, runs: Path, answer: Answer | None = None) -> Outcome:
    """Start it, ask it, stop it, compare. Its log, command and result stay in runs/NAME.

    answer: what it made of the arguments, for a release that does not tell its settings over HTTP.
    """
    folder = runs / case.name
    model = str(engine.models / case.model)
    argv = case.argv(model)
    output = prediction.predict(case, engine.model_config(case.model), VERSION)
    with serving(engine, argv, folder / "server.log") as server:
        outcome = Outcome(case, output, folder, server.ready, None, 0, server.reader.state)
        if server.ready:
            outcome.true = _read_settings(server) or dict(answer.settings or {} if answer else {})
            _query_server(server, outcome, flags.served_name(case.settings(), model))
    outcome.exit_code = server.exit_code
    outcome.took_s = server.took_s
    log = (folder / "server.log").read_bytes()
    outcome.read = read_log(log, LOG)
    outcome.not_here = "" if outcome.starts else _cpu_only_reason(log.decode(errors="replace"))
    _save_run(server, folder)
    outcome.wrong += disagreements(outcome, model)
    return outcome


def evaluate_answer(case: Case, answer: Answer, engine: Engine, runs: Path) -> Outcome:
    """Evaluate a case whose arguments were only parsed."""
    folder = runs / case.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.log").write_text(answer.output)
    result = prediction.predict(case, engine.model_config(case.model), VERSION)
    outcome = Outcome(
        case, result, folder, answer.exit_code == 0, answer.exit_code or None, 0, read_log(answer.output, LOG)
    )
    outcome.started = False
    outcome.not_here = "" if outcome.starts else _cpu_only_reason(answer.output)
    outcome.true = dict(answer.settings or {})
    outcome.wrong = disagreements(outcome, str(engine.models / case.model))
    return outcome


def _cpu_only_reason(log: str) -> str:
    return next((why for line, why in CPU_ONLY.items() if line in log), "")


def disagreements(outcome: Outcome, model: str) -> list[str]:
    """Sentences for all that does not agree; none is what is wanted."""
    expected = outcome.case.expected if VERSION == NEWEST else Prediction(None)
    sides = {"predicted": outcome.predicted, "expected": expected}
    wrong = [sentence for side, value in sides.items() for sentence in find_contradictions(value, side, outcome)]
    if not outcome.starts and not outcome.not_here:
        return wrong + _misread_refusal(outcome.read, expected, model)
    return wrong + (_misread_start(outcome) if outcome.started else [])


def _misread_refusal(state: EngineState, expected: Prediction, model: str) -> list[str]:
    sentence = expected.why.replace("{model}", model)
    if expected.starts is False and state.failure.value != sentence:
        return [f"expected {sentence!r}; the log was read as {state.failure.value!r}"]
    return [] if state.failure.value else ["nothing was read from the log of a refusal"]


def _misread_start(outcome: Outcome) -> list[str]:
    state, wrong = outcome.read, []
    if outcome.starts:
        wrong += [] if state.ready else ["the log was read as not ready"]
        wrong += [f"the log was read as a death: {state.failure.value}"] if state.failure.value else []
    for name in SETTINGS:
        true, read_value = outcome.true.get(name), state.value(name)
        if name in outcome.true and read_value != true and (read_value is not None or name in ALWAYS_READ):
            wrong.append(f"{name}: read {read_value}, is {true}")
    return wrong


def find_contradictions(stated: Prediction, side: str, outcome: Outcome) -> list[str]:
    """Return what was predicted and did not happen. For a start that a CPU can't do, the settings in its log count."""
    if stated.starts is None:
        return []
    late = not outcome.started and stated.why.startswith(prediction.LATE)
    if stated.starts != outcome.starts and not outcome.not_here and not late:
        message = "started" if outcome.starts else f"was refused: {outcome.read.failure.value}"
        return [f"{side} that it {'starts' if stated.starts else 'is refused'}; it {message}"]
    if not outcome.starts and not outcome.not_here:
        return []
    pairs = [(name, getattr(stated, name), effective_settings(outcome).get(name)) for name in SETTINGS]
    return [
        f"{name}: {side} {options}, is {true}"
        for name, options, true in pairs
        if None not in (options, true) and options != true
    ]


def effective_settings(outcome: Outcome) -> dict[str, Any]:
    """The settings: the engine's own word, or of a start that a CPU can't do its log's."""
    read_there = {name: outcome.read.value(name) for name in SETTINGS if outcome.read.value(name) is not None}
    return outcome.true or (read_there if outcome.not_here else {})


def _query_server(server: Server, outcome: Outcome, model: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        context = RecordingContext(Path(home))
        health = VerifyHealth().run(
            VerifyHealth.Args(base_url=server.base_url, model=model, timeout_s=TOKEN_S), context
        )
        outcome.health = health.msg
        if health.failed:
            outcome.wrong.append(f"verify_health: {health.msg}")
        elif outcome.case.measured:
            _measure(server, outcome, model, context)


def _read_settings(server: Server) -> dict[str, Any]:
    config = (server.ask("/server_info?config_format=json").json() or {}).get("vllm_config") or {}
    cache = config.get("cache_config") or {}
    message = {
        "chunked_prefill": (config.get("scheduler_config") or {}).get("enable_chunked_prefill"),
        "prefix_caching": cache.get("enable_prefix_caching"),
        "mamba_cache_mode": cache.get("mamba_cache_mode"),
        "block_size": cache.get("block_size"),
    }
    return message if config else {}


def _measure(server: Server, outcome: Outcome, model: str, context: RecordingContext) -> None:
    """The clients that judge a deployed server, against this one; and both sides count the same tokens."""
    for _ in range(TRIES):
        smoked = SmokeTest().run(SmokeTest.Args(base_url=server.base_url, model=model), context)
        if HELD_UP not in smoked.msg:
            break
    if smoked.failed and HELD_UP not in smoked.msg:
        outcome.wrong.append(f"smoke_test: {smoked.msg}")
    before = _count_generated(server)
    bodies = [
        openai_api.build_stream_request(HTTP, model, throughput.build_prompt(), STREAM_TOKENS) for _ in range(STREAMS)
    ]
    streams = [stream.measure_stream(server.base_url, body) for body in bodies]
    counted, served = sum(stream.tokens for stream in streams), _count_generated(server) - before
    if any(stream.approximate for stream in streams) or abs(served - counted) > SAME_COUNT * served:
        outcome.wrong.append(f"the client counted {counted} tokens, the server {served:.0f}")
    rate = counted / sum(stream.points[-1][0] for stream in streams)
    held = sum((stream.ttft_s or 0) > stream.points[-1][0] / 2 for stream in streams)
    outcome.figures = (
        f"{smoked.msg}; client {counted} tokens, server {served:.0f}; {rate:.0f} tok/s from request to last token, "
        f"{held} of {STREAMS} streams came mostly at once"
    )


def _count_generated(server: Server) -> float:
    return HTTP.counters(server.ask(HTTP.metrics).body.decode())[engine_http.GENERATED]


def _save_run(server: Server, folder: Path) -> None:
    words = ["vllm", "serve", *server.argv]
    result = {
        "cmd": words,
        "health_transitions": server.transitions,
        "start_s": round(server.took_s, 2),
        "stop_s": round(server.stop_s, 2),
        "exit_code": server.exit_code,
    }
    (folder / "command.txt").write_text(" ".join(words) + "\n")
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
