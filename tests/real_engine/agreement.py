"""One case, run: what was predicted, what the log was read as, and what the engine itself says. All three have to agree.

The engine's own word: its exit code, `/server_info` (which only dev mode opens) and a generated token.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.log.reader import EngineState, Reading, read
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.http import HTTP
from sparkwright.engines.vllm.log import LOG
from sparkwright.measure import smoke, stream
from sparkwright.modules.proof.smoke_test import SmokeTest
from sparkwright.modules.proof.verify_health import VerifyHealth
from tests.modules.context import RecordingContext
from tests.real_engine import prediction
from tests.real_engine.cases import Case, Prediction
from tests.real_engine.engine import Engine, Server, serving

SETTINGS = ("chunked_prefill", "prefix_caching", "mamba_cache_mode", "block_size")
#: a log that shows a start names these two always
ALWAYS_READ = ("chunked_prefill", "prefix_caching")
STREAMS, STREAM_TOKENS, SAME_COUNT = 3, 128, 0.01
TRIES = 4


@dataclass
class Outcome:
    """read: what sparkwright's reader made of the log. true: what the engine said of itself over HTTP."""

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

    def evidence(self) -> str:
        """The line that decided: of a refusal its reason, of a start the config dump."""
        if not self.starts:
            return self.read.failure.evidence
        return self.read.readings.get("chunked_prefill", Reading()).evidence


def run(case: Case, engine: Engine, runs: Path) -> Outcome:
    """Start it, ask it, stop it, compare. Its log, command and result stay in runs/NAME."""
    folder = runs / case.name
    model = str(engine.models / case.model)
    argv = case.argv(model)
    with serving(engine, argv, folder / "server.log") as server:
        outcome = Outcome(
            case,
            prediction.predicted(case, engine.model_config(case.model)),
            folder,
            server.ready,
            None,
            0,
            server.reader.state,
        )
        if server.ready:
            _ask(server, outcome, flags.served_name(case.settings(), model))
    outcome.exit_code = server.exit_code
    outcome.took_s = server.took_s
    outcome.read = read((folder / "server.log").read_bytes(), LOG)
    _keep(server, folder)
    outcome.wrong += disagreements(outcome, model)
    return outcome


def disagreements(outcome: Outcome, model: str) -> list[str]:
    """Sentences for all that does not agree; none is what is wanted."""
    sides = {"predicted": outcome.predicted, "expected": outcome.case.expected}
    wrong = [sentence for side, said in sides.items() for sentence in _against(said, side, outcome)]
    read = outcome.read
    if not outcome.starts:
        sentence = outcome.case.expected.why.replace("{model}", model)
        same = read.failure.value == sentence or outcome.case.expected.starts
        return wrong if same else [*wrong, f"expected {sentence!r}; the log was read as {read.failure.value!r}"]
    wrong += [] if read.ready else ["the log was read as not ready"]
    wrong += [f"the log was read as a death: {read.failure.value}"] if read.failure.value else []
    for name in SETTINGS:
        true, seen = outcome.true.get(name), read.value(name)
        if seen != true and (seen is not None or name in ALWAYS_READ):
            wrong.append(f"{name}: read {seen}, is {true}")
    return wrong


def _against(said: Prediction, side: str, outcome: Outcome) -> list[str]:
    if said.starts is None:
        return []
    if said.starts != outcome.starts:
        told = "started" if outcome.starts else f"was refused: {outcome.read.failure.value}"
        return [f"{side} that it {'starts' if said.starts else 'is refused'}; it {told}"]
    if not outcome.starts:
        return []
    pairs = [(name, getattr(said, name), outcome.true.get(name)) for name in SETTINGS]
    return [f"{name}: {side} {asked}, is {true}" for name, asked, true in pairs if asked is not None and asked != true]


def _ask(server: Server, outcome: Outcome, model: str) -> None:
    outcome.true = _own_word(server)
    with tempfile.TemporaryDirectory() as home:
        context = RecordingContext(Path(home))
        health = VerifyHealth().run(VerifyHealth.Args(base_url=server.base_url, model=model), context)
        outcome.health = health.msg
        if health.failed:
            outcome.wrong.append(f"verify_health: {health.msg}")
        elif outcome.case.measured:
            _measure(server, outcome, model, context)


def _own_word(server: Server) -> dict[str, Any]:
    config = (server.ask("/server_info?config_format=json").json() or {}).get("vllm_config") or {}
    cache = config.get("cache_config") or {}
    return {
        "chunked_prefill": (config.get("scheduler_config") or {}).get("enable_chunked_prefill"),
        "prefix_caching": cache.get("enable_prefix_caching"),
        "mamba_cache_mode": cache.get("mamba_cache_mode"),
        "block_size": cache.get("block_size"),
    }


def _measure(server: Server, outcome: Outcome, model: str, context: RecordingContext) -> None:
    """The clients that judge a deployed server, against this one; and both sides count the same tokens."""
    for _ in range(TRIES):
        smoked = SmokeTest().run(SmokeTest.Args(base_url=server.base_url, model=model), context)
        if "client is too slow" not in smoked.msg:
            break  # the engine's threads want every processor that the client runs on
    if smoked.failed:
        outcome.wrong.append(f"smoke_test: {smoked.msg}")
    before = _generated(server)
    bodies = [openai_api.measured_stream(HTTP, model, smoke.prompt(), STREAM_TOKENS) for _ in range(STREAMS)]
    streams = [stream.run(server.base_url, body) for body in bodies]
    counted, served = sum(one.tokens for one in streams), _generated(server) - before
    if any(one.approximate for one in streams) or abs(served - counted) > SAME_COUNT * served:
        outcome.wrong.append(f"the client counted {counted} tokens, the server {served:.0f}")
    rate = counted / sum(one.points[-1][0] for one in streams)
    held = sum((one.ttft_s or 0) > one.points[-1][0] / 2 for one in streams)
    outcome.figures = (
        f"{smoked.msg}; client {counted} tokens, server {served:.0f}; {rate:.0f} tok/s from request to last token, "
        f"{held} of {STREAMS} streams came mostly at once"
    )


def _generated(server: Server) -> float:
    return HTTP.counters(server.ask(HTTP.metrics).body.decode())[roles.GENERATED]


def _keep(server: Server, folder: Path) -> None:
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
