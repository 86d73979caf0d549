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
from sparkwright.project import lockfile, playbook
from sparkwright.project.inventory.host import Host
from sparkwright.project.starter import PAIR_RECIPE_TEXT
from sparkwright.protocol.cluster import TOKEN_SECRET
from sparkwright.protocol.events import Event, event
from sparkwright.secret import Secret

TOP = Path(__file__).parents[3]
RECIPE = "recipes/qwen3.5-35b.yml"
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
    """A link that records the requests to its host, and answers that everything succeeded.

    reported_data: data of a task on the host, if any.
    during_run: called while the host works.
    """

    requests: ClassVar[list[dict[str, Any]]] = []
    reported_data: ClassVar[dict[str, Any]] = {}
    during_run: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, host: Host, need: str = "engine") -> None:
        self._host = host

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        message = {name: secret.reveal() for name, secret in secrets.items()}
        RecordingLink.requests.append(json.loads(json.dumps({**header, "secrets": message}, default=str)))
        RecordingLink.during_run()
        if RecordingLink.reported_data:
            fields = {"task": "t9", "name": "Check flags", "module": "lint", "status": "ok", "register": ""}
            yield event("task_finished", **fields, data=RecordingLink.reported_data)
        yield event("recap", host=self._host.name, ok=1, changed=0, failed=0, skipped=0, unreachable=0, exit=0, msg="")

    def wait_until_connected(self) -> None: ...

    def close(self) -> None: ...


class Project:
    """A user's folder with one host that is reached over ssh, and an own plan cache.

    planned: number of runs without a cached plan. run_ids, tokens: of each request, of each run of a cluster.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.planned = 0
        self.run_ids: list[str] = []
        self.tokens: list[str] = []
        for name in ("playbooks", "templates", "recipes"):
            shutil.copytree(TOP / name, root / name)
        (root / "hosts").mkdir()
        (root / "hosts/spark1.yml").write_text("address: 192.0.2.1\nuser: ops\nrecipe: qwen3.5-35b\n")
        (root / "hosts/groups.yml").write_text("all: {}\n")
        (root / "spark.lock").write_text(LOCK)

    def deploy(self, playbook: str = "deploy", **fields: Any) -> dict[str, Any]:
        """Deploy, and return the request to the host without the run's id."""
        RecordingLink.requests.clear()
        assert playbooks.run(playbook, playbook, deploy_options(**fields)) == [0]
        (request,) = RecordingLink.requests
        self.run_ids.append(request["plan"].pop("run_id"))
        return request

    def deploy_pair(self) -> dict[str, dict[str, Any]]:
        """Deploy a cluster, and return each host's request by address, without the run's id and the token, which all share."""
        RecordingLink.requests.clear()
        assert playbooks.run("deploy", "deploy", deploy_options(host="pair")) == [0, 0]
        requests = {request["plan"]["host"]: request for request in RecordingLink.requests}
        self.run_ids += [request["plan"].pop("run_id") for request in requests.values()]
        (token,) = {request["secrets"].pop(TOKEN_SECRET) for request in requests.values()}
        self.tokens.append(token)
        return requests

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
    monkeypatch.setattr(RecordingLink, "reported_data", {})
    monkeypatch.setattr(RecordingLink, "during_run", lambda: None)
    monkeypatch.chdir(tmp_path)
    run_session = session.run

    def count_runs(*args: Any, **options: Any) -> list[int]:
        created.planned += 1
        return run_session(*args, **options)

    monkeypatch.setattr(session, "run", count_runs)
    return created


@pytest.fixture
def pair(project: Project) -> Project:
    """Turn the project into one with a cluster of two hosts."""
    for n in (1, 2):
        fabric = f"{{interfaces: [enp1s0f1np1], address: 10.0.0.{n}}}"
        (project.root / f"hosts/spark{n}.yml").write_text(f"address: 192.0.2.{n}\nuser: ops\nfabric: {fabric}\n")
    groups = "pair: {hosts: [spark1, spark2], cluster: {recipe: qwen3.5-35b, head: spark1}}\n"
    (project.root / "hosts/groups.yml").write_text(groups)
    (project.root / RECIPE).write_text(PAIR_RECIPE_TEXT)
    return project


def deploy_with_error(capsys: pytest.CaptureFixture[str]) -> str:
    """Run a deploy that is refused after the host was selected, and return the error."""
    capsys.readouterr()
    assert playbooks.run("deploy", "deploy", deploy_options()) == [5]
    return str(json.loads(capsys.readouterr().out.splitlines()[-1])["error"])


def test_second_run_sends_the_same_request_without_planning(project: Project) -> None:
    first = project.deploy()
    assert first["restart"]["plan"]["play"] and first["plan"]["steps"]
    assert project.deploy() == first
    assert project.planned == 1
    assert len(set(project.run_ids)) == 2


def test_cached_plan_prints_the_same_notes_and_panel(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.edit(RECIPE, "  ipc: private", "  privileged: true\n  ipc: private")
    notes, panels = [], []
    for _ in range(2):
        project.deploy()
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        notes.append([row["text"] for row in rows if row["event"] == "note"])
        project.deploy(json=False)
        panels.append(capsys.readouterr().out)
    assert notes[0] == notes[1] and any("privileged" in note for note in notes[0])
    assert panels[0] == panels[1] and "qwen3.5-35b" in panels[0]
    assert project.planned == 1


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(RECIPE, "max-num-seqs: 8", "max-num-seqs: 9", id="recipe"),
        pytest.param("hosts/spark1.yml", "user: ops", "user: ops\nserve_port: 8001", id="host"),
        pytest.param("hosts/groups.yml", "all: {}", "all: {vars: {reserve_gib: 7}}", id="groups"),
        pytest.param("spark.lock", "b" * 40, "d" * 40, id="lock"),
        pytest.param("playbooks/deploy.yml", "name: Gather facts", "name: Gather all facts", id="playbook"),
        pytest.param("playbooks/parts/prove.yml", "Check that it", "Check whether it", id="included playbook"),
        pytest.param("templates/docker-run.sh.j2", "docker run", "docker  run", id="template"),
        pytest.param("playbooks/restart.yml", "hosts: all", "hosts: all\n  vars: {drain_s: 7}", id="restart playbook"),
    ],
)
def test_plan_is_made_again_after_a_changed_file(project: Project, file: str, old: str, new: str) -> None:
    first = project.deploy()
    project.edit(file, old, new)
    assert project.deploy() != first
    assert project.planned == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "place"),
    [
        (RECIPE, "max-num-seqs: 8", "max-num-seqs: -3", r"recipes/qwen3\.5-35b\.yml:\d+"),
        ("hosts/spark1.yml", "user: ops", "user: ops\nrecipee: x", r"hosts/spark1\.yml:3"),
        ("playbooks/deploy.yml", "preflight:", "preflihgt:", r"playbooks/deploy\.yml:\d+"),
        ("spark.lock", "b" * 40, "b" * 39, r"spark\.lock:\d+"),
    ],
)
def test_mistake_after_a_cached_run_is_refused(
    project: Project, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, place: str
) -> None:
    project.deploy()
    project.edit(file, old, new)
    RecordingLink.requests.clear()
    try:
        message = deploy_with_error(capsys)
    except Refused as refused:
        message = str(refused)
    assert re.search(place, message)
    assert not RecordingLink.requests


def test_each_set_of_options_has_its_own_plan(project: Project) -> None:
    deploys, checks = project.deploy(), project.deploy(check=True)
    assert (deploys["plan"]["check"], checks["plan"]["check"]) == (False, True)
    assert "restart" not in checks
    assert (project.deploy(), project.deploy(check=True)) == (deploys, checks)
    assert project.planned == 2
    assert project.deploy(rollback=False) != deploys


def test_plan_of_another_python_version_is_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.deploy()
    monkeypatch.setattr(sys, "version", "another Python")
    project.deploy()
    assert project.planned == 2


def flip_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"192.0.2.1") + 8] ^= 1
    path.write_bytes(raw)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a file's owner")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-200]), id="truncated"),
        pytest.param(flip_bit, id="flipped bit"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * 500), id="binary"),
        pytest.param(lambda path: path.chmod(0o622), id="writable by others"),
        pytest.param(replace_by_link, id="symlink"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="folder"),
        pytest.param(lambda path: os.chown(path, 65534, 65534), id="other owner", marks=only_root),
    ],
)
def test_invalid_cache_file_is_ignored(project: Project, damage: Callable[[Path], object]) -> None:
    first = project.deploy()
    (path,) = project.cached_plans
    damage(path)
    assert project.deploy() == first
    assert project.planned == 2


def test_cache_is_private_and_limited(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_CACHED_PLANS", 2)
    for tags in ("", "x", "y"):
        (project.root / "playbooks/deploy.yml").write_text("- hosts: all\n  tasks: [{facts: {}, tags: [x, y]}]\n")
        project.deploy(tags=tags)
    assert len(project.cached_plans) == 2
    assert {path.stat().st_mode & 0o777 for path in project.cached_plans} == {0o600}
    assert project.cached_plans[0].parent.stat().st_mode & 0o777 == 0o700


def test_secrets_are_read_for_each_run_and_not_cached(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "hosts/groups.yml").write_text("all: {secrets: {HF_TOKEN: {env: MY_TOKEN}}}\n")
    monkeypatch.setenv("MY_TOKEN", "hf_first_of_two")
    assert project.deploy()["secrets"] == {"HF_TOKEN": "hf_first_of_two"}
    monkeypatch.setenv("MY_TOKEN", "hf_second_of_two")
    assert project.deploy()["secrets"] == {"HF_TOKEN": "hf_second_of_two"}
    assert project.planned == 1
    assert b"_of_two" not in project.cached_plans[0].read_bytes()
    monkeypatch.setenv("MY_TOKEN", "abc")
    assert playbooks.run("deploy", "deploy", deploy_options()) == [5]


def test_plan_that_contains_a_secret_is_not_cached(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "hosts/groups.yml").write_text("all: {secrets: {T: {env: T}}, env: {COPY: hf_in_the_open}}\n")
    project.edit(RECIPE, "  ipc: private", "  env: {COPY: hf_in_the_open}\n  ipc: private")
    monkeypatch.setenv("T", "hf_in_the_open")
    project.deploy()
    project.deploy()
    assert project.planned == 2 and not project.cached_plans


def test_server_key_is_read_for_each_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (project.root / RECIPE).open("a") as file:
        file.write("\nserver_key: {env: SPARK_KEY}\n")
    for key in ("a-key-of-a-server-that-is-long", "another-key-of-it-that-is-long"):
        monkeypatch.setenv("SPARK_KEY", key)
        assert project.deploy()["secrets"] == {"server_key of qwen3.5-35b": key}
    assert b"that-is-long" not in project.cached_plans[0].read_bytes()
    for key, problem in (("", "SPARK_KEY provides no key"), ("short", "a key must be")):
        monkeypatch.setenv("SPARK_KEY", key)
        error = deploy_with_error(capsys)
        assert problem in error and re.search(r"qwen3\.5-35b\.yml:\d+", error)
    assert project.planned == 1


def test_engine_version_reported_by_a_host_is_written_to_the_lock(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.deploy()
    for version in ("0.32.0", "0.32.1"):
        monkeypatch.setattr(RecordingLink, "reported_data", {"engine_version": version})
        project.deploy()
        assert f"engine_version: {version}" in (project.root / "spark.lock").read_text()
    assert project.planned == 1


@pytest.mark.parametrize("cached", [False, True])
def test_lock_that_is_changed_during_a_run_keeps_its_changes(
    project: Project, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    """For example by `lock --update`, or by the deploy of another host."""
    lock = project.root / "spark.lock"
    changed_lock = LOCK.replace("a" * 64, "d" * 64).replace("vllm-openai:v0.32.0:", "vllm-openai:v0.32.0: &image")
    changed_lock = changed_lock.replace("models:", "  vllm/vllm-openai:v0.31.0: *image\nmodels:")
    if cached:
        project.deploy()
    monkeypatch.setattr(RecordingLink, "reported_data", {"engine_version": "0.32.1"})
    monkeypatch.setattr(RecordingLink, "during_run", lambda: lock.write_text(changed_lock))
    project.deploy()
    assert lock.read_text() == changed_lock
    assert project.planned == 1


def test_lock_with_a_conflict_after_a_run_is_kept_and_noted(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conflict = f"<<<<<<< HEAD\n{LOCK}=======\n>>>>>>> other\n"
    monkeypatch.setattr(RecordingLink, "reported_data", {"engine_version": "0.32.1"})
    monkeypatch.setattr(RecordingLink, "during_run", lambda: (project.root / "spark.lock").write_text(conflict))
    project.deploy()
    assert (project.root / "spark.lock").read_text() == conflict
    notes = [row["text"] for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["event"] == "note"]
    assert any("spark.lock has no engine version for vllm/vllm-openai:v0.32.0" in note for note in notes), notes


def test_deploy_of_a_group_with_min_serving_is_planned_each_time(project: Project) -> None:
    project.edit("hosts/spark1.yml", "user: ops", "user: ops\ngroups: [lab]")
    (project.root / "hosts/groups.yml").write_text("lab: {min_serving: 1}\n")
    for _ in range(2):
        playbooks.run("deploy", "deploy", deploy_options())
    assert project.planned == 2


def test_second_run_of_a_cluster_sends_the_same_requests_without_planning(pair: Project) -> None:
    first = pair.deploy_pair()
    assert first.keys() == {"spark1", "spark2"} and first["spark1"]["restart"]["plan"]["cluster"]
    assert pair.deploy_pair() == first
    assert pair.planned == 1
    assert len(set(pair.run_ids)) == 4 and len(set(pair.tokens)) == 2
    (cached,) = pair.cached_plans
    assert not any(token in cached.read_text() for token in pair.tokens)
    pair.edit(RECIPE, "max-num-seqs: 8", "max-num-seqs: 9")
    assert pair.deploy_pair() != first
    assert pair.planned == 2


def test_cluster_deploy_with_an_unreachable_member_sends_no_request(
    pair: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.deploy_pair()

    def fail_on_spark2(self: RecordingLink) -> None:
        if self._host.name == "spark2":
            raise Unreachable("spark2 is off.")

    monkeypatch.setattr(RecordingLink, "wait_until_connected", fail_on_spark2)
    RecordingLink.requests.clear()
    assert playbooks.run("deploy", "deploy", deploy_options(host="pair")) == [3]
    assert not RecordingLink.requests


#: a deploy that prints its heavy imports; it runs in a new process, as a command does
PROGRAM = """
import json, sys
from sparkwright.app import connect
from sparkwright.protocol import events
class Link:
    def __init__(self, *args): pass
    def request(self, header, secrets): yield dict(event="recap", host="spark1", exit=0, msg="", **dict.fromkeys(events.COUNTS, 0))
    def close(self): pass
connect.open_link = Link
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.deploy_options import DeployOptions
playbooks.run("deploy", "deploy", DeployOptions(**json.loads(sys.argv[1])))
heavy = ("pydantic", "jinja2", "packaging", "sparkwright.engines.vllm", "sparkwright.project.playbook", "sparkwright.project.recipe")
print([name for name in sys.modules if name.startswith(heavy)], file=sys.stderr)
"""


def test_deploy_of_a_cached_plan_does_not_import_the_planner(project: Project) -> None:
    project.deploy()
    words = [sys.executable, "-c", PROGRAM, json.dumps(asdict(deploy_options()))]
    result = subprocess.run(words, capture_output=True, text=True, cwd=project.root, timeout=60, check=False)
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS if (TOP / "playbooks" / f"{name}.yml").is_file()])
def test_every_command_with_a_playbook_uses_the_cache(project: Project, name: str) -> None:
    options = {"new_baseline": False} if name == "verify" else {}
    assert project.deploy(name, **options) == project.deploy(name, **options)
    assert project.planned == 1


def test_planning_sends_no_request_and_is_deterministic(project: Project) -> None:
    selection = connect.select_hosts("spark1")
    (play,) = playbook.load(TOP / "playbooks/deploy.yml", project.root).plays
    prepared = Preparation(selection, play, check=False)
    prepared.query_members(selection.fleet.members)
    planner = Planner(selection, play, playbook.Options(), prepared)
    RecordingLink.requests.clear()
    plans = [planner.plan(selection.hosts[0], {}) for _ in range(2)]
    assert plans[0].plan.steps and RecordingLink.requests == []
    first, second = (json.dumps({**plan.to_json(), "plan": plan.plan.to_json()["steps"]}) for plan in plans)
    assert first == second


def test_entries_that_another_command_adds_during_a_lookup_are_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, image = project.root / "spark.lock", {"digest": f"sha256:{'e' * 64}"}
    other_lock = LOCK.replace("v0.32.0:", "v0.31.0:")
    lock.write_text("models:" + LOCK.partition("models:")[2])

    def look_up(*args: object) -> dict[str, Any]:
        lock.write_text(other_lock)
        return {"image": image}

    monkeypatch.setattr("sparkwright.app.plans.pins.run_lock_tasks", look_up)
    project.deploy()
    images = lockfile.load(project.root).images
    assert sorted(images) == ["vllm/vllm-openai:v0.31.0", "vllm/vllm-openai:v0.32.0"]
    assert images["vllm/vllm-openai:v0.32.0"]["digest"] == image["digest"]


def test_lock_entries_are_requested_before_a_host_is_planned(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host answers nothing about the model, so its plan is refused and not sent."""
    (project.root / "spark.lock").write_text(LOCK.partition("models:")[0])
    RecordingLink.requests.clear()
    assert "the host did not report a result" in deploy_with_error(capsys)
    assert [request["plan"]["play"] for request in RecordingLink.requests] == ["Lock"]
