"""The proof of a server that embeds or reranks, with answers of real servers (0.32.0, b11549)."""

from typing import Any

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines import http as engine_http
from sparkwright.engines import tasks
from sparkwright.engines.engine import TASK_LABEL

EMBED, RERANK = tasks.PROOFS["embed"], tasks.PROOFS["rerank"]


def build_embedding(vector: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": vector}]}


@pytest.mark.parametrize(
    ("answer", "content", "problem"),
    [
        (build_embedding([0.047, -0.030, 0.1]), "a vector of 3 numbers", ""),
        (build_embedding([0.0, 0.0]), "", "with a vector of zeros"),
        (build_embedding([0.1, None]), "", "with a vector that contains invalid numbers"),
        (build_embedding([0.1, float("nan")]), "", "with a vector that contains invalid numbers"),
        (build_embedding("AACAPw=="), "", "without a vector"),
        (build_embedding([]), "", "without a vector"),
        ({"data": []}, "", "without a vector"),
        ({"error": {"message": "x"}}, "", "without a vector"),
        (None, "", "without a vector"),
    ],
)
def test_a_valid_embedding_has_finite_nonzero_numbers(answer: Any, content: str, problem: str) -> None:
    assert EMBED.evaluate(answer) == tasks.ProofResult(content, problem)


def build_scores(first: Any, second: Any) -> dict[str, Any]:
    rows = [{"index": 1, "relevance_score": second}, {"index": 0, "relevance_score": first}]
    return {"object": "list", "results": rows}


def test_scores_are_compared_regardless_of_row_order() -> None:
    assert RERANK.evaluate(build_scores(0.93, 0.02)).problem == ""
    reversed_result = RERANK.evaluate(build_scores(-0.14, 0.29))
    assert reversed_result.content and "not a reranker" in reversed_result.problem


@pytest.mark.parametrize(
    "answer", [build_scores(None, 0.1), build_scores("0.9", 0.1), {"results": [1]}, {"results": {}}, [], None]
)
def test_missing_scores_prove_nothing(answer: Any) -> None:
    assert RERANK.evaluate(answer) == tasks.ProofResult("", "without a score for each text")


@pytest.mark.parametrize("name", list(engines.TITLES))
@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_the_task_is_stored_in_the_container_labels(name: str, task: str) -> None:
    labelled = engines.from_labels({**engines.get_engine(name).labels, TASK_LABEL: task})
    assert (labelled.name, labelled.task) == (name, task)
    assert engines.from_labels(labelled.labels) == labelled
    assert engines.from_labels({TASK_LABEL: "rm -rf"}).task == "generate"


def test_the_heartbeat_of_an_embedding_server_counts_prompt_tokens() -> None:
    vllm = engines.from_labels({TASK_LABEL: "embed"}).http
    assert vllm.task == "embed"
    text = 'vllm:prompt_tokens_total{engine="0"} 28.0\nvllm:generation_tokens_total{engine="0"} 0.0\n'
    assert vllm.counters(text)[engine_http.HEARTBEAT] == 28
    assert engines.get_engine("vllm").http.counters(text)[engine_http.HEARTBEAT] == 0
