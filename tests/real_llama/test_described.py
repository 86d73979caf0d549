"""The real llama-server in a real container, started and queried only as its recipe describes it."""

import json
from typing import Any

import pytest

from tests.real_llama.container_desk import Project, run_docker
from tests.real_llama.test_container import (
    check_second_deploy,
    container_state,
    deploy_proved,
    hub_url,
    images,
    is_generating,
    project,
    roll_back,
)

__all__ = ["hub_url", "images", "project"]

KEY = "spk-0123456789abcdef"


def test_a_deploy_is_verified_and_a_second_deploy_changes_nothing(project: Project) -> None:
    first = deploy_proved(project.serve_described())
    read = first.task("Check the engine log")["data"]["state"]
    assert read["max_model_len"] == 4096, "from the described settings"
    assert (read["chunked_prefill"], read["prefix_caching"]) == (None, None), "not described"
    throughput = first.task("Measure throughput")
    assert throughput["status"] == "ok" and throughput["data"].get("runs"), throughput
    assert first.task("Compare the reference text")["status"] == "ok"
    check_second_deploy(project)


def test_the_host_checks_the_server_without_the_recipe(project: Project) -> None:
    """Checks, healing and rollbacks read the description from the container's label."""
    deploy_proved(project.serve_described())
    project.serve_described(health="/other", metrics={"path": "/other"})
    assert is_generating(project), "the check reads the container's label, not the recipe"
    row = json.loads(project.run("status", "--host", "here", "--json").out)
    assert row["state"] in ("up", "ok"), row
    result = project.run("diagnose", "--host", "here")
    assert "no server answers" not in result.out
    assert result.code != 1, result.out


@pytest.mark.parametrize(
    ("section", "words", "reason"),
    [
        ({}, ("--no-such-flag",), "the engine exited (exit code 1)"),
        ({"models": "/no-such-path"}, (), "the server does not serve 'tiny'"),
        ({"served_name": "huge"}, (), "the server does not serve 'huge'; it serves tiny"),
    ],
    ids=["failed start", "wrong path", "wrong name"],
)
def test_a_failure_is_rolled_back_to_a_described_server(
    project: Project, section: dict[str, Any], words: tuple[str, ...], reason: str
) -> None:
    deploy_proved(project.serve_described())
    before = container_state(project)
    result = project.serve_described(*words, **section).deploy()
    assert result.code == 1, result.out
    assert reason in result.out
    assert container_state(project) == before
    assert is_generating(project), "it is the verified server again"


def test_a_changed_description_is_shown_by_key_and_can_be_rolled_back(project: Project) -> None:
    deploy_proved(project.serve_described())
    project.serve_described(loading=[502, 503])
    planned = project.run("plan", "--host", "here", "--json")
    assert planned.code == 2, planned.out
    (change,) = planned.task("Compare running container with recipe")["diff"]
    assert (change["field"], change["before"], change["after"]) == ("engine loading", [503], [502, 503])
    deploy_proved(project)
    roll_back(project)
    labels = project.container()["Config"]["Labels"]
    assert json.loads(labels["sparkwright.engine.description"])["loading"] == [503]
    assert is_generating(project)


@pytest.mark.parametrize("key", [{"env": "LLAMA_API_KEY"}, {"file_flag": "api-key-file"}], ids=["variable", "file"])
def test_the_server_key_is_required_and_appears_nowhere(project: Project, key: dict[str, str]) -> None:
    project.env["SPARK_KEY"] = KEY
    deploy_proved(project.serve_described(key=key, keys={"server_key": {"env": "SPARK_KEY"}}))
    assert KEY not in json.dumps(project.container())
    assert KEY not in run_docker("top", project.name, "-eo", "pid,args")
    assert project.status("/v1/chat/completions", b"{}") == 401
    assert project.status("/health") == 200
    assert is_generating(project), "the check uses the key"


def test_engines_replace_each_other_on_one_port(project: Project) -> None:
    deploy_proved(project.serve_llama())
    deploy_proved(project.serve_described())
    assert project.container()["Config"]["Labels"]["sparkwright.engine"] == "openai"
    roll_back(project)
    assert project.container()["Config"]["Labels"]["sparkwright.engine"] == "llama_cpp"
    assert is_generating(project)


TEMPLATE = "{%- for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
TEMPLATE_PATH, OPTIONS_PATH = "/etc/sparkwright/chat.jinja", "/etc/sparkwright/options.yml"


def serve_with_files(desk: Project, *, chat: str = TEMPLATE, greeting: str = "one") -> Project:
    """Serve with two files: a chat template that is copied with its braces, and a template that is rendered."""
    (desk.root / "chat.jinja").write_text(chat)
    (desk.root / "templates/options.yml.j2").write_text(f"served: {{{{ served_name }}}} # {greeting}\n")
    files = {TEMPLATE_PATH: {"file": "chat.jinja"}, OPTIONS_PATH: {"template": "options.yml.j2"}}
    return desk.serve_described("--jinja", "--chat-template-file", TEMPLATE_PATH, keys={"files": files})


def read_file(desk: Project, path: str) -> str:
    """Return the content of a file in the container."""
    return run_docker("exec", desk.name, "cat", path)


def test_recipe_files_are_placed_by_content_and_changed_content_is_a_swap(project: Project) -> None:
    serve_with_files(project, greeting="one")
    planned = project.run("deploy", "--host", "here", "--check", "--json")
    assert planned.code == 2, planned.out
    assert not list(project.root.parent.glob("home/**/recipe_files/*")), "a dry run writes nothing"
    deploy_proved(project)
    first = container_state(project)
    assert read_file(project, TEMPLATE_PATH) == TEMPLATE.strip()
    assert read_file(project, OPTIONS_PATH) == "served: tiny # one"
    assert run_docker("exec", project.name, "sh", "-c", f"echo x >> {TEMPLATE_PATH}; true") == ""
    assert read_file(project, TEMPLATE_PATH) == TEMPLATE.strip(), "it is mounted read-only"
    again = project.deploy()
    assert (again.code, again.recap["changed"]) == (0, 0), again.out
    serve_with_files(project, greeting="two")
    diff = project.run("plan", "--host", "here", "--json").task("Compare running container with recipe")["diff"]
    assert [(change["field"], change["before"], change["after"]) for change in diff] == [
        (f"file {OPTIONS_PATH}", "served: tiny # one\n", "served: tiny # two\n")
    ]
    deploy_proved(project)
    assert container_state(project)[0] != first[0]
    assert read_file(project, OPTIONS_PATH) == "served: tiny # two"
    script = next(project.root.parent.glob("home/.local/share/sparkwright/run/*.sh")).read_text()
    assert "type=bind,source=" in script and f"target={TEMPLATE_PATH},readonly" in script


def test_a_rollback_restores_the_files_of_the_previous_server(project: Project) -> None:
    deploy_proved(serve_with_files(project, greeting="one"))
    deploy_proved(serve_with_files(project, greeting="two"))
    roll_back(project)
    assert read_file(project, OPTIONS_PATH) == "served: tiny # one"
    assert is_generating(project), "it is a verified server, despite the recipe"
    for words in ((), ("--no-webui",), ("--no-slots",)):
        deploy_proved(project.serve_described(*words))


def test_a_file_that_prevents_the_start_is_rolled_back(project: Project) -> None:
    deploy_proved(serve_with_files(project, greeting="one"))
    before = container_state(project)
    result = serve_with_files(project, chat="{% if %}").deploy()
    assert result.code == 1, result.out
    assert container_state(project) == before
    assert read_file(project, TEMPLATE_PATH) == TEMPLATE.strip()
    assert is_generating(project)
