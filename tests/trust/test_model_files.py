"""Valid and invalid files, ids and revisions of models."""

from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.trust.model_files import check_file_set, check_files, check_model_file, check_model_id, check_revision


def file_row(**fields: Any) -> dict[str, Any]:
    return {"path": "a", "size_bytes": 1, "sha256": None, "blob_id": "b" * 40, **fields}


def parametrize_texts(valid: list[str], invalid: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("text", "is_valid"), [*((text, True) for text in valid), *((text, False) for text in invalid)]
    )


@parametrize_texts(
    ["a", ".gitattributes", ".cache/x", ".beforehand", "a" * 246, "ü #1.txt", "'q': x"],
    ["../a", ".before", ".before/a", ".cache/huggingface", ".cache/sparkwright/a", "a" * 247, "a\\b"],
)
def test_file_name_is_checked(text: str, is_valid: bool) -> None:
    assert (check_model_file(text) == "") is is_valid


@parametrize_texts(
    ["Qwen/Qwen3.5-35B-A3B-FP8", "gpt2", "01-ai/Yi-6B", "a_b/c.d"],
    ["../x/y", "a/b/c", "a/../b", "/a/b", "a/", "", "a b/c", "a/b\n", "-a/b", "a/b--c", "ü/b"],
)
def test_model_id_is_checked(text: str, is_valid: bool) -> None:
    assert (check_model_id(text) == "") is is_valid


@parametrize_texts(
    ["main", "refs/pr/1", "v1.0", "v1@2", "a" * 40, "grün", "feature/x-y"],
    ["", "a b", "../x", "a..b", "-x", "/x", "x/", "a\x1b", "a:b", "a\\b", "a" * 256, "a//b"],
)
def test_revision_is_checked(text: str, is_valid: bool) -> None:
    assert (check_revision(text) == "") is is_valid


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "A", "a.b/c", "a-b", "a b"], ""),
        (["a", "b", "a"], "the file 'a' twice"),
        (["a", "a!", "a/b/c"], "'a' as a file and as a folder"),
        (["x/y", "x/y/z", "x/y.z"], "'x/y' as a file and as a folder"),
        ([f"f{n}" for n in range(20_001)], "20001 files"),
    ],
)
def test_conflicting_names_are_reported(names: list[str], message: str) -> None:
    problem = check_file_set(names)
    assert problem.startswith(message) and bool(problem) == bool(message)


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_invalid_row_is_refused(fields: dict[str, Any], message: str) -> None:
    assert check_files([file_row()], "the lock") == [file_row()]
    with pytest.raises(Failed, match=message):
        check_files([file_row(**fields)], "the lock")
