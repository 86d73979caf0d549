"""Untrusted names stay inside the folder they are for."""

from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.trust.names import MACHINE, PATH_COMPONENT, check_file_name, require_match, resolve_inside


@pytest.mark.parametrize(
    "name", ["a, b.json", "x[1].safetensors", "sub/dir/モデル.gguf", "..hidden", "a..b", "#1 {x}: 'q'"]
)
def test_odd_names_are_legal(name: str) -> None:
    assert check_file_name(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
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
def test_what_leaves_the_folder_is_refused(name: str, why: str) -> None:
    assert why in check_file_name(name)


@pytest.mark.parametrize("text", ["x86_64/../../../../.ssh", "", "a\n", "aarch64 ; id", None, 7])
def test_a_machine_is_what_uname_prints(text: object) -> None:
    assert require_match(MACHINE, "aarch64", "the machine") == "aarch64"
    with pytest.raises(Failed, match="the machine is not valid"):
        require_match(MACHINE, text, "the machine")


@pytest.mark.parametrize("text", ["..", ".hidden", "a/b", "", "a" * 129])
def test_a_step_is_one_step(text: str) -> None:
    with pytest.raises(Failed):
        require_match(PATH_COMPONENT, text, "the run")


def test_a_link_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    assert resolve_inside(tmp_path / "in", "a/b") == tmp_path / "in" / "a/b"
    with pytest.raises(Failed, match="leads out of"):
        resolve_inside(tmp_path / "in", "link/x")
