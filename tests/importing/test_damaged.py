"""Damaged recipes of others are taken or refused with a sentence: never a traceback."""

from __future__ import annotations

import os
import random

import pytest

from sparkwright.errors import Refused
from tests.importing.forms import COMPOSE, EUGR, SPARKRUN_2, VLLM, taken

LINE = (
    "docker run -d --gpus all -p 8000:8000 -e A=1 --ulimit memlock=-1 --mount type=bind,source=/a,target=/b --oom-score-adj 5 "
    '-v /m:/m vllm/vllm-openai:v0.32.0 --model acme/Tiny -tp 2 --speculative-config \'{"model": "a/b"}\''
)
TEXTS = {"vllm": VLLM, "sparkrun": SPARKRUN_2, "eugr": EUGR, "compose": COMPOSE, "line": LINE}
PIECES = [
    "null",
    "[]",
    "{}",
    "-1",
    "true",
    "'",
    '"',
    "{{",
    "}",
    "$X",
    "${",
    "\x1b",
    "é",
    "9" * 40,
    ": ",
    "- ",
    "\n",
    "=",
    "--",
    "1e999",
    ".nan",
    "~",
]
TIMES = int(os.environ.get("SPARKWRIGHT_FUZZ", "40"))


def damaged(text: str, chance: random.Random) -> str:
    """A few words replaced, doubled, cut or moved."""
    words = text.split(" ")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(words))
        kind = chance.randrange(4)
        if kind == 0:
            words[at] = chance.choice(PIECES)
        elif kind == 1:
            words.insert(at, words[chance.randrange(len(words))])
        elif kind == 2 and len(words) > 2:
            del words[at]
        else:
            words[at] = words[at][: chance.randrange(len(words[at]) + 1)] + chance.choice(PIECES)
    return " ".join(words)


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_taken_or_refused(name: str) -> None:
    chance = random.Random(f"{name} {os.environ.get('SPARKWRIGHT_FUZZ_SEED', '1')}")
    answers = [{}, {"image": "a/b:1"}, {"service": "llm"}, {"hosts": "2", "image": "a/b:1"}]
    for _ in range(TIMES):
        text = damaged(TEXTS[name], chance)
        try:
            value = taken(text, **chance.choice(answers))
        except Refused as error:
            assert str(error).strip()
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}, of\n{text}")
        else:
            assert value.text or value.report.questions
