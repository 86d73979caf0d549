"""The real llama-server as a server that no release knows: started and asked as its recipe describes it, in a real container."""

import json
from typing import Any

import pytest

from tests.real_llama.container_desk import Desk, docker
from tests.real_llama.test_container import deployed, desk, generates, hub_url, id_and_policy, images

__all__ = ["desk", "hub_url", "images"]

KEY = "spk-0123456789abcdef"


def test_a_deploy_is_proved_and_a_second_one_changes_nothing(desk: Desk) -> None:
    desk.described()
    first = deployed(desk)
    read = first.task("Check the engine log")["data"]["state"]
    assert read["max_model_len"] == 4096, "from the answer that the recipe names"
    assert (read["chunked_prefill"], read["prefix_caching"]) == (None, None), "nothing tells, so it is unknown"
    speed = first.task("Measure throughput")
    assert speed["status"] == "ok", speed
    assert speed["data"].get("runs"), speed
    assert first.task("Compare the reference text")["status"] == "ok"
    before = id_and_policy(desk)
    assert before[1:] == (True, "unless-stopped")
    second = desk.deploy()
    assert (second.code, second.recap["changed"], second.recap["failed"]) == (0, 0, 0), second.out
    assert id_and_policy(desk) == before


def test_the_host_checks_it_without_the_recipe(desk: Desk) -> None:
    """The description travels with the container: what checks, heals and rolls back reads it there."""
    desk.described()
    deployed(desk)
    desk.described(health="/other", metrics={"path": "/other"})
    assert generates(desk), "the check reads the container's label, not the recipe"
    row = json.loads(desk.run("status", "--host", "here", "--json").out)
    assert row["state"] in ("up", "ok"), row
    result = desk.run("diagnose", "--host", "here")
    assert "no server answers" not in result.out
    assert result.code != 1, result.out


def test_a_killed_server_is_told_and_a_deploy_brings_it_back(desk: Desk) -> None:
    desk.described()
    deployed(desk)
    before = id_and_policy(desk)
    docker("kill", desk.name)
    assert desk.run("health.check", "--host", "here").code == 1
    assert "exited (137)" in desk.run("diagnose", "--host", "here").out
    again = deployed(desk)
    assert again.task("Stop unresponsive server")["status"] == "changed"
    assert id_and_policy(desk) == before


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
    desk: Desk, section: dict[str, Any], words: tuple[str, ...], why: str
) -> None:
    desk.described()
    deployed(desk)
    before = id_and_policy(desk)
    desk.described(*words, **section)
    result = desk.deploy()
    assert result.code == 1, result.out
    assert why in result.out
    assert id_and_policy(desk) == before
    assert generates(desk), "nothing differs from what was verified"


def test_a_change_of_the_description_is_shown_key_by_key_and_can_be_rolled_back(desk: Desk) -> None:
    desk.described()
    deployed(desk)
    desk.described(loading=[502, 503])
    planned = desk.run("plan", "--host", "here", "--json")
    assert planned.code == 2, planned.out
    (change,) = planned.task("Compare running container with recipe")["diff"]
    assert (change["field"], change["before"], change["after"]) == ("engine loading", [503], [502, 503])
    deployed(desk)
    back = desk.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    labels = desk.container()["Config"]["Labels"]
    assert json.loads(labels["sparkwright.engine.description"])["loading"] == [503]
    assert generates(desk)


@pytest.mark.parametrize("key", [{"env": "LLAMA_API_KEY"}, {"file_flag": "api-key-file"}], ids=["variable", "file"])
def test_the_servers_key_is_asked_for_and_stands_nowhere(desk: Desk, key: dict[str, str]) -> None:
    desk.env["SPARK_KEY"] = KEY
    desk.described(key=key, more={"server_key": {"env": "SPARK_KEY"}})
    deployed(desk)
    assert KEY not in json.dumps(desk.container())
    assert KEY not in docker("top", desk.name, "-eo", "pid,args")
    assert desk.status("/v1/chat/completions", b"{}") == 401
    assert desk.status("/health") == 200
    assert generates(desk), "the check knows the key"


def test_engines_take_each_others_place_on_one_port(desk: Desk) -> None:
    desk.llama()
    deployed(desk)
    desk.described()
    deployed(desk)
    assert desk.container()["Config"]["Labels"]["sparkwright.engine"] == "openai"
    back = desk.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    assert desk.container()["Config"]["Labels"]["sparkwright.engine"] == "llama_cpp"
    assert generates(desk)


TEMPLATE = "{%- for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
AT = "/etc/sparkwright/chat.jinja"


def with_files(desk: Desk, *, chat: str, greeting: str) -> None:
    """A server with two files: a chat template as it is, whose braces mean nothing here, and one that is rendered."""
    (desk.root / "chat.jinja").write_text(chat)
    (desk.root / "templates/options.yml.j2").write_text(f"served: {{{{ served_name }}}} # {greeting}\n")
    files = {AT: {"file": "chat.jinja"}, "/etc/sparkwright/options.yml": {"template": "options.yml.j2"}}
    desk.described("--jinja", "--chat-template-file", AT, more={"files": files})


def test_a_recipes_files_are_placed_by_content_and_another_content_is_a_swap(desk: Desk) -> None:
    with_files(desk, chat=TEMPLATE, greeting="one")
    planned = desk.run("deploy", "--host", "here", "--check", "--json")
    assert planned.code == 2, planned.out
    assert not list(desk.root.parent.glob("home/**/recipe_files/*")), "a dry run writes nothing"
    deployed(desk)
    first = id_and_policy(desk)
    assert docker("exec", desk.name, "cat", AT) == TEMPLATE.strip()
    assert docker("exec", desk.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # one"
    assert docker("exec", desk.name, "sh", "-c", f"echo x >> {AT}; true") == ""
    assert docker("exec", desk.name, "cat", AT) == TEMPLATE.strip(), "it is mounted read-only"
    again = desk.deploy()
    assert (again.code, again.recap["changed"]) == (0, 0), again.out
    with_files(desk, chat=TEMPLATE, greeting="two")
    message = desk.run("plan", "--host", "here", "--json").task("Compare running container with recipe")["diff"]
    assert [(item["field"], item["before"], item["after"]) for item in message] == [
        ("file /etc/sparkwright/options.yml", "served: tiny # one\n", "served: tiny # two\n")
    ]
    deployed(desk)
    assert id_and_policy(desk)[0] != first[0]
    assert docker("exec", desk.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # two"
    script = next(desk.root.parent.glob("home/.local/share/sparkwright/run/*.sh")).read_text()
    assert "type=bind,source=" in script and f"target={AT},readonly" in script


def test_a_rollback_gives_the_server_before_its_own_files(desk: Desk) -> None:
    with_files(desk, chat=TEMPLATE, greeting="one")
    deployed(desk)
    with_files(desk, chat=TEMPLATE, greeting="two")
    deployed(desk)
    back = desk.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    assert docker("exec", desk.name, "cat", "/etc/sparkwright/options.yml") == "served: tiny # one"
    assert generates(desk), "what differs from the recipe does not differ from what was verified"
    desk.described()
    deployed(desk)
    desk.described("--no-webui")
    deployed(desk)
    desk.described("--no-slots")
    deployed(desk)


def test_a_file_with_which_the_server_does_not_start_is_rolled_back(desk: Desk) -> None:
    with_files(desk, chat=TEMPLATE, greeting="one")
    deployed(desk)
    before = id_and_policy(desk)
    with_files(desk, chat="{% if %}", greeting="one")
    result = desk.deploy()
    assert result.code == 1, result.out
    assert id_and_policy(desk) == before
    assert docker("exec", desk.name, "cat", AT) == TEMPLATE.strip()
    assert generates(desk)
