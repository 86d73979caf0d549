"""The tasks of a server: generate text, embed texts as vectors, or score how well texts answer a question (rerank).

Each task has a request that proves that a server performs it, and a check of the answer. Sources: responses from vLLM 0.32.0 and
llama-server b11549 on a CPU (`--runner pooling --convert embed`; `--embedding`, `--reranking`). Both accept the same two requests;
vLLM then answers chat requests with 404.
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

EMBEDDINGS_PATH, RERANK_PATH = "/v1/embeddings", "/v1/rerank"
PROOF_TEXT = "Say ok."
QUERY = "What sails on the sea?"
ANSWER_TEXT, OTHER_TEXT = "A ship sails on the sea.", "The oven is in the kitchen."
#: limit for the length of a vector; the vectors of current models have up to about ten thousand numbers
MAX_VECTOR_NUMBERS = 1 << 17


@dataclass(frozen=True, slots=True)
class ProofResult:
    """The evaluation of an answer."""

    #: content of the answer, such as "a vector of 1024 numbers"; empty if it has none
    content: str = ""
    #: end of a sentence, such as "without a vector"; empty if the answer is right
    problem: str = ""


@dataclass(frozen=True)
class Proof:
    """The request that proves a task other than text generation."""

    #: name of one result, such as "vector"
    noun: str
    #: clause about the server, such as "it reranks"
    description: str
    #: word that a right answer contains and an error does not
    answer_word: str
    path: str
    #: body of the request, without the model's name
    body: Mapping[str, Any]
    evaluate: Callable[[Any], ProofResult]

    def request(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of the request."""
        return self.path, {"model": model, **self.body}


def _check_vector(answer: Any) -> ProofResult:
    try:
        vector = answer["data"][0]["embedding"]
    except (KeyError, IndexError, TypeError):
        return ProofResult(problem="without a vector")
    if not isinstance(vector, list) or not 0 < len(vector) <= MAX_VECTOR_NUMBERS:
        return ProofResult(problem="without a vector")
    if any(_parse_finite_number(value) is None for value in vector):
        return ProofResult(problem="with a vector that contains invalid numbers")
    if not any(vector):
        return ProofResult(problem="with a vector of zeros")
    return ProofResult(f"a vector of {format_count(len(vector), 'number')}")


def _check_scores(answer: Any) -> ProofResult:
    rows = answer.get("results") if isinstance(answer, dict) else None
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    scores = {
        row.get("index"): _parse_finite_number(row.get("relevance_score"))
        for row in rows
        if type(row.get("index")) is int
    }
    answer_score, other_score = scores.get(0), scores.get(1)
    if answer_score is None or other_score is None:
        return ProofResult(problem="without a score for each text")
    content = f"{answer_score:.2f} for the answer, {other_score:.2f} for the other text"
    if answer_score <= other_score:
        problem = f"in the wrong order ({content}): the model is not a reranker, or its prompt template is missing"
        return ProofResult(content, problem)
    return ProofResult(content)


def _parse_finite_number(value: Any) -> float | None:
    number = None if isinstance(value, bool) or not isinstance(value, int | float) else parse_number(repr(value))
    return number if number is not None and math.isfinite(number) else None


PROOFS: Mapping[Task, Proof] = {
    "embed": Proof(
        "vector", "it serves embeddings", "embedding", EMBEDDINGS_PATH, {"input": PROOF_TEXT}, _check_vector
    ),
    "rerank": Proof(
        "score",
        "it reranks",
        "relevance_score",
        RERANK_PATH,
        {"query": QUERY, "documents": [ANSWER_TEXT, OTHER_TEXT]},
        _check_scores,
    ),
}


def proof_path(task: Task) -> str:
    """Return the path of the request that proves a task."""
    return openai_api.CHAT_PATH if task == GENERATE else PROOFS[task].path


def proof_word(task: Task) -> str:
    """Return a word that a right answer contains and an error does not."""
    return "choices" if task == GENERATE else PROOFS[task].answer_word


def result_noun(http: Http) -> str:
    """Return the name of one result of a server: token, vector or score."""
    return task_noun(http.task)


def task_noun(task: Task) -> str:
    """Return the name of one result of a task: token, vector or score."""
    return "token" if task == GENERATE else PROOFS[task].noun


def reason_not_generating(http: Http) -> str:
    """Return why a server generates no text, such as "it serves embeddings"; empty if it does."""
    return "" if http.task == GENERATE else PROOFS[http.task].description


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """The flags that an engine needs or excludes for each task."""

    #: required flags and values
    required_flags: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    #: flags, each with the values that do not work with the task
    excluded_values: Mapping[Task, Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
