"""`include:` of tasks from another file, and the stages of tasks."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.project import playbook
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook import Options
from sparkwright.protocol.plan import Plan, tasks_of

PLAY = "- hosts: all\n  vars: {name: motd}\n  tasks:\n"


def compile_play(folder: Path, tasks: str, parts: dict[str, str], **options: Any) -> Plan:
    (folder / "parts").mkdir()
    for name, text in parts.items():
        (folder / "parts" / name).write_text(text)
    (folder / "book.yml").write_text(PLAY + tasks)
    play = playbook.load(folder / "book.yml", folder).plays[0]
    host = Host("spark1", "spark1")
    return playbook.compile(play, host, {"home": "/h"}, Options(**options), run_id="r", project=folder)


def test_included_tasks_replace_the_include(tmp_path: Path) -> None:
    parts = {"inner.yml": "- name: inner\n  fail: {msg: '{{ name }} {{ what }}'}\n"}
    tasks = "    - {name: before, facts: }\n    - {include: parts/inner.yml, vars: {what: twice}}\n    - {name: after, facts: }\n"
    plan = compile_play(tmp_path, tasks, parts)
    assert [task.name for task in tasks_of(plan.steps)] == ["before", "inner", "after"]
    assert tasks_of(plan.steps)[1].args == {"msg": "motd twice"}
    assert tasks_of(plan.steps)[1].where.endswith("parts/inner.yml:1")


def test_nested_include_inherits_tags_condition_and_variables(tmp_path: Path) -> None:
    parts = {"outer.yml": "- include: inner.yml\n", "inner.yml": "- fail: {msg: '{{ what }}'}\n- facts:\n"}
    include = "{include: parts/outer.yml, tags: [a], when: 1 > 2, vars: {what: deep}}"
    tasks = f"    - {{name: other, facts: }}\n    - {include}\n"
    plan = compile_play(tmp_path, tasks, parts, tags=("a",))
    (block,) = plan.steps
    assert [task.module for task in tasks_of(plan.steps)] == ["fail", "facts"]
    assert (block.when, tasks_of(plan.steps)[0].args) == (("False",), {"msg": "deep"})


@pytest.mark.parametrize(
    ("include", "part", "message", "where"),
    [
        ("include: parts/inner.yml", "- facts:\n- fial: {msg: x}\n", "unknown module `fial`", "inner.yml:2"),
        ("include: parts/iner.yml", "- facts:\n", "no file 'parts/iner.yml'", "book.yml:4"),
        ("{include: parts/inner.yml, register: x}", "- facts:\n", "unknown key `register`", "book.yml:4"),
        ("include: parts/inner.yml", "- include: inner.yml\n", "includes itself", "inner.yml:1"),
        ("include: parts/inner.yml", "facts:\n", "a list of tasks", "inner.yml"),
        ("{include: parts/inner.yml, vars: {keep: true}}", "- facts:\n  register: found\n- facts:\n  when: keep and found.changed\n",
         "cannot use both `keep`, a variable of this task or its block, and `found`, which is evaluated on the host", "inner.yml:4"),
        ("{include: parts/inner.yml, vars: {what: x}}", "- facts:\n- fail: {msg: '{{ what }} on {{ facts.kernel }}'}\n",
         "cannot use both `what`, a variable of this task or its block, and `facts`", "inner.yml:2"),
    ],
    ids=["task", "missing file", "key", "cycle", "not a list", "condition with facts", "value with facts"],
)  # fmt: skip
def test_mistake_is_refused_with_its_file_and_line(
    tmp_path: Path, include: str, part: str, message: str, where: str
) -> None:
    with pytest.raises(Refused) as excinfo:
        compile_play(tmp_path, f"    - {include}\n", {"inner.yml": part})
    assert message in excinfo.value.message
    assert where in str(excinfo.value.where)


def test_included_result_is_known_to_later_tasks(tmp_path: Path) -> None:
    parts = {"inner.yml": "- facts:\n  register: seen\n"}
    plan = compile_play(tmp_path, "    - include: parts/inner.yml\n    - {facts: , when: seen.changed}\n", parts)
    assert tasks_of(plan.steps)[1].when == ("seen.changed",)


def test_file_name_that_is_too_long_is_refused_as_missing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no file 'xxx") as excinfo:
        compile_play(tmp_path, f"    - include: {'x' * 5000}.yml\n", {})
    assert excinfo.value.where.endswith("book.yml:4") and len(str(excinfo.value)) < 500


STAGES = [
    ("    - {name: a, facts: }\n    - {name: b, facts: }\n", ["", ""]),
    (
        "    - {name: a, stage: one, facts: }\n    - {name: b, facts: }\n    - {name: c, stage: two, facts: }\n",
        ["one", "one", "two"],
    ),
    (
        "    - {name: a, facts: }\n    - name: Configure it\n      block: [{name: b, facts: }]\n    - {include: parts/swap.yml}\n"
        "    - {name: d, facts: }\n",
        ["", "Configure it", "swap", ""],
    ),
    (
        "    - name: a block\n      stage: one\n      block: [{name: a, facts: }, {include: parts/swap.yml}]\n"
        "      rescue: [{name: b, facts: }]\n    - {name: c, facts: }\n",
        ["one", "one", "rescue", "one"],
    ),
]


@pytest.mark.parametrize(("tasks", "stages"), STAGES)
def test_stage_comes_from_the_task_its_block_or_its_file(tmp_path: Path, tasks: str, stages: list[str]) -> None:
    plan = compile_play(tmp_path, tasks, {"swap.yml": "- {name: swap it, facts: }\n"})
    assert [task.stage for task in tasks_of(plan.steps)] == stages
