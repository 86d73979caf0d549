"""The tasks of a server: generate text, embed texts as vectors, or score how well texts answer a question (rerank).

The request that proves each, and what a good answer holds. Paths and shapes as vLLM 0.32.0 and llama-server b11549 answered on a
CPU (`--runner pooling --convert embed`; `--embedding`, `--reranking`): both take the same two requests, and vLLM then has no chat
(404).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import openai_api
from sparkwright.engines.http import GENERATE, Http, Task
from sparkwright.trust.bounds import parse_number
from sparkwright.visible import format_count

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
PROOF_TEXT = "Say ok."
QUERY = "What sails on the sea?"
ANSWER_TEXT, OTHER_TEXT = "A ship sails on the sea.", "The oven is in the kitchen."
#: the longest vectors of models in use have some ten thousand numbers
MAX_VECTOR_NUMBERS = 1 << 17


@dataclass(frozen=True, slots=True)
class ProofResult:
    """The content of an answer, and the problem with it."""

    #: as "a vector of 1024 numbers"
    holds: str = ""
    #: what is missing or wrong, empty for nothing
    why_not: str = ""


@dataclass(frozen=True)
class Proof:
    """The request that proves a task other than text generation."""

    #: the result of a request, as "vector"
    noun: str
    #: a clause, as "it reranks"
    serves: str
    #: a word that a good answer holds, and an error does not
    shows: str
    #: of the request
    path: str
    #: body of the request, without the model's name
    asked: Mapping[str, Any]
    evaluate: Callable[[Any], ProofResult]

    def request(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of the request."""
        return self.path, {"model": model, **self.asked}


def _check_vector(answer: Any) -> ProofResult:
    try:
        vector = answer["data"][0]["embedding"]
    except (KeyError, IndexError, TypeError):
        return ProofResult(why_not="without a vector")
    if not isinstance(vector, list) or not 0 < len(vector) <= MAX_VECTOR_NUMBERS:
        return ProofResult(why_not="without a vector")
    if any(_number(item) is None for item in vector):
        return ProofResult(why_not="with a vector of something else than numbers")
    if not any(vector):
        return ProofResult(why_not="with a vector of zeros")
    return ProofResult(f"a vector of {format_count(len(vector), 'number')}")


def _check_scores(answer: Any) -> ProofResult:
    rows = answer.get("results") if isinstance(answer, dict) else None
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    scores = {row.get("index"): _number(row.get("relevance_score")) for row in rows if type(row.get("index")) is int}
    answer_score, other_score = scores.get(0), scores.get(1)
    if answer_score is None or other_score is None:
        return ProofResult(why_not="without a score for each text")
    holds = f"{answer_score:.2f} for the answer, {other_score:.2f} for the text beside it"
    if answer_score <= other_score:
        return ProofResult(
            holds, f"with a wrong order ({holds}): it is not a reranker, or its prompt template is missing"
        )
    return ProofResult(holds)


def _number(value: Any) -> float | None:
    number = None if isinstance(value, bool) or not isinstance(value, int | float) else parse_number(repr(value))
    return number if number is not None and math.isfinite(number) else None


PROOFS: Mapping[Task, Proof] = {
    "embed": Proof("vector", "it serves embeddings", "embedding", EMBEDDINGS, {"input": PROOF_TEXT}, _check_vector),
    "rerank": Proof(
        "score",
        "it reranks",
        "relevance_score",
        RERANK,
        {"query": QUERY, "documents": [ANSWER_TEXT, OTHER_TEXT]},
        _check_scores,
    ),
}


def proof_path(task: Task) -> str:
    """Return the path of the request that proves this task."""
    return openai_api.CHAT_PATH if task == GENERATE else PROOFS[task].path


def proof_word(task: Task) -> str:
    """Return a word that a good answer holds, and an error does not."""
    return "choices" if task == GENERATE else PROOFS[task].shows


def result_noun(http: Http) -> str:
    """Return the name of one result of this server: token, vector or score."""
    return task_noun(http.task)


def task_noun(task: Task) -> str:
    """Return the name of one result of a server for this task."""
    return "token" if task == GENERATE else PROOFS[task].noun


def reason_not_generating(http: Http) -> str:
    """Return why generated text can't be measured on this server, as "it serves embeddings"; empty if it generates text."""
    return "" if http.task == GENERATE else PROOFS[http.task].serves


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """Flags of one engine that decide about tasks, by task."""

    #: flags and values without which the engine does not serve the task
    needs: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    #: values of flags with which the engine does not serve the task
    excludes: Mapping[Task, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
