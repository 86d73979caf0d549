"""Plans compiled from playbooks: values rendered on the laptop or left to the host, selected tasks, and mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkwright import host_side
from sparkwright.errors import Exit, Refused
from sparkwright.modules import registry
from sparkwright.project import playbook
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook import Options, compiler, selection
from sparkwright.protocol import signature
from sparkwright.protocol.plan import Block, Plan, Task, tasks_of

HOST = Host("spark1", "spark1", vars={"folder": "/srv/models"})
HEAD = "- hosts: all\n  vars: {name: motd, size: 3}\n  tasks:\n"


def compile_play(tmp_path: Path, text: str, **options: Any) -> Plan:
    path = tmp_path / "playbooks" / "book.yml"
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "templates").mkdir(exist_ok=True)
    (tmp_path / "templates/motd.j2").write_text("hello {{ name }}\n")
    path.write_text(text if text.startswith("-") else HEAD + text)
    play = playbook.load(path, tmp_path).plays[0]
    names = {**HOST.vars, "home": "/home/ops"}
    return playbook.compile(play, HOST, names, Options(**options), run_id="r", project=tmp_path)


def nth_task(plan: Plan, n: int = 0) -> Task:
    return tasks_of(plan.steps)[n]


def test_variables_of_the_command_override_those_of_the_play(tmp_path: Path) -> None:
    text = "- hosts: all\n  vars: {who: playbook}\n  tasks:\n    - fail: {msg: 'by {{ who }}'}\n"
    assert nth_task(compile_play(tmp_path, text)).args == {"msg": "by playbook"}
    assert nth_task(compile_play(tmp_path, text, extra={"who": "command"})).args == {"msg": "by command"}


def test_open_variable_of_the_play_overrides_that_of_the_host(tmp_path: Path) -> None:
    variables = "{folder: '{{ facts.hostname }}'}"
    text = f"- hosts: all\n  vars: {variables}\n  tasks:\n    - {{facts: , when: folder == 'spark1'}}\n"
    plan = compile_play(tmp_path, text)
    assert nth_task(plan).when == ("folder == 'spark1'",)
    assert plan.open_vars == {"folder": "{{ facts.hostname }}"}


def test_variable_of_the_play_may_use_that_of_the_host(tmp_path: Path) -> None:
    text = "- hosts: all\n  vars: {folder: '{{ folder }}/small'}\n  tasks:\n    - fail: {msg: '{{ folder }}'}\n"
    assert nth_task(compile_play(tmp_path, text)).args == {"msg": "/srv/models/small"}


def test_values_without_facts_are_rendered(tmp_path: Path) -> None:
    text = "    - file: {path: '{{ folder }}/{{ name }}', content: '{{ facts.hostname }} {{ size }}'}\n"
    plan = compile_play(tmp_path, text)
    assert nth_task(plan).args == {"path": "/srv/models/motd", "content": "{{ facts.hostname }} {{ size }}"}
    assert nth_task(plan).open == ("content",)
    assert plan.vars == {"size": 3}


def test_functions_of_jinja_may_be_used_unless_a_variable_has_their_name(tmp_path: Path) -> None:
    plan = compile_play(tmp_path, "    - fail: {msg: '{{ range(3) | list | length }}{{ size }}'}\n")
    assert nth_task(plan).args == {"msg": "33"}
    text = "- hosts: all\n  vars: {dict: mine}\n  tasks:\n    - fail: {msg: '{{ dict }} {{ facts.hostname }}'}\n"
    plan = compile_play(tmp_path, text)
    assert nth_task(plan).open == ("msg",) and plan.vars == {"dict": "mine"}


def test_template_is_rendered_on_the_laptop(tmp_path: Path) -> None:
    plan = compile_play(tmp_path, "    - template: {src: motd.j2, dest: /etc/motd}\n")
    assert nth_task(plan).args == {"dest": "/etc/motd", "content": "hello motd\n"}


def test_float_from_a_file_is_a_float_for_the_module(tmp_path: Path) -> None:
    """Although it keeps its spelling for command lines (0.90)."""
    task = "memory: {utilization: 0.3, reserve_gib: '{{ spare }}'}"
    plan = compile_play(tmp_path, f"- hosts: all\n  vars: {{spare: 0.50}}\n  tasks:\n    - {task}\n")
    assert nth_task(plan).args == {"utilization": 0.3, "reserve_gib": 0.5}


def test_conditions_without_facts_are_evaluated(tmp_path: Path) -> None:
    text = "    - {facts: , when: size > 2}\n    - {facts: , when: [size > 5, facts.sandbox]}\n    - {facts: , when: facts.sandbox}\n"
    plan = compile_play(tmp_path, text)
    assert [nth_task(plan, n).when for n in range(3)] == [(), ("False",), ("facts.sandbox",)]


def test_tasks_inherit_tags_and_become_of_their_block(tmp_path: Path) -> None:
    text = (
        "    - block: [{facts: , tags: b}]\n      rescue: [{fail: {msg: sorry}}]\n      tags: [a]\n      become: true\n"
    )
    plan = compile_play(tmp_path, text)
    assert isinstance(plan.steps[0], Block)
    assert (nth_task(plan).tags, nth_task(plan).become, nth_task(plan, 1).module) == (("a", "b"), True, "fail")


TAGGED = (
    "    - {name: one, facts: , tags: [a]}\n    - {name: two, facts: , tags: [b, never]}\n"
    "    - {name: three, facts: , tags: [always]}\n    - {name: four, facts: }\n"
)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["one", "three", "four"]),
        ({"tags": ("a",)}, ["one", "three"]),
        ({"tags": ("b",)}, ["two", "three"]),
        ({"skip_tags": ("a",)}, ["three", "four"]),
        ({"tags": ("untagged",)}, ["three", "four"]),
        ({"tags": ("a",), "skip_tags": ("always",)}, ["one"]),
        ({"start_at_task": "three"}, ["three", "four"]),
    ],
)
def test_tags_and_start_select_tasks_as_in_ansible(tmp_path: Path, options: dict[str, Any], names: list[str]) -> None:
    assert [task.name for task in tasks_of(compile_play(tmp_path, TAGGED, **options).steps)] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("    - dokcer_image: {ref: x}\n", "book.yml:4: unknown module `dokcer_image`. Did you mean `docker_image`?"),
        ("    - file: {pth: x}\n", "book.yml:4: file has no argument `pth`. Did you mean `path`?"),
        ("    - file: {mode: '0644'}\n", "book.yml:4: file needs the argument `path`"),
        ("    - file:\n        path: x\n        state: gone\n", "book.yml:6: file.state must be one of file, directory, absent"),
        ("    - facts:\n      registr: x\n", "book.yml:5: unknown key `registr`. Did you mean `register`?"),
        ("    - file: {path: '{{ foldr }}'}\n", "book.yml:4: unknown variable `foldr`. Did you mean `folder`?"),
        ("    - facts:\n      when: sise > 2\n", "book.yml:5: unknown variable `sise`. Did you mean `size`?"),
        ("    - facts:\n      when: size >\n", "book.yml:5: bad expression"),
        ("    - facts:\n      notify: reload\n", "book.yml:5: no handler named 'reload'."),
        ("    - template: {src: mtd.j2, dest: x}\n", "book.yml:4: no template 'mtd.j2'. Did you mean `motd.j2`?"),
        ("    - name: nothing\n", "book.yml:4: this task has no module."),
        ("    - file: {path: x, mode: 0644}\n", 'book.yml:4: file.mode must be octal digits in quotes, such as "0644", got 420'),
        ("    - file: {path: x, mode: '999'}\n", "file.mode must be octal digits"),
        ("    - {facts: , loop: [1, 2]}\n", "book.yml:4: unknown key `loop`. Known keys: become, "),
        ("    - {facts: , rescue: text}\n", "book.yml:4: unknown key `rescue`."),
        ("    - {facts: , always: {a: 1}}\n", "book.yml:4: unknown key `always`."),
        ("    - {facts: , fail: {msg: x}}\n", "book.yml:4: this task has more than one module"),
        ("- hosts: all\n  serial: fast\n", "book.yml:2: `serial`: invalid batch size 'fast'"),
        ("- hosts: all\n  serial: 200%\n", "book.yml:2: `serial`: a batch size must be 1% to 100% of the hosts, got 200%."),
        ("- hosts: all\n  serial: [1, 0%]\n", "book.yml:2: `serial`: a batch size must be 1% to 100% of the hosts, got 0%."),
        ("- hosts: all\n  serial: -1\n", "book.yml:2: `serial`: a batch size must be at least 1, got -1."),
        ("- hosts: all\n  serial: true\n", "book.yml:2: `serial`: invalid batch size True"),
        ("- hosts: all\n  tags: 5\n", "book.yml:2: `tags` must be a list or a string, got 5."),
        ("    - block: 3\n", "book.yml:4: `block` of item 1 of `tasks` must be a list, got 3."),
        ("    - block: [3]\n", "book.yml:4: item 1 of `block` must be a mapping, got 3."),
        ("    - facts:\n      when: {a: 1}\n", "book.yml:5: `when` of item 1 of `tasks` must be true or false or a string or a list"),
        ("    - facts:\n      retries: 9999999999\n", "book.yml:5: `retries` of item 1 of `tasks` must be at most 1000000000"),
        ("- hosts: all\n  task: []\n", "book.yml:2: unknown key `task`. Did you mean `tasks`?"),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused) as excinfo:
        compile_play(tmp_path, text)
    assert message in str(excinfo.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ("c",)}, "no task has the tag 'c'. Tags: a, always, b, never."),
        ({"start_at_task": "thre"}, "no task named 'thre'. Did you mean `three`?"),
        ({"start_at_task": "two"}, "a run can't start at the task 'two': "),
        ({"start_at_task": "five"}, "a run can't start at the task 'five': it is part of a rescue"),
    ],
)
def test_option_without_a_matching_task_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    rescued = "    - {block: [facts: ], rescue: [{name: five, facts: }]}\n"
    with pytest.raises(Refused) as excinfo:
        compile_play(tmp_path, TAGGED + rescued, **options)
    assert message in str(excinfo.value)


@pytest.mark.parametrize(
    ("options", "names_by_play"),
    [
        ({"tags": ("a",)}, [["one"], []]),
        ({"tags": ("b",)}, [[], ["three"]]),
        ({"start_at_task": "two"}, [["two"], ["three", "facts"]]),
        ({"start_at_task": "facts"}, [[], ["facts"]]),
    ],
)
def test_tags_and_start_apply_to_all_plays_of_a_playbook(
    tmp_path: Path, options: dict[str, Any], names_by_play: list[list[str]]
) -> None:
    path = tmp_path / "book.yml"
    path.write_text(
        "- hosts: all\n  tasks: [{name: one, tags: [a], facts: }, {name: two, facts: }]\n"
        "- hosts: all\n  tasks: [{name: three, tags: [b], facts: }, {facts: }]\n"
    )
    plans = [
        playbook.compile(play, HOST, HOST.vars, Options(**options), run_id="r", project=tmp_path)
        for play in playbook.load(path, tmp_path).plays
    ]
    assert [[task.name for task in tasks_of(plan.steps)] for plan in plans] == names_by_play


def test_variable_with_facts_is_rendered_on_the_host(tmp_path: Path) -> None:
    text = "- hosts: all\n  vars: {note: '{{ facts.home }}/x'}\n  tasks:\n    - file: {path: '{{ note }}'}\n"
    plan = compile_play(tmp_path, text)
    assert (plan.open_vars, nth_task(plan).open) == ({"note": "{{ facts.home }}/x"}, ("path",))


@pytest.mark.parametrize(
    ("variables", "cycle", "line"),
    [
        (["a: '{{ b }}'", "b: '{{ c }}'", "c: 'x{{ a }}'"], "a -> b -> c -> a", 3),
        (["a: '{{ a }}'"], "a -> a", 3),
        (["first: '{{ a }}'", "a: {deep: ['{{ facts.home }}{{ b }}']}", "b: '{{ a }}'"], "a -> b -> a", 4),
    ],
)
def test_cycle_of_variables_is_refused_with_its_line(
    tmp_path: Path, variables: list[str], cycle: str, line: int
) -> None:
    text = "".join(f"    {variable}\n" for variable in variables)
    with pytest.raises(Refused, match=f"variables refer to each other: {cycle}") as excinfo:
        compile_play(tmp_path, f"- hosts: all\n  vars:\n{text}  tasks:\n    - facts:\n")
    assert excinfo.value.exit is Exit.REFUSED
    assert excinfo.value.where.endswith(f"book.yml:{line}")


def test_variable_may_have_the_name_of_the_result_it_uses(tmp_path: Path) -> None:
    book = "- hosts: all\n  vars: {found: '{{ found.word }}'}\n  tasks:\n    - facts:\n      register: found\n"
    assert compile_play(tmp_path, book).open_vars == {"found": "{{ found.word }}"}


def test_result_replaces_the_variable_of_its_name(tmp_path: Path) -> None:
    book = "- hosts: all\n  vars: {found: {sandbox: false}}\n  tasks:\n    - facts:\n      register: found\n    - {facts: , when: found.sandbox}\n"
    plan = compile_play(tmp_path, book)
    assert nth_task(plan, 1).when == ("found.sandbox",)
    assert plan.vars == {"found": {"sandbox": False}}


def test_cycle_of_host_variables_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "book.yml"
    path.write_text(HEAD + "    - facts:\n")
    names = {"a": "{{ b }}", "b": "{{ a }}"}
    host = Host("spark1", "spark1", vars=names, where="hosts/spark1.yml")
    with pytest.raises(Refused, match="a -> b -> a") as excinfo:
        playbook.compile(playbook.load(path, tmp_path).plays[0], host, names, Options(), run_id="r", project=tmp_path)
    assert excinfo.value.where == "hosts/spark1.yml"


@pytest.mark.parametrize("src", ["../hosts/spark1.yml", "/etc/hostname", "a/../../x", "..\\\\x"])
def test_template_outside_its_folder_is_refused(tmp_path: Path, src: str) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts/spark1.yml").write_text("address: 10.0.0.1\n")
    with pytest.raises(Refused, match=r"book.yml:4: the template .* (leaves its folder|has a backslash)"):
        compile_play(tmp_path, f'    - template: {{src: "{src}", dest: ~/x}}\n')


def list_tasks(tmp_path: Path, text: str) -> Any:
    (tmp_path / "book.yml").write_text(text)
    return playbook.list_tasks(playbook.load(tmp_path / "book.yml", tmp_path), Options())


def test_list_of_tasks(tmp_path: Path) -> None:
    text = (
        "- name: Both\n  hosts: all\n  tags: [p]\n  tasks:\n    - {when: size, facts: , name: one}\n    - {notify: h, facts: }\n"
        "    - name: Swap\n      tags: a\n      block:\n        - {name: two, facts: , tags: 'b, c'}\n"
        "      rescue:\n        - {name: three, fail: {msg: x}, tags: never}\n"
        "  handlers:\n    - {name: h, facts: }\n"
    )
    plays = list_tasks(tmp_path, text)
    assert plays == [
        {
            "name": "Both",
            "hosts": "all",
            "tags": ["p"],
            "tasks": [
                {"name": "one", "module": "facts", "tags": ["p"]},
                {"name": "facts", "module": "facts", "tags": ["p"]},
                {
                    "block": "Swap",
                    "tags": ["p", "a"],
                    "tasks": [{"name": "two", "module": "facts", "tags": ["p", "a", "b", "c"]}],
                    "rescue": [],
                },
            ],
            "handlers": [{"name": "h", "module": "facts", "tags": []}],
        }
    ]
    assert list(selection.format_tasks(plays)) == [
        *("Both (all)", "  one  [p]", "  facts  [p]", "  Swap:", "    two  [p, a, b, c]", "    rescue:"),
        *("  handlers:", "    h"),
    ]


def test_task_without_keys_is_listed(tmp_path: Path) -> None:
    plays = list_tasks(tmp_path, "- hosts: all\n  tasks:\n    - {}\n")
    assert plays[0]["tasks"] == [{"name": "task", "module": "", "tags": []}]


PROGRAM = "import sys; from sparkwright.project.playbook import compiler; assert compiler.load_signature('hf_model')['id'].required; "


@pytest.fixture
def signature_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler._load_signatures.cache_clear()
    return tmp_path / "sparkwright/signatures.json"


def reload_signature(module: str) -> signature.Signature:
    compiler._load_signatures.cache_clear()
    return compiler.load_signature(module)


def test_second_process_reads_signatures_from_the_cache(signature_cache: Path) -> None:
    for is_imported in ("True", "False"):
        program = PROGRAM + "print('sparkwright.modules.model.hf_model' in sys.modules)"
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.stdout.strip() == is_imported, result.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"of": "another", "modules": {"file": {}}}', "null"])
def test_damaged_or_outdated_cache_is_rewritten(signature_cache: Path, text: str) -> None:
    signature_cache.parent.mkdir()
    signature_cache.write_text(text)
    assert reload_signature("file") == signature.from_args_type(registry.load("file").Args)
    assert json.loads(signature_cache.read_text())["of"] == host_side.content_hash()


def test_unwritable_cache_is_not_an_error(signature_cache: Path) -> None:
    signature_cache.parent.write_text("a file where the folder should be")
    assert reload_signature("file") == signature.from_args_type(registry.load("file").Args)
