"""Sparkwright's verdict on a real cluster: complete if all ranks have joined, otherwise the reason."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.vllm.member_log import parse_member_log
from sparkwright.measure import reference
from tests.real_engine.engine import Engine
from tests.real_engine.group import readings
from tests.real_engine.group.pair import HEAD, TOKEN_WITHIN_S, WORKER, Pair, running
from tests.real_engine.releases import page

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]

#: with pipeline parallelism the CPU runner needs the warm-up that --enforce-eager skips
EAGER_BACKEND: dict[str, Any] = {"compilation_config": {"backend": "eager"}}
#: chunks of a stream before the rank is killed
CHUNKS = 5
#: how long a worker must survive its head, seconds; it was observed to keep running for 90 s
UNNOTICED_S = 15


@pytest.fixture(scope="module", autouse=True)
def page_update() -> Iterator[None]:
    """Write the readings to the page in docs/."""
    yield
    page.DOCUMENT.write_text(page.render_page())


def wait_until_serving(pair: Pair) -> None:
    """Wait until both ranks have joined and the pair serves."""
    pair.until(lambda: pair.proof().verdict != "incomplete")
    proof = pair.proof()
    assert (proof.verdict, dict(proof.ranks), proof.transport) == ("complete", {HEAD: 0, WORKER: 1}, "gloo")
    pair.until(lambda: pair.health() == 200)
    answer = pair.token()
    assert answer.status == 200, answer.message()


def test_a_rank_killed_while_idle(engine: Engine, tmp_path: Path) -> None:
    """The head does not notice, and its /health returns 200 until someone requests a token."""
    with running(engine, tmp_path, {"tensor": 2}, enforce_eager=True) as pair:
        wait_until_serving(pair)
        readings.save_reading("tensor: 2", "both ranks, over gloo; a token", pair.proof().sentence)
        os.kill(pair.rank_of(WORKER), signal.SIGKILL)
        code = pair.members[WORKER].wait(60)
        assert code == 0
        health, proof = pair.health(), pair.proof()
        assert health == 200
        assert proof.verdict == "failed" and proof.sentence.startswith(f"rank 1 ({WORKER}): the process of rank 1")
        assert pair.token().status != 200
        message = f"/health {health}, the worker exited with {code}: {proof.sentence}"
        predicted = "/health 200, the worker exits with 0, told as rank 1's end"
        readings.save_reading("its rank 1 killed while idle", predicted, message)


def test_a_rank_killed_under_load(engine: Engine, tmp_path: Path) -> None:
    """A client that has received 200 and part of the text gets an error in the stream, followed by `[DONE]`."""
    with running(engine, tmp_path, {"tensor": 2}, enforce_eager=True) as pair:
        wait_until_serving(pair)
        rank = pair.rank_of(WORKER)
        error = pair.stream(lambda chunks: os.kill(rank, signal.SIGKILL) if chunks == CHUNKS else None)
        assert error, "a broken stream counts as an answer"
        worker, head = (pair.members[host].wait(120) for host in (WORKER, HEAD))
        assert (worker, head, pair.health()) == (0, 0, 0)
        proof = pair.proof()
        assert proof.verdict == "failed" and proof.sentence.startswith(f"rank 1 ({WORKER}): the process of rank 1")
        message = f"the client: {error}; the worker exits with {worker}, the head with {head}: {proof.sentence}"
        predicted = "the client is told an error, both exit with 0, told as rank 1's end"
        readings.save_reading("its rank 1 killed under load", predicted, message)


def test_a_killed_head(engine: Engine, tmp_path: Path) -> None:
    """The worker keeps running, and no log mentions it: only the state of the head's container shows it."""
    with running(engine, tmp_path, {"tensor": 2}, enforce_eager=True) as pair:
        wait_until_serving(pair)
        os.killpg(pair.members[HEAD].pid, signal.SIGKILL)
        assert pair.members[HEAD].wait(60) == -signal.SIGKILL
        with pytest.raises(subprocess.TimeoutExpired):
            pair.members[WORKER].wait(UNNOTICED_S)
        logs, code = pair.proof().sentence, pair.stop(WORKER)
        assert (code, pair.health()) == (0, 0)
        message = f"/health refused; the worker runs on for {UNNOTICED_S} s and exits with {code} when stopped; the logs still say: {logs}"
        readings.save_reading("its head killed", "the worker runs on until it is stopped; no log tells", message)


def test_a_member_with_different_arguments(engine: Engine, tmp_path: Path) -> None:
    """vLLM serves until a prompt is too long for one rank, and then hangs until the head's own timeout."""
    flags: dict[str, Any] = {"enforce_eager": True, "max_model_len": 8192}
    with running(engine, tmp_path, {"tensor": 2}, worker={"--max-model-len": "1024"}, **flags) as pair:
        wait_until_serving(pair)
        changes = {change.field: (change.before, change.after) for change in pair.drift(WORKER)}
        assert (changes, pair.drift(HEAD)) == ({"--max-model-len": ("1024", "8192")}, [])
        with pytest.raises(reference.Unanswered) as error:
            pair.texts()
        code = pair.members[HEAD].wait(TOKEN_WITHIN_S)
        proof = pair.proof()
        assert (code, proof.verdict) == (0, "failed")
        assert proof.sentence.startswith(f"rank 1 ({WORKER}): this rank received a prompt of ")
        message = f"all joined, a token; by its command line: --max-model-len 1024, not 8192; the long reference text: {error.value}; the head exits with {code}: {proof.sentence}"
        predicted = "all joined, a token; told by the command line and the long reference text"
        readings.save_reading("another max-model-len on rank 1", predicted, message)


def test_pipeline_parallel_and_stopping_it(engine: Engine, tmp_path: Path) -> None:
    """Stop the head first: the worker keeps running, and each takes longer to stop than Docker's default of 10 s."""
    with running(engine, tmp_path, {"pipeline": 2}, **EAGER_BACKEND) as pair:
        wait_until_serving(pair)
        readings.save_reading("pipeline: 2", "both ranks, over gloo; a token", pair.proof().sentence)
        head = pair.stop(HEAD)
        assert pair.members[WORKER].poll() is None
        worker = pair.stop(WORKER)
        assert (head, worker) == (0, 0)
        message = f"the worker runs on without its head; they exit with {head} and {worker}"
        predicted = "no worker ends by itself; both exit with 0 within its time"
        readings.save_reading("stopped, the head first", predicted, message)


def test_a_worker_that_never_joins(engine: Engine, tmp_path: Path) -> None:
    """The head logs what it is about to do, which proves nothing, and opens no port."""
    with running(engine, tmp_path, {"tensor": 2}, (HEAD,), enforce_eager=True) as pair:
        pair.until(lambda: parse_member_log(pair.logs[HEAD].read_bytes()).intended_rank is not None)
        proof = pair.proof()
        assert (proof.verdict, proof.missing) == ("incomplete", (0, 1))
        assert proof.sentence == f"not joined: rank 0 ({HEAD}), rank 1 ({WORKER})."
        assert pair.health() == 0
        message = f"/health refused; {proof.sentence}"
        readings.save_reading("the worker is never started", "no rank joined, no port", message)
