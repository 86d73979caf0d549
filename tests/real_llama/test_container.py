"""The real llama-server in a container of the real Docker Engine, deployed from a registry and a hub on loopback."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml

from tests import own_hub
from tests.e2e.conftest import CommandResult
from tests.real_llama.container_desk import (
    BROKEN,
    GGUF_REPO,
    GOOD,
    Images,
    Project,
    needed_mounts,
    published,
    run_docker,
)
from tests.remote.sshd import free_port


@pytest.fixture(scope="module")
def hub_url(tiny: Path) -> Iterator[str]:
    """A hub with the sandbox's models, the tiny model, and its first half."""
    content = tiny.read_bytes()
    with own_hub.serve_models({GGUF_REPO: {GOOD: content, BROKEN: content[: len(content) // 2]}}) as url:
        yield url


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with published(tmp_path_factory.mktemp("registry")) as registry_images:
        yield registry_images


@pytest.fixture
def project(tmp_path: Path, images: Images, hub_url: str) -> Iterator[Project]:
    with closing(Project(tmp_path, images, hub_url)) as new_project:
        yield new_project


def deploy_proved(desk: Project) -> CommandResult:
    result = desk.deploy()
    assert result.proved, result.out[-3000:] + result.err
    return result


def check_second_deploy(desk: Project) -> None:
    """Check that another deploy of the running server changes nothing."""
    before = container_state(desk)
    assert before[1:] == (True, "unless-stopped")
    result = desk.deploy()
    assert (result.code, result.recap["changed"], result.recap["failed"]) == (0, 0, 0), result.out
    assert container_state(desk) == before


def roll_back(desk: Project) -> None:
    result = desk.run("rollback", "--host", "here", "--json")
    assert result.proved, result.out


def is_generating(desk: Project) -> bool:
    """Return True if the health check gets a token."""
    return desk.run("health.check", "--host", "here").code == 0


def container_state(desk: Project) -> tuple[str, bool, str]:
    attrs = desk.container()
    return attrs["Id"], attrs["State"]["Running"], attrs["HostConfig"]["RestartPolicy"]["Name"]


def test_a_deploy_is_verified_and_a_second_deploy_changes_nothing(project: Project) -> None:
    first = deploy_proved(project.serve_llama())
    state = first.task("Check the engine log")["data"]["state"]
    assert (state["max_model_len"], state["slots"], state["chunked_prefill"]) == (4096, 2, True)
    assert first.task("Compare the reference text")["status"] == "ok"
    check_second_deploy(project)


def test_status_verify_and_diagnose_report_a_healthy_server(project: Project) -> None:
    deploy_proved(project.serve_llama())
    row = json.loads(project.run("status", "--host", "here", "--json").out)
    assert row["state"] in ("up", "ok"), row
    result = project.run("verify", "--host", "here", "--json")
    assert result.code in (0, 4), result.out
    cache = result.task("Test the prefix cache")["data"]
    assert (cache["verdict"], cache["hit_share"] <= 1) == ("hits", True)
    diagnosed = project.run("diagnose", "--host", "here")
    assert diagnosed.code != 1, diagnosed.out
    assert "no server answers" not in diagnosed.out


@pytest.mark.parametrize("serve", [Project.serve_llama, Project.serve_described], ids=["llama.cpp", "described"])
def test_a_killed_server_is_reported_and_restored(project: Project, serve: Callable[[Project], Project]) -> None:
    deploy_proved(serve(project))
    before = container_state(project)
    run_docker("kill", project.name)
    assert project.run("health.check", "--host", "here").code == 1
    assert "exited (137)" in project.run("status", "--host", "here").out
    assert "exited (137)" in project.run("diagnose", "--host", "here").out
    restored = deploy_proved(project)
    assert restored.task("Stop unresponsive server")["status"] == "changed"
    assert container_state(project) == before
    assert is_generating(project)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"file": BROKEN}, "the model's file is truncated: a tensor lies beyond its end."),
        ({"device": "CUDA0"}, "invalid device: CUDA0"),
    ],
)
def test_a_failed_start_is_rolled_back_with_its_file(project: Project, flags: dict[str, str], reason: str) -> None:
    """The file of another quantisation replaces the model's file; the restored server needs its own."""
    deploy_proved(project.serve_llama())
    before = container_state(project)
    result = project.serve_llama(**flags).deploy()
    assert result.code == 1, result.out
    assert reason in result.task("Wait until it is ready")["msg"]
    assert container_state(project) == before
    assert is_generating(project), "it is the verified server again"
    assert project.serve_llama().deploy().recap["changed"] == 0


def test_a_long_stream_is_not_a_stall(project: Project) -> None:
    """llama-server counts generated tokens at the end of a request; until then only its heartbeat moves."""
    deploy_proved(project.serve_llama(parallel=1))
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True, "max_tokens": 8000}
    with ExitStack() as opened:
        streams = [
            opened.enter_context(closing(HTTPConnection("127.0.0.1", project.port, timeout=60))) for _ in range(3)
        ]
        for number, stream in enumerate(streams):
            stream.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if number == 0:  # the others wait, so that its end does not free the slot
                stream.getresponse().readline()
        result = project.run("health.check", "--host", "here")
        assert result.code == 0, result.out
        assert "it generates" in result.out, "known from the heartbeat, because the only slot is in use"


def test_engines_replace_each_other_on_one_port(project: Project) -> None:
    deploy_proved(project.serve_vllm())
    vllm = container_state(project)
    assert project.serve_llama(device="CUDA0").deploy().code == 1
    assert container_state(project) == vllm
    assert (server_owner(project), is_generating(project)) == ("vllm", True)
    deploy_proved(project.serve_llama())
    assert (server_owner(project), is_generating(project)) == ("llamacpp", True)
    assert run_docker("ps", "-aq", "--filter", f"name={project.name}-previous") == ""
    roll_back(project)
    assert (server_owner(project), is_generating(project)) == ("vllm", True)


def test_a_verified_server_of_another_name_is_replaced(project: Project) -> None:
    deploy_proved(project.serve_vllm())
    before, first = container_state(project), project.name
    project.name = f"{first}-b"
    try:
        assert project.serve_llama(device="CUDA0").deploy().code == 1
        assert run_docker("ps", "-aq", "--filter", f"name={project.name}") == ""
        project.name, second = first, project.name
        assert (container_state(project), server_owner(project)) == (before, "vllm")
        project.name = second
        deploy_proved(project.serve_llama())
        assert server_owner(project) == "llamacpp"
        assert run_docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={first}") == second
    finally:
        run_docker("rm", "-fv", f"{first}-b", check=False)


def test_an_unverified_server_of_another_name_is_named_and_kept(project: Project) -> None:
    """The message says how to replace it, which is a normal replacement with a rollback."""
    deploy_proved(project.serve_vllm())
    before, first = container_state(project), project.name
    (project.root.parent / "home/.local/state/sparkwright/verified.json").unlink()
    project.name = f"{first}-b"
    result = project.serve_llama().deploy()
    assert result.code == 5, result.out
    task = result.task("Run preflight checks")
    assert f"port {project.port} is in use by container {first}." in task["msg"]
    assert f"give the recipe its container name (`container.name: {first}`)" in task["msg"] + task["fix"]
    assert run_docker("ps", "-aq", "--filter", f"name={project.name}") == ""
    project.name = first
    assert (container_state(project), server_owner(project)) == (before, "vllm")
    deploy_proved(project.serve_llama())
    assert server_owner(project) == "llamacpp"


def test_a_foreign_container_keeps_its_name_and_keeps_running(project: Project) -> None:
    """Issue 30: a deploy and `host.clean` removed every container named NAME-previous."""
    deploy_proved(project.serve_llama())
    before, previous_name = container_state(project), f"{project.name}-previous"
    binds = [word for mount in needed_mounts() for word in ("-v", mount)]
    image = project.images.name("llama.cpp:server-b11549")
    run_docker(
        "run", "-d", "--name", previous_name, "--restart", "always", *binds, "--entrypoint", "sleep", image, "1000"
    )
    identity = "{{.Id}} {{.State.StartedAt}} {{.RestartCount}} {{.HostConfig.RestartPolicy.Name}}"
    foreign = run_docker("inspect", "-f", identity, previous_name)
    try:
        result = project.serve_llama(parallel=1).deploy()
        assert result.code == 5, result.out[-3000:]
        message = result.recap["msg"]
        assert f"container {previous_name} (" in message and "was not started by sparkwright" in message
        assert f"`docker stop {previous_name} && docker rename {previous_name} {previous_name}-kept`" in message
        assert (container_state(project), run_docker("inspect", "-f", identity, previous_name)) == (before, foreign)
        run_docker("rename", previous_name, f"{project.name}-theirs")
        deploy_proved(project)
        assert container_state(project)[0] != before[0]
        labels = project.container()["Config"]["Labels"]
        assert (labels["sparkwright.role"], labels["sparkwright.server"]) == ("server", project.name)
        run_docker("rename", project.name, f"{project.name}-moved")
        result = project.deploy()
        assert result.code == 5, result.out
        assert f"container {project.name}-moved is the server {project.name}, renamed" in result.out
        run_docker("rename", f"{project.name}-moved", project.name)
        cleaned = project.run("host.clean", "--host", "here", "--server", "--yes")
        assert cleaned.code == 0, cleaned.out + cleaned.err
        assert run_docker("ps", "-aq", "--filter", f"name=^{project.name}$") == ""
        assert run_docker("inspect", "-f", identity, f"{project.name}-theirs") == foreign
    finally:
        run_docker("rm", "-fv", previous_name, f"{project.name}-theirs", f"{project.name}-moved", check=False)


def server_owner(desk: Project) -> str:
    """Return the owner of the served model, from /v1/models."""
    with urllib.request.urlopen(f"http://127.0.0.1:{desk.port}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["owned_by"])


def test_two_engines_serve_on_one_host_without_affecting_each_other(project: Project) -> None:
    """A running vLLM is not restarted while a llama-server is added, fails and is restored."""
    assert deploy_proved(project.serve_vllm()).code == 0
    before = project.container()["State"]["StartedAt"]
    vllm = yaml.safe_load((project.root / "recipes/served.yml").read_text())
    project.serve_llama()
    small = yaml.safe_load((project.root / "recipes/served.yml").read_text())
    small["container"] |= {"name": f"{project.name}-small", "ports": [f"127.0.0.1:{free_port()}:8080"]}
    project.serves(vllm)
    (project.root / "recipes/small.yml").write_text(yaml.safe_dump(small, sort_keys=False))
    host_file = project.root / "hosts/here.yml"
    host = yaml.safe_load(host_file.read_text())
    del host["recipe"]
    host_file.write_text(yaml.safe_dump({**host, "serves": ["served", "small"]}))

    def is_untouched() -> bool:
        return bool(project.container()["State"]["StartedAt"] == before)

    try:
        both = project.run("deploy", "--host", "here")
        assert both.proved and is_untouched(), both.out[-3000:]
        again = project.run("deploy", "--host", "here")
        assert again.proved and is_untouched(), again.out[-2000:]
        assert project.run("restart", "--host", "here", "--recipe", "small").proved and is_untouched()
        health = project.run("health.check", "--host", "here")
        assert health.code == 0 and health.out.count("ok: a token in") == 2, health.out
        small["model"]["file"] = BROKEN
        (project.root / "recipes/small.yml").write_text(yaml.safe_dump(small, sort_keys=False))
        failed = project.run("deploy", "--host", "here", "--recipe", "small")
        assert failed.code == 1 and is_untouched(), failed.out[-2000:]
        run_docker("kill", f"{project.name}-small")
        rows = [json.loads(line) for line in project.run("status", "--host", "here", "--json").out.splitlines()]
        assert {row["host"]: row["state"] in ("ok", "up") for row in rows} == {"here/served": True, "here/small": False}
        assert is_untouched()
    finally:
        for name in (f"{project.name}-small", f"{project.name}-small-previous"):
            run_docker("rm", "-fv", name, check=False)
