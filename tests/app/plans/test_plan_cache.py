"""A cached plan is used while its inputs are unchanged, and a run of it sends and prints the same as a new plan."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sparkwright.app import connect
from sparkwright.app.plans import plan_cache
from sparkwright.app.plans.host_plan import Planner
from sparkwright.app.plans.preparation import Preparation
from sparkwright.app.runs import playbooks, session
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.cli.deploy import COMMANDS
from sparkwright.errors import Refused, Unreachable
from sparkwright.project import playbook
from sparkwright.project.inventory.host import Host
from sparkwright.project.starter import PAIR_RECIPE_TEXT
from sparkwright.protocol.cluster import TOKEN_SECRET
from sparkwright.protocol.events import Event, event
from sparkwright.secret import Secret

TOP = Path(__file__).parents[3]
LOCK = f"""
schema: 1
images:
  vllm/vllm-openai:v0.32.0:
    digest: sha256:{"a" * 64}
    engine_version: 0.32.0
    options: {{like: 0.32.0, differ: {{}}}}
models:
  Qwen/Qwen3.5-35B-A3B-FP8@main:
    commit: {"b" * 40}
    config: {{architectures: [Qwen3_5MoeForConditionalGeneration], model_type: qwen3_5_moe}}
    files: [{{path: config.json, size_bytes: 5, blob_id: {"c" * 40}}}]
"""


def deploy_options(**fields: Any) -> DeployOptions:
    return DeployOptions(**{"host": "spark1", "json": True, **fields})


class RecordingLink:
    """A link that records the requests to its host, and answers that everything succeeded."""

    requests: ClassVar[list[dict[str, Any]]] = []
    learnt: ClassVar[dict[str, Any]] = {}

    def __init__(self, host: Host, need: str = "engine") -> None:
        self._host = host

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        message = {name: secret.reveal() for name, secret in secrets.items()}
        RecordingLink.requests.append(json.loads(json.dumps({**header, "secrets": message}, default=str)))
        if RecordingLink.learnt:
            fields = {"task": "t9", "name": "Check flags", "module": "lint", "status": "ok", "register": ""}
            yield event("task_finished", **fields, data=RecordingLink.learnt)
        yield event("recap", host=self._host.name, ok=1, changed=0, failed=0, skipped=0, unreachable=0, exit=0, msg="")

    def ready(self) -> None:
        """Succeed at once."""

    def close(self) -> None:
        """Do nothing."""


class Project:
    """A user's folder with one host that is reached over ssh, and a plan cache of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.planned = 0
        self.ids: list[str] = []
        for name in ("playbooks", "templates", "recipes"):
            shutil.copytree(TOP / name, root / name)
        (root / "hosts").mkdir()
        (root / "hosts/spark1.yml").write_text("address: 192.0.2.1\nuser: ops\nrecipe: qwen3.5-35b\n")
        (root / "spark.lock").write_text(LOCK)

    def deploy(self, playbook: str = "deploy", **fields: Any) -> dict[str, Any]:
        """Deploy, and return the request to the host without the run's id."""
        RecordingLink.requests.clear()
        assert playbooks.run(playbook, playbook, deploy_options(**fields)) == [0]
        (request,) = RecordingLink.requests
        self.ids.append(request["plan"].pop("run_id"))
        return request

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    @property
    def cached_plans(self) -> list[Path]:
        return sorted((self.root / "cache/sparkwright/plans").glob("*"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    created = Project(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(connect, "open_link", RecordingLink)
    monkeypatch.setattr("sparkwright.fleet.member.open_link", RecordingLink)
    monkeypatch.setattr(RecordingLink, "learnt", {})
    monkeypatch.chdir(tmp_path)
    real = session.run

    def count_runs(*given: Any, **more: Any) -> list[int]:
        created.planned += 1
        return real(*given, **more)

    monkeypatch.setattr(session, "run", count_runs)
    return created


def test_the_second_run_asks_the_host_the_same_without_planning(project: Project) -> None:
    first = project.deploy()
    assert first["restart"]["plan"]["play"] and first["plan"]["steps"]
    assert project.deploy() == first
    assert project.planned == 1
    assert len(set(project.ids)) == 2


def test_what_planning_says_is_said_again(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.edit("recipes/qwen3.5-35b.yml", "  ipc: private", "  privileged: true\n  ipc: private")
    notes, panels = [], []
    for _ in range(2):
        project.deploy()
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        notes.append([row["text"] for row in rows if row["event"] == "note"])
    for _ in range(2):
        project.deploy(json=False)
        panels.append(capsys.readouterr().out)
    assert notes[0] == notes[1] and any("privileged" in note for note in notes[0])
    assert panels[0] == panels[1] and "qwen3.5-35b" in panels[0]
    assert project.planned == 1


CHANGES: dict[str, Callable[[Project], object]] = {
    "a flag": lambda value: value.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 9"),
    "the host": lambda value: value.edit("hosts/spark1.yml", "user: ops", "user: ops\nserve_port: 8001"),
    "the groups": lambda value: (value.root / "hosts/groups.yml").write_text("all: {vars: {reserve_gib: 7}}\n"),
    "the lock": lambda value: value.edit("spark.lock", "b" * 40, "d" * 40),
    "the playbook": lambda value: value.edit("playbooks/deploy.yml", "name: Gather facts", "name: Gather all facts"),
    "what it includes": lambda value: value.edit(
        "playbooks/parts/prove.yml", "Check that it generates", "Check it generates"
    ),
    "a template": lambda value: value.edit("templates/docker-run.sh.j2", "docker run", "docker  run"),
    "the restart playbook": lambda value: value.edit(
        "playbooks/restart.yml", "hosts: all", "hosts: all\n  vars: {drain_s: 7}"
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_planned_anew(project: Project, name: str) -> None:
    first = project.deploy()
    CHANGES[name](project)
    assert project.deploy() != first
    assert project.planned == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "result"),
    [
        ("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: -3", r"recipes/qwen3\.5-35b\.yml:\d+"),
        ("hosts/spark1.yml", "user: ops", "user: ops\nrecipee: x", r"hosts/spark1\.yml:3"),
        ("playbooks/deploy.yml", "preflight:", "preflihgt:", r"playbooks/deploy\.yml:\d+"),
        ("spark.lock", "b" * 40, "b" * 39, r"spark\.lock:\d+"),
    ],
)
def test_a_mistake_is_refused_after_a_good_run(
    project: Project, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, result: str
) -> None:
    project.deploy()
    project.deploy()
    project.edit(file, old, new)
    capsys.readouterr()
    RecordingLink.requests.clear()
    try:
        assert playbooks.run("deploy", "deploy", deploy_options()) == [5]
        message = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    except Refused as refused:
        message = str(refused)
    assert re.search(result, message)
    assert not RecordingLink.requests


def test_options_have_plans_of_their_own(project: Project) -> None:
    deploys, checks = project.deploy(), project.deploy(check=True)
    assert (deploys["plan"]["check"], checks["plan"]["check"]) == (False, True)
    assert "restart" not in checks
    assert (project.deploy(), project.deploy(check=True)) == (deploys, checks)
    assert project.planned == 2
    assert project.deploy(rollback=False) != deploys


def test_another_program_plans_anew(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.deploy()
    monkeypatch.setattr(sys, "version", "another Python")
    project.deploy()
    assert project.planned == 2


def flip_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"192.0.2.1") + 8] ^= 1
    path.write_bytes(raw)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "one bit": flip_byte,
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(b"\xff" * 500),
    "others may write": lambda path: path.chmod(0o622),
    "a link": replace_by_link,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_no_plan_of_ours_counts_as_absent(project: Project, name: str) -> None:
    first = project.deploy()
    (path,) = project.cached_plans
    DAMAGES[name](path)
    assert project.deploy() == first
    assert project.planned == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_counts_as_absent(project: Project) -> None:
    project.deploy()
    os.chown(project.cached_plans[0], 65534, 65534)
    project.deploy()
    assert project.planned == 2


def test_what_is_kept_is_its_users_alone_and_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_CACHED_PLANS", 2)
    for tags in ("", "x", "y"):
        (project.root / "playbooks/deploy.yml").write_text("- hosts: all\n  tasks: [{facts: {}, tags: [x, y]}]\n")
        project.deploy(tags=tags)
    assert len(project.cached_plans) == 2
    assert {path.stat().st_mode & 0o777 for path in project.cached_plans} == {0o600}
    assert project.cached_plans[0].parent.stat().st_mode & 0o777 == 0o700


def test_secrets_are_read_for_each_run_and_never_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "hosts/groups.yml").write_text("all: {secrets: {HF_TOKEN: {env: MY_TOKEN}}}\n")
    monkeypatch.setenv("MY_TOKEN", "hf_first_of_two")
    assert project.deploy()["secrets"] == {"HF_TOKEN": "hf_first_of_two"}
    monkeypatch.setenv("MY_TOKEN", "hf_second_of_two")
    assert project.deploy()["secrets"] == {"HF_TOKEN": "hf_second_of_two"}
    assert project.planned == 1
    assert b"_of_two" not in project.cached_plans[0].read_bytes()
    monkeypatch.setenv("MY_TOKEN", "abc")
    assert playbooks.run("deploy", "deploy", deploy_options()) == [5]


def test_a_plan_in_which_a_secret_stands_is_not_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "hosts/groups.yml").write_text("all: {secrets: {T: {env: T}}, env: {COPY: hf_in_the_open}}\n")
    project.edit("recipes/qwen3.5-35b.yml", "  ipc: private", "  env: {COPY: hf_in_the_open}\n  ipc: private")
    monkeypatch.setenv("T", "hf_in_the_open")
    project.deploy()
    project.deploy()
    assert project.planned == 2 and not project.cached_plans


def test_a_servers_key_is_read_for_each_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (project.root / "recipes/qwen3.5-35b.yml").open("a") as file:
        file.write("\nserver_key: {env: SPARK_KEY}\n")
    for key in ("a-key-of-a-server-that-is-long", "another-key-of-it-that-is-long"):
        monkeypatch.setenv("SPARK_KEY", key)
        assert project.deploy()["secrets"] == {"server_key of qwen3.5-35b": key}
    assert b"that-is-long" not in project.cached_plans[0].read_bytes()
    for key, result in (("", "SPARK_KEY provides no key"), ("short", "a key must be")):
        monkeypatch.setenv("SPARK_KEY", key)
        capsys.readouterr()
        assert playbooks.run("deploy", "deploy", deploy_options()) == [5]
        message = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
        assert result in message and re.search(r"qwen3\.5-35b\.yml:\d+", message)
    assert project.planned == 1


def test_what_the_image_says_anew_reaches_the_lock(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.deploy()
    monkeypatch.setattr(RecordingLink, "learnt", {"engine_version": "0.32.0"})
    project.deploy()
    assert "0.32.1" not in (project.root / "spark.lock").read_text()
    monkeypatch.setattr(RecordingLink, "learnt", {"engine_version": "0.32.1"})
    project.deploy()
    assert project.planned == 1
    assert "engine_version: 0.32.1" in (project.root / "spark.lock").read_text()


def test_a_group_that_must_keep_serving_is_asked_each_time(project: Project) -> None:
    project.edit("hosts/spark1.yml", "user: ops", "user: ops\ngroups: [lab]")
    (project.root / "hosts/groups.yml").write_text("lab: {min_serving: 1}\n")
    for _ in range(2):
        playbooks.run("deploy", "deploy", deploy_options())
    assert project.planned == 2


class Pair(Project):
    """A user's folder with a cluster of two hosts."""

    def __init__(self, project: Project) -> None:
        self.__dict__ = project.__dict__
        (self.root / "hosts/spark1.yml").unlink()
        for n in (1, 2):
            fabric = f"{{interfaces: [enp1s0f1np1], address: 10.0.0.{n}}}"
            (self.root / f"hosts/spark{n}.yml").write_text(f"address: 192.0.2.{n}\nuser: ops\nfabric: {fabric}\n")
        groups = "pair: {hosts: [spark1, spark2], cluster: {recipe: qwen3.5-35b, head: spark1}}\n"
        (self.root / "hosts/groups.yml").write_text(groups)
        (self.root / "recipes/qwen3.5-35b.yml").write_text(PAIR_RECIPE_TEXT)

    def deploy_pair(self) -> dict[str, dict[str, Any]]:
        """Deploy, and return each host's request by address, without the run's id and the token, which all share."""
        RecordingLink.requests.clear()
        assert playbooks.run("deploy", "deploy", deploy_options(host="pair")) == [0, 0]
        request = {item["plan"]["host"]: item for item in RecordingLink.requests}
        self.ids += [item["plan"].pop("run_id") for item in request.values()]
        tokens = {item["secrets"].pop(TOKEN_SECRET) for item in request.values()}
        assert len(tokens) == 1
        self.tokens = [*getattr(self, "tokens", []), *tokens]
        return request


@pytest.fixture
def pair(project: Project) -> Pair:
    return Pair(project)


def test_the_members_of_a_cluster_are_asked_the_same_without_planning(pair: Pair) -> None:
    first = pair.deploy_pair()
    assert first.keys() == {"spark1", "spark2"} and first["spark1"]["restart"]["plan"]["cluster"]
    assert pair.deploy_pair() == first
    assert pair.planned == 1
    assert len(set(pair.ids)) == 4 and len(set(pair.tokens)) == 2, "each run is one of its own, with a token of its own"
    (cached,) = pair.cached_plans
    assert not any(token in cached.read_text() for token in pair.tokens)
    pair.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 9")
    assert pair.deploy_pair() != first
    assert pair.planned == 2


def test_a_cluster_of_which_a_member_is_gone_is_not_begun(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.deploy_pair()
    result: list[str] = []

    def ready(self: RecordingLink) -> None:
        if self._host.name == "spark2":
            result.append(self._host.name)
            raise Unreachable("spark2 is off.")

    monkeypatch.setattr(RecordingLink, "ready", ready)
    RecordingLink.requests.clear()
    assert playbooks.run("deploy", "deploy", deploy_options(host="pair")) == [3]
    assert result and not RecordingLink.requests


#: runs in a process of its own, as a command does, and prints the modules that were imported
PROGRAM = """
import json, sys
from sparkwright.app import connect
from sparkwright.protocol import events
class Link:
    def __init__(self, *given): pass
    def request(self, header, secrets): yield dict(event="recap", host="spark1", exit=0, msg="", **dict.fromkeys(events.COUNTS, 0))
    def close(self): pass
connect.open_link = Link
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.deploy_options import DeployOptions
playbooks.run("deploy", "deploy", DeployOptions(**json.loads(sys.argv[1])))
heavy = ("pydantic", "jinja2", "packaging", "sparkwright.engines.vllm", "sparkwright.project.playbook", "sparkwright.project.recipe")
print([one for one in sys.modules if one.startswith(heavy)], file=sys.stderr)
"""


def test_a_deploy_of_a_kept_plan_imports_nothing_that_plans(project: Project) -> None:
    project.deploy()
    words = [sys.executable, "-c", PROGRAM, json.dumps(asdict(deploy_options()))]
    result = subprocess.run(words, capture_output=True, text=True, cwd=project.root, timeout=60, check=False)
    assert result.stderr == "[]\n"


def test_every_playbook_of_a_command_is_kept_for_one_host(project: Project) -> None:
    for name in [name for name, *_ in COMMANDS if (TOP / "playbooks" / f"{name}.yml").is_file()]:
        before = project.planned
        extra = {"new_baseline": False} if name == "verify" else {}
        assert project.deploy(name, **extra) == project.deploy(name, **extra), name
        assert project.planned == before + 1, name


def test_planning_asks_no_host_and_gives_the_same_plan_again(project: Project) -> None:
    selection = connect.select_hosts("spark1")
    (play,) = playbook.load(TOP / "playbooks/deploy.yml", project.root).plays
    prepared = Preparation(selection, play, check=False)
    prepared.query_members(selection.fleet.members)
    planner = Planner(selection, play, playbook.Options(), prepared)
    RecordingLink.requests.clear()
    first, second = (planner.plan(selection.hosts[0], {}) for _ in range(2))
    assert first.plan.steps and RecordingLink.requests == []
    same = [{**planned.to_json(), "plan": planned.plan.to_json()["steps"]} for planned in (first, second)]
    assert json.dumps(same[0]) == json.dumps(same[1])


def test_what_the_lock_lacks_is_asked_before_a_host_is_planned_for(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host answers nothing about the model, so its plan is refused and never sent."""
    (project.root / "spark.lock").write_text(LOCK.partition("models:")[0])
    RecordingLink.requests.clear()
    assert playbooks.run("deploy", "deploy", deploy_options()) == [5]
    assert [request["plan"]["play"] for request in RecordingLink.requests] == ["Lock"]
    assert "the host did not report a result" in capsys.readouterr().out
