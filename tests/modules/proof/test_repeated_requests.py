"""Texts and the prefix cache of a server, compared with earlier requests."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine, prefix_cache
from sparkwright.errors import Exit
from sparkwright.measure import reference
from sparkwright.modules.proof.repeated_requests import PrefixCache, ReferenceText
from sparkwright.protocol.result import Result
from tests.measure.exact_server import ExactServer, Schedule, serving
from tests.measure.json_server import json_server
from tests.modules.context import RecordingContext

KEY = {"image": "vllm/vllm-openai:v1@sha256:aa", "model": "c0ffee", "command": ["m"], "env": {}}
ANSWERS = ("42", "54", "Paris", "Tokyo", "15", "Tuesday", "8", "cold", "quixotry", "LAMP", "1, 2, 3, 4, 5", "marigold")
PROMPTS = [question.prompt for question in reference.QUESTIONS]


class ScriptedServer:
    """A server that generates `texts` in turn; an Exception becomes an error with status 200.

    Attributes:
        right: number of questions that are answered correctly.
        max_bytes: longer requests are refused.
    """

    def __init__(self) -> None:
        self.texts: Sequence[str | Exception] = ["one two three"]
        self.request_count = 0
        self.max_bytes = 10**6
        self.right = 0
        self.url = ""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        text = self.texts[self.request_count % len(self.texts)]
        self.request_count += 1
        prompt = body["messages"][-1]["content"]
        if prompt in PROMPTS[: self.right]:
            text = ANSWERS[PROMPTS.index(prompt)]
        if len(json.dumps(body)) >= self.max_bytes:
            return 400, {}
        if isinstance(text, Exception):
            return 200, {"error": {"message": str(text)}}
        rows = [{"top_logprobs": [{"token": word, "logprob": -0.1}]} for word in text.split()]
        return 200, {"choices": [{"message": {"content": text}, "logprobs": {"content": rows}}]}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    value = ScriptedServer()
    with json_server(value.answer) as value.url:
        yield value


def check_reference_text(server: ScriptedServer, home: Path, *, check: bool = False, **arguments: Any) -> Result:
    (home / "root/etc").mkdir(parents=True, exist_ok=True)
    (home / "root/etc/machine-id").write_text("spark-one\n")
    defaults = {"base_url": server.url, "model": "m", "baseline_key": KEY, "answers": "any"}
    context = RecordingContext(home, check=check, root=f"{home}/root")
    return ReferenceText().run(ReferenceText.Args(**defaults | arguments), context)


def test_first_text_becomes_the_reference(server: ScriptedServer, tmp_path: Path) -> None:
    assert check_reference_text(server, tmp_path).data["verdict"] == "new reference"
    again = check_reference_text(server, tmp_path)
    assert (again.failed, again.exit, again.data["verdict"]) == (False, None, "same")


def test_another_text_fails_with_both_texts_and_their_difference(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path)
    server.texts = ["one zwei drei"]
    result = check_reference_text(server, tmp_path)
    assert (result.failed, result.exit, result.data["verdict"]) == (True, None, "another")
    assert "with the same image, model and arguments" in result.msg
    assert (result.data["reference"][0], result.data["texts"][0]) == ("one two three", "one zwei drei")
    assert result.data["partings"][0]["token"] == 2
    assert "  reference: 'one two three'" in result.data["evidence"]
    assert "  now:       'one zwei drei'" in result.data["evidence"]
    assert check_reference_text(server, tmp_path).failed, "a failed text must not become the reference"


def test_one_different_text_of_three_is_inconclusive(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path)
    server.texts, server.request_count = ["one two three", "one two three", "one zwei drei"], 0
    result = check_reference_text(server, tmp_path)
    assert (result.failed, result.exit, result.data["verdict"]) == (False, Exit.INCONCLUSIVE, "doubtful")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({"model": "other"}, "new reference"), ({"members": ["spark1", "spark3"]}, "same")],
    ids=["another model", "replaced member"],
)
def test_reference_belongs_to_a_model_but_not_to_members(
    server: ScriptedServer, tmp_path: Path, changes: dict[str, Any], verdict: str
) -> None:
    key = {**KEY, "members": ["spark1", "spark2"]}
    check_reference_text(server, tmp_path, baseline_key=key)
    assert check_reference_text(server, tmp_path, baseline_key=key | changes).data["verdict"] == verdict


def test_new_baseline_replaces_the_reference(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path)
    server.texts = ["one zwei drei"]
    assert check_reference_text(server, tmp_path, new_baseline=True).data["verdict"] == "new reference"
    assert check_reference_text(server, tmp_path).data["verdict"] == "same"


def test_reference_of_an_unverified_server_is_not_stored(server: ScriptedServer, tmp_path: Path) -> None:
    assert check_reference_text(server, tmp_path, record=False).data["verdict"] == "not compared"
    assert check_reference_text(server, tmp_path, baseline_key={}).data["verdict"] == "not compared"
    assert not list(tmp_path.rglob("references/*"))


def test_check_mode_stores_no_reference(server: ScriptedServer, tmp_path: Path) -> None:
    assert check_reference_text(server, tmp_path, check=True, new_baseline=True).data["verdict"] == "not compared"
    assert not list(tmp_path.rglob("references/*"))


def test_error_with_status_200_fails_in_the_words_of_the_server(server: ScriptedServer, tmp_path: Path) -> None:
    server.texts = [RuntimeError("EngineCore encountered an issue.")]
    result = check_reference_text(server, tmp_path)
    assert (result.failed, "EngineCore encountered an issue." in result.msg) == (True, True)


def test_cluster_is_asked_a_long_prompt_if_its_context_has_room(server: ScriptedServer, tmp_path: Path) -> None:
    pair = {**KEY, "members": ["spark1", "spark2"]}
    result = check_reference_text(server, tmp_path, baseline_key=pair)
    assert (len(result.data["texts"]), result.msg.endswith("recorded (4 prompts)")) == (4, True)
    server.texts, server.request_count = ["one two three"] * 3 + ["one zwei drei"], 0
    result = check_reference_text(server, tmp_path, baseline_key=pair)
    assert (result.failed, result.exit) == (False, Exit.INCONCLUSIVE)
    assert result.data["evidence"][0].startswith("'a long prompt' differs at token 2")
    server.max_bytes = 1000
    assert len(check_reference_text(server, tmp_path / "short", baseline_key=pair).data["texts"]) == 3


def test_garbage_fails_and_does_not_become_the_reference(server: ScriptedServer, tmp_path: Path) -> None:
    server.texts = ["'s't's't's's's't's's't's's't's's", "'s't's't's's't's's", "'s't's's't's"]
    result = check_reference_text(server, tmp_path, answers="judged")
    assert (result.failed, result.data["verdict"]) == (True, "garbage")
    assert "0 of 12 simple questions right" in result.msg
    assert any("capital of France" in line and "'s't" in line for line in result.data["evidence"])
    server.texts, server.right = ["The sky is blue because light scatters.", "Mercury is small.", "def fib(n): ..."], 12
    assert check_reference_text(server, tmp_path, answers="judged").data["verdict"] == "new reference"


@pytest.mark.parametrize(
    ("right", "verdict"),
    [(12, "new reference"), (7, "new reference"), (6, "doubtful"), (2, "doubtful"), (1, "garbage")],
)
def test_few_right_answers_are_no_reference(server: ScriptedServer, tmp_path: Path, right: int, verdict: str) -> None:
    server.texts, server.right = ["A sentence that answers no question."], right
    result = check_reference_text(server, tmp_path, answers="judged")
    assert result.data["verdict"] == verdict
    assert result.exit == (Exit.INCONCLUSIVE if verdict == "doubtful" else None)
    assert result.failed == (verdict == "garbage")


def test_questions_longer_than_the_context_are_ignored(server: ScriptedServer, tmp_path: Path) -> None:
    server.right, server.max_bytes = 11, 1000
    assert check_reference_text(server, tmp_path, answers="judged").data["verdict"] == "new reference"


CACHING_ON = {"enable-prefix-caching": True}


def check_prefix_cache(tmp_path: Path, server: ExactServer, flags: dict[str, Any] | None = None) -> Result:
    args = PrefixCache.Args(base_url=server.url, model="m", flags=flags or {})
    return PrefixCache().run(args, RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1"))


def make_schedule(**changes: Any) -> Schedule:
    return Schedule(first_s=0.01, gap_s=0.001, **{"prefix_block": 64, **changes})


@pytest.mark.parametrize("sightings", [1, 2])
def test_working_prefix_cache_is_proved(tmp_path: Path, sightings: int) -> None:
    with serving(make_schedule(sightings=sightings, prefill_s=1.0)) as server:
        result = check_prefix_cache(tmp_path, server, CACHING_ON)
    assert (result.data["verdict"], result.data["hit_share"]) == ("hits", 1.0)
    first = result.data["sightings"][0]
    assert first["hits"] == 0
    assert first["ttft_s"] >= 0.15, "the first request waits for its prefill: 1 ms per token"


@pytest.mark.parametrize(
    ("flags", "schedule", "failed", "verdict"),
    [
        (CACHING_ON, {"sightings": 99}, True, "no hits"),
        ({}, {"sightings": 99}, False, "no hits"),
        (CACHING_ON, {"prefix_caching": "False"}, True, "off"),
        ({}, {"prefix_caching": "False"}, False, "off"),
        (CACHING_ON, {"prefix_block": 0}, False, "unknown"),
    ],
    ids=["requested, no hits", "no hits", "requested, off", "off", "no counters"],
)
def test_prefix_cache_without_hits_fails_only_if_requested(
    tmp_path: Path, flags: dict[str, Any], schedule: dict[str, Any], failed: bool, verdict: str
) -> None:
    with serving(make_schedule(**schedule)) as server:
        result = check_prefix_cache(tmp_path, server, flags)
    assert (result.failed, result.data["verdict"]) == (failed, verdict)


def test_interrupted_stream_fails(tmp_path: Path) -> None:
    with serving(make_schedule(error_at=1)) as server:
        assert check_prefix_cache(tmp_path, server).failed


def test_requests_of_other_clients_are_inconclusive(tmp_path: Path) -> None:
    with serving(make_schedule()) as server:
        count_cached = server._count_cached

        def count_with_another_request(prompt: str) -> int:
            cached = count_cached(prompt)
            count_cached("another client " * 50)
            return cached

        server._count_cached = count_with_another_request  # type: ignore[method-assign]
        assert check_prefix_cache(tmp_path, server).exit is Exit.INCONCLUSIVE


@pytest.mark.parametrize(
    ("name", "flags", "requested"),
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
def test_prefix_cache_is_requested_by_each_engines_flag(name: str, flags: dict[str, Any], requested: bool) -> None:
    assert prefix_cache.is_requested(name, engine.get_engine(name).flags.normalize(flags)) is requested
