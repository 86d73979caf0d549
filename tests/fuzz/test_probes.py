"""Damaged answers to probes produce a verdict, and damaged output of images is parsed or ignored."""

from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.probes import content, table
from sparkwright.engines.probes.probe import Reply
from tests.fuzz.harness import damaged_values, feed, feed_texts

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
ANSWERS: tuple[Any, ...] = (
    {"choices": [{"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [CALL]}}]},
    {"choices": [{"finish_reason": "stop", "message": {"content": '{"city": "Oslo", "capital": true}'}}]},
    {"choices": [{"finish_reason": "length", "message": {"reasoning": "<think>", "content": "Bonjour, le </think>"}}]},
    {"data": [{"embedding": [0.25] * 16, "index": 0}], "usage": {"prompt_tokens": 3}},
    {"error": {"message": "tools need --enable-auto-tool-choice", "code": 400}},
)
PROBES = (*table.PLAIN_PROBES.values(), content.build_dimension_probe(16), content.build_language_probe("fr"))
HELP = {
    "vllm": b"usage: vllm serve [model_tag] [options]\n\noptions:\n  --max-model-len MAX_MODEL_LEN\n                        Model context\n"
    b"  --enable-prefix-caching, --no-enable-prefix-caching\n  --kv-cache-dtype {auto,fp8}\n  --served-model-name NAME [NAME ...]\n",
    "sglang": b"usage: launch_server.py [-h] --model-path MODEL_PATH\n\noptions:\n  --model-path MODEL_PATH, --model MODEL_PATH\n"
    b"  --context-length CONTEXT_LENGTH\n  --disable-radix-cache\n  --served-model-name NAME [NAME ...]\n",
    "llama_cpp": b"-c,    --ctx-size N                     size of the prompt context (default: 4096)\n"
    b"                                        (env: LLAMA_ARG_CTX_SIZE)\n-fa,   --flash-attn [on|off|auto]       set Flash Attention\n"
    b"--mlock                                 force system to keep model in RAM\n",
}


def test_answers_to_probes() -> None:
    def read(body: Any) -> None:
        for probe in PROBES:
            outcome = probe.evaluate(Reply(200, "", body))
            assert outcome.verdict in ("proved", "disproved", "inconclusive")
            assert len(outcome.evidence) < 2000

    feed(read, damaged_values(ANSWERS))


@pytest.mark.parametrize("name", HELP)
def test_help_of_an_image(name: str) -> None:
    image = engine.get_engine(name).image
    assert image is not None

    def read(text: str) -> None:
        shapes = image.parse_options(text)
        image.restore_options(image.difference(shapes))
        version = image.parse_version(text)
        assert version is None or len(version) < 100

    feed_texts(read, [HELP[name], b"vllm 0.32.0\nversion: 10434 (7e4c0a9)\n0.5.9\n"])
