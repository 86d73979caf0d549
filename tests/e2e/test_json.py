"""`--json` on every command that reads: standard output is only JSON, on success and on failure."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from invoke.collection import Collection
from invoke.tasks import Task

from sparkwright.app import json_output as json_schemas
from sparkwright.cli import namespace
from tests import published
from tests.e2e.conftest import TOP, SandboxProject, sandbox_project

#: commands that change a host, a file or the sandbox, print a shell script, or start a server
CHANGING_COMMANDS = {
    *("deploy", "restart", "switch", "rollback", "provision", "play", "stop", "unlock", "init", "runtime.fetch"),
    *("sandbox.down", "sandbox.pair"),
    *("gateway.deploy", "gateway.rollback", "gateway.status"),  # they need a gateway: test_gateway.py
    *("completion", "mcp"),
    "recipe.search",  # it needs a registry: tests/project/test_registries.py
    "recipe.import",  # tests/project/importing/test_command.py
    "hosts.add",  # it writes: test_hosts.py
    *("playbook.update", "playbook.clean"),  # they write: tests/app/test_playbook_files.py
    "monitoring.install",  # it writes: tests/monitoring/test_install.py
    "cluster.check",  # it needs two hosts: test_cluster_links.py
    *(
        "health.install", "health.uninstall", "images.copy", "models.copy", "ollama.unload", "bench.import",
        "runtime.install",
    ),
    *(f"bench.{name}" for name in ("smoke", "serve", "ab", "sweep", "hol", "itl", "mixed", "context")),
}  # fmt: skip
#: commands that query hosts, with their options
HOST_COMMANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "plan", "verify", "diagnose", "client", "attach", "runs", "history", "status", "doctor", "health.check",
            "hosts.check", "cluster.inspect", "models.list", "models.verify", "models.prune", "ollama.ps", "incident",
            "caches.list", "recommend",
        ),
        (),
    ),
    **dict.fromkeys(("lock", "images.prune", "caches.prune", "host.clean"), ("--check",)),
    "logs": ("--state",),
    "report": ("--to", "page.html"),
}  # fmt: skip
#: commands that read files: arguments of a successful call and of a failing one, if there is one
FILE_COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "render": (("--host", "sandbox"), ("--host", "nobody")),
    "hosts.list": ((), ("--host", "nobody")),
    "schema": (("host",), ("nothing",)),
    "lint": (("--recipe", "qwen3.5-35b"), ("--recipe", "nothing")),
    "explain": ((), ("nothing",)),
    "docs.module": ((), ("nothing",)),
    "model.inspect": (("config.json",), ("hosts",)),
    "playbook.eject": (("--list",), ("nothing",)),
    "recipe.list": ((), ("--host", "nobody")),
    "recipe.export": (("qwen3.5-35b",), ("nothing",)),
    "bench.list": ((), ()),
    "bench.report": (("results/one",), ("nothing",)),
    "bench.compare": (("results/one", "results/one"), ("nothing", "nothing")),
    "sandbox.fault": ((), ("nothing",)),
    "sandbox.status": ((), ()),
}


def list_commands(collection: Collection = namespace, before: str = "") -> Iterator[tuple[str, Task[Any]]]:
    for name, task in collection.tasks.items():
        yield before + name, task
    for name, part in collection.collections.items():
        yield from list_commands(part, f"{before}{name}.")


def takes_json(command: Task[Any]) -> bool:
    return "json" in {argument.name for argument in command.get_arguments()}


def test_the_tables_contain_every_command() -> None:
    assert {name for name, _ in list_commands()} == CHANGING_COMMANDS | set(HOST_COMMANDS) | set(FILE_COMMANDS)


@pytest.fixture(scope="module")
def project() -> Iterator[SandboxProject]:
    with sandbox_project() as value:
        (value.root / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
        (value.root / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        value.deployed()
        shutil.copy(value.sandbox / "spark.lock", value.root)
        measured = {"date": "20261121-120000", "backend": "vllm", "model_id": "m", "num_prompts": 1, "duration": 1.0}
        figures = {"completed": 1, "request_throughput": 1.0, "output_throughput": 9.0, "median_ttft_ms": 80.0}
        (value.root / "theirs.json").write_text(json.dumps(measured | figures))
        imported = value.run("bench.import", "theirs.json", "--name", "one", "--json")
        assert imported.code == 0 and published.check_output("bench.import", imported.out) == [], imported.err
        yield value


def find_errors(documents: list[Any]) -> list[dict[str, Any]]:
    """Return the errors, also those in arrays."""
    rows = [row for item in documents for row in (item if isinstance(item, list) else [item])]
    return [row for row in rows if isinstance(row, dict) and row.get("error") and row.get("exit")]


@pytest.mark.parametrize("command", [*HOST_COMMANDS, *FILE_COMMANDS])
def test_a_successful_command_prints_only_json(project: SandboxProject, command: str) -> None:
    arguments = (
        ("--host", "sandbox", *HOST_COMMANDS[command]) if command in HOST_COMMANDS else FILE_COMMANDS[command][0]
    )
    result = project.run(command, *arguments, "--json")
    assert published.parse_output(result.out), result.err
    assert published.check_output(command, result.out) == []
    if command != "incident":  # the server never failed
        expected = (2,) if command == "host.clean" else (0, 4)  # there is always something to clean
        assert result.code in expected, result.out + result.err
        assert not find_errors(published.parse_output(result.out)) or result.code == 4


@pytest.mark.parametrize("command", HOST_COMMANDS)
def test_an_unreachable_host_is_an_error_in_json(project: SandboxProject, command: str) -> None:
    result = project.run(command, "--host", "away", *HOST_COMMANDS[command], "--json")
    errors = find_errors(published.parse_output(result.out))
    assert result.code == 3, result.out + result.err
    assert published.check_output(command, result.out) == []
    assert {row["exit"] for row in errors} == {3}
    assert {row["host"] for row in errors} == {"away"}
    assert all("refuses connections" in row["error"] for row in errors)


@pytest.mark.parametrize("command", [*HOST_COMMANDS, *(name for name, (_, wrong) in FILE_COMMANDS.items() if wrong)])
def test_a_refused_command_prints_its_error_in_json_and_on_standard_error(
    project: SandboxProject, command: str
) -> None:
    arguments = ("--host", "nobody", *HOST_COMMANDS[command]) if command in HOST_COMMANDS else FILE_COMMANDS[command][1]
    result = project.run(command, *arguments, "--json")
    (error,) = find_errors(published.parse_output(result.out))
    assert published.check_output(command, result.out) == []
    assert error["exit"] == result.code and result.code in (1, 5)
    assert error["error"] in result.err


def test_commands_with_json_have_schemas_and_the_others_are_listed_in_the_docs() -> None:
    assert set(json_schemas.COMMANDS) == {name for name, command in list_commands() if takes_json(command)}
    (others,) = re.findall(r"Every command takes it except (.*?)\.\s", (TOP / "docs/json.md").read_text(), re.S)
    assert set(re.findall(r"`(.+?)`", others)) == {name for name, command in list_commands() if not takes_json(command)}


@pytest.mark.parametrize("hosts", ["sandbox", "sandbox,away"])
def test_the_events_of_a_deploy_match_the_schema(project: SandboxProject, hosts: str) -> None:
    result = project.run("deploy", "--host", hosts, "--serial", "1", "--skip-unreachable", "--json")
    assert published.check_output("deploy", result.out) == []
    kinds = {event["event"] for event in result.events()}
    assert {"play_started", "run_started", "task_finished", "host_finished", "recap"} <= kinds
    assert hosts == "sandbox" or "rolled" in kinds


@pytest.mark.parametrize("wrong", [{"event": "nothing"}, {"event": "note", "host": "a", "time": "now", "text": ""}])
def test_the_schema_rejects_invalid_events(wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(json_schemas.events_schema()).is_valid(wrong)


def test_models_list_names_the_container_that_uses_a_model(project: SandboxProject) -> None:
    (model,) = json.loads(project.run("models.list", "--host", "sandbox", "--json").out)
    assert model["used_by"] == ["qwen35"]
    assert "qwen35" in project.run("models.list", "--host", "sandbox").out


def test_an_unknown_option_is_reported_only_on_standard_error(project: SandboxProject) -> None:
    result = project.run("status", "--json", "--hst", "sandbox")
    assert (result.code, result.out) == (5, "")
    assert "--hst" in result.err


@pytest.mark.parametrize("command", ["deploy", "restart", "rollback", "provision", "verify", "plan"])
def test_list_tasks_prints_one_document(project: SandboxProject, command: str) -> None:
    (play, *_) = json.loads(project.run(command, "--list-tasks", "--json").out)["plays"]
    assert {"name", "module", "tags"} <= play["tasks"][0].keys()
    listed = project.run(command, "--list-tasks").out
    assert play["name"] in listed and play["tasks"][0]["name"] in listed


def test_list_tasks_of_an_invalid_playbook_is_an_error(project: SandboxProject) -> None:
    book = project.root / "playbooks/wrong.yml"
    book.write_text("- hosts: all\n  tasks:\n    - block: 3\n")
    result = project.run("play", "wrong", "--list-tasks", "--json")
    book.unlink()
    (error,) = find_errors(published.parse_output(result.out))
    assert (result.code, error["exit"]) == (5, 5)
    assert error["error"].startswith("playbooks/wrong.yml:3: ")
