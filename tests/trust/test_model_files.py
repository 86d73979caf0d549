"""The valid files of a model, its id and its revision."""

from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.trust.model_files import (
    check_file_set,
    check_files,
    check_model_file,
    check_model_id,
    check_revision,
)


def file_row(**fields: Any) -> dict[str, Any]:
    return {"path": "a", "size_bytes": 1, "sha256": None, "blob_id": "b" * 40, **fields}


@pytest.mark.parametrize("name", ["a", ".gitattributes", ".cache/x", ".beforehand", "a" * 246, "ü #1.txt", "'q': x"])
def test_names_that_a_repository_may_have(name: str) -> None:
    assert check_model_file(name) == ""


@pytest.mark.parametrize(
    "name", ["../a", ".before", ".before/a", ".cache/huggingface", ".cache/sparkwright/a", "a" * 247, "a\\b"]
)
def test_names_that_none_may_have(name: str) -> None:
    assert check_model_file(name)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "A", "a.b/c", "a-b", "a b"], ""),
        (["a", "b", "a"], "the file 'a' twice"),
        (["a", "a!", "a/b/c"], "'a' as a file and as a folder"),
        (["x/y", "x/y/z", "x/y.z"], "'x/y' as a file and as a folder"),
        ([f"f{n}" for n in range(20_001)], "20001 files"),
    ],
)
def test_names_that_fit_together(names: list[str], why: str) -> None:
    assert check_file_set(names).startswith(why) and bool(check_file_set(names)) == bool(why)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"path": None}, "is not text"),
        ({"size_bytes": True}, "a size of True bytes"),
        ({"size_bytes": 1.0}, "a size of 1.0 bytes"),
        ({"size_bytes": -1}, "a size of -1 bytes"),
        ({"size_bytes": 10**400}, "a size of more than"),
        ({"blob_id": None}, "no hash"),
        ({"blob_id": "B" * 40}, "the git id B"),
        ({"sha256": "a" * 63}, "the sha256 a"),
        ({"sha256": ["a"]}, "the sha256"),
    ],
)
def test_a_row_that_can_not_be_is_named(fields: dict[str, Any], why: str) -> None:
    assert check_files([file_row()], "the lock") == [file_row()]
    with pytest.raises(Failed, match=why):
        check_files([file_row(**fields)], "the lock")


@pytest.mark.parametrize("text", ["Qwen/Qwen3.5-35B-A3B-FP8", "gpt2", "01-ai/Yi-6B", "a_b/c.d"])
def test_ids(text: str) -> None:
    assert check_model_id(text) == ""


@pytest.mark.parametrize(
    "text", ["../x/y", "a/b/c", "a/../b", "/a/b", "a/", "", "a b/c", "a/b\n", "-a/b", "a/b--c", "ü/b"]
)
def test_what_is_no_id(text: str) -> None:
    assert check_model_id(text)


@pytest.mark.parametrize("text", ["main", "refs/pr/1", "v1.0", "v1@2", "a" * 40, "grün", "feature/x-y"])
def test_revisions(text: str) -> None:
    assert check_revision(text) == ""


@pytest.mark.parametrize(
    "text", ["", "a b", "../x", "a..b", "-x", "/x", "x/", "a\x1b", "a:b", "a\\b", "a" * 256, "a//b"]
)
def test_what_is_no_revision(text: str) -> None:
    assert check_revision(text)
