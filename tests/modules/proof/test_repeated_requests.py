"""The reference text against a server that tells another text: recorded, compared, accepted."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine, prefix_cache
from sparkwright.errors import Exit
from sparkwright.measure import reference
from sparkwright.modules.proof.repeated_requests import PrefixCache, ReferenceText
from sparkwright.protocol.result import Result
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext

KEY = {"image": "vllm/vllm-openai:v1@sha256:aa", "model": "c0ffee", "command": ["m"], "env": {}}


#: a right answer to each question
RIGHT = list(
    zip(
        (question.prompt for question in reference.QUESTIONS),
        ("42", "54", "Paris", "Tokyo", "15", "Tuesday", "8", "cold", "quixotry", "LAMP", "1, 2, 3, 4, 5", "marigold"),
        strict=True,
    )
)


class ScriptedServer:
    """texts: what is generated for each prompt after another, again and again; an Exception's text is an error under 200.

    most_bytes: a longer request is refused.
    """

    def __init__(self) -> None:
        self.texts: list[str | Exception] = ["one two three"]
        self.request_count = 0
        self.most_bytes = 10**6
        self.port = 0
        self.right = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, prompt: str) -> dict[str, Any]:
        text = self.texts[self.request_count % len(self.texts)]
        right_answers = [answer for question, answer in RIGHT[: self.right] if question == prompt]
        text = right_answers[0] if right_answers else text
        self.request_count += 1
        if isinstance(text, Exception):
            return {"error": {"message": str(text)}}
        rows = [{"top_logprobs": [{"token": word, "logprob": -0.1}]} for word in text.split()]
        return {"choices": [{"message": {"content": text}, "logprobs": {"content": rows}}]}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    value = ScriptedServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            options = json.loads(self.rfile.read(size))
            data = json.dumps(value.answer(options["messages"][-1]["content"])).encode()
            self.send_response(200 if size < value.most_bytes else 400)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words: object) -> None: ...

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    value.port = web.server_port
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    yield value
    web.shutdown()
    web.server_close()


def check_reference_text(teller: ScriptedServer, home: Path, **arguments: Any) -> Result:
    (home / "root/etc").mkdir(parents=True, exist_ok=True)
    (home / "root/etc/machine-id").write_text("spark-one\n")
    args = ReferenceText.Args(
        **{"base_url": teller.url, "model": "m", "baseline_key": KEY, "answers": "any", **arguments}
    )
    return ReferenceText().run(args, RecordingContext(home, root=f"{home}/root"))


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
    server.texts = ["one two three", "one two three", "one zwei drei"]
    server.request_count = 0
    result = check_reference_text(server, tmp_path)
    assert (result.failed, result.exit, result.data["verdict"]) == (False, Exit.INCONCLUSIVE, "doubtful")


def test_another_model_has_its_own_reference(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path)
    server.texts = ["one zwei drei"]
    assert (
        check_reference_text(server, tmp_path, baseline_key={**KEY, "model": "other"}).data["verdict"]
        == "new reference"
    )


def test_reference_is_kept_when_a_member_is_replaced(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path, baseline_key={**KEY, "members": ["spark1", "spark2"]})
    assert (
        check_reference_text(server, tmp_path, baseline_key={**KEY, "members": ["spark1", "spark3"]}).data["verdict"]
        == "same"
    )


def test_new_baseline_replaces_the_reference(server: ScriptedServer, tmp_path: Path) -> None:
    check_reference_text(server, tmp_path)
    server.texts = ["one zwei drei"]
    assert check_reference_text(server, tmp_path, new_baseline=True).data["verdict"] == "new reference"
    assert check_reference_text(server, tmp_path).data["verdict"] == "same"


def test_reference_of_an_unverified_server_is_not_stored(server: ScriptedServer, tmp_path: Path) -> None:
    assert check_reference_text(server, tmp_path, record=False).data["verdict"] == "not compared"
    assert check_reference_text(server, tmp_path, baseline_key={}).data["verdict"] == "not compared"
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
    server.most_bytes = 1000
    assert len(check_reference_text(server, tmp_path / "short", baseline_key=pair).data["texts"]) == 3


GARBLED = ["'s't's't's's's't's's't's's't's's", "'s't's't's's't's's", "'s't's's't's"]


def test_garbage_fails_and_does_not_become_the_reference(server: ScriptedServer, tmp_path: Path) -> None:
    server.texts = list(GARBLED)
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
def test_few_right_answers_are_not_a_reference(
    server: ScriptedServer, tmp_path: Path, right: int, verdict: str
) -> None:
    server.texts, server.right = ["A sentence of its own, which answers no question at all."], right
    result = check_reference_text(server, tmp_path, answers="judged")
    assert result.data["verdict"] == verdict
    assert result.exit == (Exit.INCONCLUSIVE if verdict == "doubtful" else None)
    assert result.failed == (verdict == "garbage")


def test_questions_longer_than_the_context_are_ignored(server: ScriptedServer, tmp_path: Path) -> None:
    server.right, server.most_bytes = 11, 1000
    assert check_reference_text(server, tmp_path, answers="judged").data["verdict"] == "new reference"


# The prefix cache check against a server with a cache of a known kind.


CACHING_ON = {"enable-prefix-caching": True}


def check_prefix_cache(tmp_path: Path, flags: dict[str, Any] | None = None, **plan: Any) -> Result:
    with serving(Schedule(first_s=0.01, gap_s=0.001, **plan)) as server:
        args = PrefixCache.Args(base_url=server.url, model="m", flags=flags or {})
        return PrefixCache().run(args, RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1"))


@pytest.mark.parametrize("sightings", [1, 2])
def test_working_prefix_cache_is_proved(tmp_path: Path, sightings: int) -> None:
    result = check_prefix_cache(tmp_path, CACHING_ON, prefix_block=64, sightings=sightings, prefill_s=1.0)
    assert result.data["verdict"] == "hits"
    assert result.data["hit_share"] == 1.0
    first = result.data["sightings"][0]
    assert first["hits"] == 0
    assert first["ttft_s"] >= 0.15, "the first request waits for its prefill: 1 ms a token"


def test_prefix_cache_without_hits_fails_if_requested(tmp_path: Path) -> None:
    assert check_prefix_cache(tmp_path, CACHING_ON, prefix_block=64, sightings=99).failed
    result = check_prefix_cache(tmp_path, {}, prefix_block=64, sightings=99)
    assert (result.failed, result.data["verdict"]) == (False, "no hits")


def test_disabled_prefix_cache_is_reported(tmp_path: Path) -> None:
    assert check_prefix_cache(tmp_path, prefix_block=64, prefix_caching="False").data["verdict"] == "off"
    assert check_prefix_cache(tmp_path, CACHING_ON, prefix_block=64, prefix_caching="False").failed


def test_prefix_cache_without_counters_is_unknown(tmp_path: Path) -> None:
    result = check_prefix_cache(tmp_path, CACHING_ON)
    assert (result.failed, result.data["verdict"]) == (False, "unknown")


def test_interrupted_stream_fails(tmp_path: Path) -> None:
    assert check_prefix_cache(tmp_path, prefix_block=64, error_at=1).failed


def test_requests_of_other_clients_are_inconclusive(tmp_path: Path) -> None:
    with serving(Schedule(first_s=0.01, gap_s=0.001, prefix_block=64)) as server:
        count = server._count_cached
        server._count_cached = lambda prompt: count(prompt) + count("of somebody else " * 50) * 0  # type: ignore[method-assign]
        args = PrefixCache.Args(base_url=server.url, model="m")
        result = PrefixCache().run(args, RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1"))
    assert result.exit is Exit.INCONCLUSIVE


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
def test_prefix_cache_is_requested_by_the_flag_of_each_engine(name: str, flags: dict[str, Any], asked: bool) -> None:
    assert prefix_cache.is_requested(name, engine.get_engine(name).flags.normalize(flags)) is asked
