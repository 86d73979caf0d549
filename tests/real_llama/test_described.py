"""The real llama-server as a server that no release knows: started and asked as its recipe describes it, in a real container."""

import json
from typing import Any

import pytest

from tests.real_llama.container_desk import Project, run_docker
from tests.real_llama.test_container import container_state, deploy_proved, hub_url, images, is_generating, project

__all__ = ["hub_url", "images", "project"]

KEY = "spk-0123456789abcdef"


def test_a_deploy_is_verified_and_a_second_deploy_changes_nothing(project: Project) -> None:
    project.described()
    first = deploy_proved(project)
    read = first.task("Check the engine log")["data"]["state"]
    assert read["max_model_len"] == 4096, "from the answer that the recipe names"
    assert (read["chunked_prefill"], read["prefix_caching"]) == (None, None), "nothing tells, so it is unknown"
    speed = first.task("Measure throughput")
    assert speed["status"] == "ok", speed
    assert speed["data"].get("runs"), speed
    assert first.task("Compare the reference text")["status"] == "ok"
    before = container_state(project)
    assert before[1:] == (True, "unless-stopped")
    second = project.deploy()
    assert (second.code, second.recap["changed"], second.recap["failed"]) == (0, 0, 0), second.out
    assert container_state(project) == before


def test_the_host_checks_the_server_without_the_recipe(project: Project) -> None:
    """The description travels with the container: what checks, heals and rolls back reads it there."""
    project.described()
    deploy_proved(project)
    project.described(health="/other", metrics={"path": "/other"})
    assert is_generating(project), "the check reads the container's label, not the recipe"
    row = json.loads(project.run("status", "--host", "here", "--json").out)
    assert row["state"] in ("up", "ok"), row
    result = project.run("diagnose", "--host", "here")
    assert "no server answers" not in result.out
    assert result.code != 1, result.out


def test_a_killed_server_is_reported_and_restored_by_a_deploy(project: Project) -> None:
    project.described()
    deploy_proved(project)
    before = container_state(project)
    run_docker("kill", project.name)
    assert project.run("health.check", "--host", "here").code == 1
    assert "exited (137)" in project.run("diagnose", "--host", "here").out
    again = deploy_proved(project)
    assert again.task("Stop unresponsive server")["status"] == "changed"
    assert container_state(project) == before


@pytest.mark.parametrize(
    ("section", "words", "why"),
    [
        ({}, ("--no-such-flag",), "the engine exited (exit code 1)"),
        ({"models": "/no-such-path"}, (), "the server does not serve 'tiny'"),
        ({"served_name": "huge"}, (), "the server does not serve 'huge'; it serves tiny"),
    ],
    ids=["a start that fails", "a description that is wrong", "another name"],
)
def test_a_failure_is_rolled_back_to_a_described_server(
    project: Project, section: dict[str, Any], words: tuple[str, ...], why: str
) -> None:
    project.described()
    deploy_proved(project)
    before = container_state(project)
    project.described(*words, **section)
    result = project.deploy()
    assert result.code == 1, result.out
    assert why in result.out
    assert container_state(project) == before
    assert is_generating(project), "nothing differs from what was verified"


def test_a_changed_description_is_shown_by_key_and_can_be_rolled_back(project: Project) -> None:
    project.described()
    deploy_proved(project)
    project.described(loading=[502, 503])
    planned = project.run("plan", "--host", "here", "--json")
    assert planned.code == 2, planned.out
    (change,) = planned.task("Compare running container with recipe")["diff"]
    assert (change["field"], change["before"], change["after"]) == ("engine loading", [503], [502, 503])
    deploy_proved(project)
    back = project.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    labels = project.container()["Config"]["Labels"]
    assert json.loads(labels["sparkwright.engine.description"])["loading"] == [503]
    assert is_generating(project)


@pytest.mark.parametrize("key", [{"env": "LLAMA_API_KEY"}, {"file_flag": "api-key-file"}], ids=["variable", "file"])
def test_the_server_key_is_required_and_appears_nowhere(project: Project, key: dict[str, str]) -> None:
    project.env["SPARK_KEY"] = KEY
    project.described(key=key, more={"server_key": {"env": "SPARK_KEY"}})
    deploy_proved(project)
    assert KEY not in json.dumps(project.container())
    assert KEY not in run_docker("top", project.name, "-eo", "pid,args")
    assert project.status("/v1/chat/completions", b"{}") == 401
    assert project.status("/health") == 200
    assert is_generating(project), "the check knows the key"


def test_engines_replace_each_other_on_one_port(project: Project) -> None:
    project.llama()
    deploy_proved(project)
    project.described()
    deploy_proved(project)
    assert project.container()["Config"]["Labels"]["sparkwright.engine"] == "openai"
    back = project.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    assert project.container()["Config"]["Labels"]["sparkwright.engine"] == "llama_cpp"
    assert is_generating(project)


TEMPLATE = "{%- for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
AT = "/etc/sparkwright/chat.jinja"


def serve_with_files(desk: Project, *, chat: str, greeting: str) -> None:
    """A server with two files: a chat template as it is, whose braces mean nothing here, and one that is rendered."""
    (desk.root / "chat.jinja").write_text(chat)
    (desk.root / "templates/options.yml.j2").write_text(f"served: {{{{ served_name }}}} # {greeting}\n")
    files = {AT: {"file": "chat.jinja"}, "/etc/sparkwright/options.yml": {"template": "options.yml.j2"}}
    desk.described("--jinja", "--chat-template-file", AT, more={"files": files})


def test_recipe_files_are_placed_by_content_and_changed_content_is_a_swap(project: Project) -> None:
    serve_with_files(project, chat=TEMPLATE, greeting="one")
    planned = project.run("deploy", "--host", "here", "--check", "--json")
    assert planned.code == 2, planned.out
    assert not list(project.root.parent.glob("home/**/recipe_files/*")), "a dry run writes nothing"
    deploy_proved(project)
    first = container_state(project)
    assert run_docker("exec", project.name, "cat", AT) == TEMPLATE.strip()
    assert run_docker("exec", project.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # one"
    assert run_docker("exec", project.name, "sh", "-c", f"echo x >> {AT}; true") == ""
    assert run_docker("exec", project.name, "cat", AT) == TEMPLATE.strip(), "it is mounted read-only"
    again = project.deploy()
    assert (again.code, again.recap["changed"]) == (0, 0), again.out
    serve_with_files(project, chat=TEMPLATE, greeting="two")
    message = project.run("plan", "--host", "here", "--json").task("Compare running container with recipe")["diff"]
    assert [(item["field"], item["before"], item["after"]) for item in message] == [
        ("file /etc/sparkwright/options.yml", "served: tiny # one\n", "served: tiny # two\n")
    ]
    deploy_proved(project)
    assert container_state(project)[0] != first[0]
    assert run_docker("exec", project.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # two"
    script = next(project.root.parent.glob("home/.local/share/sparkwright/run/*.sh")).read_text()
    assert "type=bind,source=" in script and f"target={AT},readonly" in script


def test_a_rollback_restores_the_files_of_the_previous_server(project: Project) -> None:
    serve_with_files(project, chat=TEMPLATE, greeting="one")
    deploy_proved(project)
    serve_with_files(project, chat=TEMPLATE, greeting="two")
    deploy_proved(project)
    back = project.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    assert run_docker("exec", project.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # one"
    assert is_generating(project), "what differs from the recipe does not differ from what was verified"
    project.described()
    deploy_proved(project)
    project.described("--no-webui")
    deploy_proved(project)
    project.described("--no-slots")
    deploy_proved(project)


def test_a_file_that_prevents_the_start_is_rolled_back(project: Project) -> None:
    serve_with_files(project, chat=TEMPLATE, greeting="one")
    deploy_proved(project)
    before = container_state(project)
    serve_with_files(project, chat="{% if %}", greeting="one")
    result = project.deploy()
    assert result.code == 1, result.out
    assert container_state(project) == before
    assert run_docker("exec", project.name, "cat", AT) == TEMPLATE.strip()
    assert is_generating(project)
