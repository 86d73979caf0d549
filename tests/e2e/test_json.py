"""`--json` on every command that reads: standard output is JSON and nothing else, when all is well and when it is not."""

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

#: commands that change a host, a file or the sandbox, and answer no question; a script for a shell, and a server
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
#: questions to hosts: what is said beside `--host`
HOST_COMMANDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "plan", "verify", "diagnose", "client", "attach", "runs", "history", "status", "doctor", "health.check",
            "hosts.check", "cluster.inspect",
        ),
        (),
    ),
    **dict.fromkeys(("models.list", "models.verify", "models.prune", "ollama.ps", "incident"), ()),
    "logs": ("--state",),
    "report": ("--to", "page.html"),
    "lock": ("--check",),
    "images.prune": ("--check",),
    "caches.list": (),
    "recommend": (),
    "caches.prune": ("--check",),
    "host.clean": ("--check",),
}  # fmt: skip
#: questions to files: words with an answer, words without one ("" there is always one)
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
    """Every command, by the name that a user types."""
    for name, task in collection.tasks.items():
        yield before + name, task
    for name, part in collection.collections.items():
        yield from list_commands(part, f"{before}{name}.")


def takes_json(command: Task[Any]) -> bool:
    return "json" in {get_argument.name for get_argument in command.get_arguments()}


def test_every_command_that_reads_is_asked_below() -> None:
    assert {name for name, _ in list_commands()} == CHANGING_COMMANDS | set(HOST_COMMANDS) | set(FILE_COMMANDS)


@pytest.fixture(scope="module")
def project() -> Iterator[SandboxProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as value:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
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
    """The errors in it; in an array too."""
    rows = [row for item in documents for row in (item if isinstance(item, list) else [item])]
    return [row for row in rows if isinstance(row, dict) and row.get("error") and row.get("exit")]


@pytest.mark.parametrize("command", [*HOST_COMMANDS, *(name for name in FILE_COMMANDS)])
def test_an_answer_is_json_and_nothing_else(project: SandboxProject, command: str) -> None:
    arguments = (
        ("--host", "sandbox", *HOST_COMMANDS[command]) if command in HOST_COMMANDS else FILE_COMMANDS[command][0]
    )
    result = project.run(command, *arguments, "--json")
    assert published.parse_output(result.out), result.err
    assert published.check_output(command, result.out) == []
    if command != "incident":  # none was kept of a server that never failed
        fine = (2,) if command == "host.clean" else (0, 4)  # what asks it has left a trace to be removed
        assert result.code in fine, result.out + result.err
        assert not find_errors(published.parse_output(result.out)) or result.code == 4


@pytest.mark.parametrize("command", HOST_COMMANDS)
def test_a_host_that_is_away_is_an_error_in_json(project: SandboxProject, command: str) -> None:
    result = project.run(command, "--host", "away", *HOST_COMMANDS[command], "--json")
    errors = find_errors(published.parse_output(result.out))
    assert result.code == 3, result.out + result.err
    assert published.check_output(command, result.out) == []
    assert {row["exit"] for row in errors} == {3}
    assert {row["host"] for row in errors} == {"away"}
    assert all("refuses connections" in row["error"] for row in errors)


@pytest.mark.parametrize("command", [*HOST_COMMANDS, *(name for name, (_, wrong) in FILE_COMMANDS.items() if wrong)])
def test_what_is_refused_is_an_error_in_json_and_a_sentence_beside_it(project: SandboxProject, command: str) -> None:
    arguments = ("--host", "nobody", *HOST_COMMANDS[command]) if command in HOST_COMMANDS else FILE_COMMANDS[command][1]
    result = project.run(command, *arguments, "--json")
    (error,) = find_errors(published.parse_output(result.out))
    assert published.check_output(command, result.out) == []
    assert error["exit"] == result.code and result.code in (1, 5)
    assert error["error"] in result.err


def test_every_command_that_prints_json_has_its_schema_and_the_others_are_named() -> None:
    assert set(json_schemas.COMMANDS) == {name for name, command in list_commands() if takes_json(command)}
    (others,) = re.findall(r"takes `--json` except (.*?)\.\s", (TOP / "docs/json.md").read_text(), re.S)
    assert set(re.findall(r"`(.+?)`", others)) == {name for name, command in list_commands() if not takes_json(command)}


@pytest.mark.parametrize("hosts", ["sandbox", "sandbox,away"])
def test_the_events_of_a_deploy_are_as_published(project: SandboxProject, hosts: str) -> None:
    result = project.run("deploy", "--host", hosts, "--serial", "1", "--skip-unreachable", "--json")
    assert published.check_output("deploy", result.out) == []
    kinds = {event["event"] for event in result.events()}
    assert {"play_started", "run_started", "task_finished", "host_finished", "recap"} <= kinds
    assert hosts == "sandbox" or "rolled" in kinds


@pytest.mark.parametrize("wrong", [{"event": "nothing"}, {"event": "note", "host": "a", "time": "now", "text": ""}])
def test_what_is_no_event_is_none_by_the_schema(wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(json_schemas.events_schema()).is_valid(wrong)


def test_the_model_of_the_container_is_used_and_never_one_to_remove(project: SandboxProject) -> None:
    (model,) = json.loads(project.run("models.list", "--host", "sandbox", "--json").out)
    assert model["used_by"] == ["qwen35"]
    assert "qwen35" in project.run("models.list", "--host", "sandbox").out


def test_a_command_line_that_is_none_is_a_sentence_alone(project: SandboxProject) -> None:
    result = project.run("status", "--json", "--hst", "sandbox")
    assert (result.code, result.out) == (5, "")
    assert "--hst" in result.err


@pytest.mark.parametrize("command", ["deploy", "restart", "rollback", "provision", "verify", "plan"])
def test_the_tasks_of_a_command_are_one_document(project: SandboxProject, command: str) -> None:
    (play, *_) = json.loads(project.run(command, "--list-tasks", "--json").out)["plays"]
    assert {"name", "module", "tags"} <= play["tasks"][0].keys()
    listed = project.run(command, "--list-tasks").out
    assert play["name"] in listed and play["tasks"][0]["name"] in listed


def test_a_playbook_that_is_wrong_is_an_error_when_its_tasks_are_asked_for(project: SandboxProject) -> None:
    book = project.root / "playbooks/wrong.yml"
    book.write_text("- hosts: all\n  tasks:\n    - block: 3\n")
    result = project.run("play", "wrong", "--list-tasks", "--json")
    book.unlink()
    (error,) = find_errors(published.parse_output(result.out))
    assert (result.code, error["exit"]) == (5, 5)
    assert error["error"].startswith("playbooks/wrong.yml:3: ")
