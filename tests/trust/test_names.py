"""Untrusted names cannot lead out of their folder."""

from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.trust.names import MACHINE, PATH_COMPONENT, check_file_name, require_match, resolve_inside


@pytest.mark.parametrize(
    "name", ["a, b.json", "x[1].safetensors", "sub/dir/モデル.gguf", "..hidden", "a..b", "#1 {x}: 'q'"]
)
def test_unusual_name_is_valid(name: str) -> None:
    assert check_file_name(name) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../x", "leaves its folder"),
        ("a/../../x", "leaves its folder"),
        ("/etc/passwd", "leaves its folder"),
        ("a\\..\\b", "has a backslash"),
        ("a\x1b[2J", "has a control character"),
        ("a\nb", "has a control character"),
        ("", "is empty"),
        ("a//b", "shortest form"),
        ("./a", "shortest form"),
        ("a" * 256, "too long"),
    ],
)
def test_invalid_name_is_reported(name: str, message: str) -> None:
    assert message in check_file_name(name)


@pytest.mark.parametrize("text", ["x86_64/../../../../.ssh", "", "a\n", "aarch64 ; id", None, 7])
def test_machine_must_match_the_format_of_uname(text: object) -> None:
    assert require_match(MACHINE, "aarch64", "the machine") == "aarch64"
    with pytest.raises(Failed, match="the machine is not valid"):
        require_match(MACHINE, text, "the machine")


@pytest.mark.parametrize("text", ["..", ".hidden", "a/b", "", "a" * 129])
def test_path_component_has_no_slash_or_leading_dot(text: str) -> None:
    with pytest.raises(Failed):
        require_match(PATH_COMPONENT, text, "the run")


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    assert resolve_inside(tmp_path / "in", "a/b") == tmp_path / "in" / "a/b"
    with pytest.raises(Failed, match="leads out of"):
        resolve_inside(tmp_path / "in", "link/x")
