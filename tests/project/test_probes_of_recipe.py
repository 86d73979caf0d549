"""Probes in a recipe: what no server for the task can answer, or not without a flag that is missing, is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.errors import Refused
from tests.project.test_engine_of_recipe import loaded

TOOLS = "vllm: {enable-auto-tool-choice: true, tool-call-parser: hermes}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect:\n  probes: [tools]\n", "10: `expect.probes.0`: must be one of tool_call, reasoning"),
        ("expect:\n  probes:\n    - language: xx\n", "`language` must be one of en, de"),
        ("expect:\n  probes:\n    - reasoning\n    - tool_call\n", "12: `expect.probes`: tool_call cannot pass without `vllm.enable-auto-tool-choice`."),
        ("task: embed\nexpect:\n  probes: [reasoning]\n", "11: `expect.probes`: reasoning cannot be asked with `task: embed`."),
        ("expect:\n  probes: [{embedding_dimension: 5}]\n", "10: `expect.probes`: embedding_dimension cannot be asked with `task: generate`."),
    ],
)  # fmt: skip
def test_a_probe_that_cannot_pass_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=r"one\.yml:") as caught:
        loaded(tmp_path, text)
    assert message in str(caught.value)


def test_probes_are_kept_as_the_recipe_writes_them(tmp_path: Path) -> None:
    found = loaded(tmp_path, TOOLS + "expect:\n  probes: [tool_call, {language: de}]\n")
    assert found.file.expect.probes == ["tool_call", {"language": "de"}]
