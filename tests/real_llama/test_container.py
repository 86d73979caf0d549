"""The real llama-server in a real container on the real Docker Engine, deployed by the command from a registry and a hub on loopback."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml

from tests import own_hub
from tests.e2e.conftest import CommandResult
from tests.real_llama.container_desk import BROKEN, GGUF_REPO, GOOD, Desk, Images, docker, mounts, published
from tests.remote.sshd import free_port


@pytest.fixture(scope="module")
def hub_url(tiny: Path) -> Iterator[str]:
    """A hub with the tiny model, whole and cut in half, beside those of the sandbox."""
    whole = tiny.read_bytes()
    with own_hub.serve_models({GGUF_REPO: {GOOD: whole, BROKEN: whole[: len(whole) // 2]}}) as url:
        yield url


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with published(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, images: Images, hub_url: str) -> Iterator[Desk]:
    value = Desk(tmp_path, images, hub_url)
    try:
        yield value
    finally:
        value.close()


def deployed(desk: Desk) -> CommandResult:
    result = desk.deploy()
    assert result.proved, result.out[-3000:] + result.err
    return result


def generates(desk: Desk) -> bool:
    """Whether the health check, which asks for a token, calls it healthy."""
    return desk.run("health.check", "--host", "here").code == 0


def id_and_policy(desk: Desk) -> tuple[str, bool, str]:
    found = desk.container()
    return found["Id"], found["State"]["Running"], found["HostConfig"]["RestartPolicy"]["Name"]


def test_a_deploy_is_proved_and_a_second_one_changes_nothing(desk: Desk) -> None:
    desk.llama()
    first = deployed(desk)
    read = first.task("Check the engine log")["data"]["state"]
    assert (read["max_model_len"], read["slots"], read["chunked_prefill"]) == (4096, 2, True)
    assert first.task("Compare the reference text")["status"] == "ok"
    before = id_and_policy(desk)
    assert before[1:] == (True, "unless-stopped")
    second = desk.deploy()
    assert (second.code, second.recap["changed"], second.recap["failed"]) == (0, 0, 0), second.out
    assert id_and_policy(desk) == before


def test_status_verify_and_diagnose_say_what_is(desk: Desk) -> None:
    desk.llama()
    deployed(desk)
    row = json.loads(desk.run("status", "--host", "here", "--json").out)
    assert row["state"] in ("up", "ok"), row
    result = desk.run("verify", "--host", "here", "--json")
    assert result.code in (0, 4), result.out
    cache = result.task("Test the prefix cache")["data"]
    assert (cache["verdict"], cache["hit_share"] <= 1) == ("hits", True)
    diagnosed = desk.run("diagnose", "--host", "here")
    assert diagnosed.code != 1, diagnosed.out
    assert "no server answers" not in diagnosed.out


def test_a_killed_server_is_told_and_a_deploy_brings_it_back(desk: Desk) -> None:
    desk.llama()
    deployed(desk)
    before = id_and_policy(desk)
    docker("kill", desk.name)
    assert desk.run("health.check", "--host", "here").code == 1
    assert "exited (137)" in desk.run("status", "--host", "here").out
    assert "exited (137)" in desk.run("diagnose", "--host", "here").out
    again = deployed(desk)
    assert again.task("Stop unresponsive server")["status"] == "changed"
    assert id_and_policy(desk) == before
    assert generates(desk)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"file": BROKEN}, "the model's file is cut off: a tensor lies beyond its end."),
        ({"device": "CUDA0"}, "invalid device: CUDA0"),
    ],
)
def test_a_start_that_fails_is_rolled_back_with_the_models_file(desk: Desk, flags: dict[str, str], why: str) -> None:
    """Another quantisation of the same commit takes the file's place: the server that is restored needs its own."""
    desk.llama()
    deployed(desk)
    before = id_and_policy(desk)
    desk.llama(**flags)
    result = desk.deploy()
    assert result.code == 1, result.out
    assert why in result.task("Wait until it is ready")["msg"]
    assert id_and_policy(desk) == before
    assert generates(desk), "nothing differs from what was verified"
    desk.llama()
    assert desk.deploy().recap["changed"] == 0


def test_a_long_stream_is_no_stall(desk: Desk) -> None:
    """llama-server counts generated tokens when a request ends: until then its heartbeat alone moves."""
    desk.llama(parallel=1)
    deployed(desk)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True, "max_tokens": 8000}
    with ExitStack() as opened:
        streams = [opened.enter_context(closing(HTTPConnection("127.0.0.1", desk.port, timeout=60))) for _ in range(3)]
        for number, stream in enumerate(streams):
            stream.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if number == 0:  # the others wait, so that its end does not free the slot
                stream.getresponse().readline()
        while_it_runs = desk.run("health.check", "--host", "here")
        assert while_it_runs.code == 0, while_it_runs.out
        assert "it generates" in while_it_runs.out, "the one slot is taken: the heartbeat tells"


def test_engines_take_each_others_place_on_one_port(desk: Desk) -> None:
    desk.vllm()
    deployed(desk)
    vllm = id_and_policy(desk)
    desk.llama(device="CUDA0")
    assert desk.deploy().code == 1
    assert id_and_policy(desk) == vllm
    assert owner(desk) == "vllm"
    assert generates(desk)
    desk.llama()
    deployed(desk)
    assert owner(desk) == "llamacpp"
    assert generates(desk)
    assert docker("ps", "-aq", "--filter", f"name={desk.name}-previous") == ""
    back = desk.run("rollback", "--host", "here", "--json")
    assert back.proved, back.out
    assert owner(desk) == "vllm"
    assert generates(desk)


def test_a_server_of_another_name_is_replaced_when_it_was_verified_here(desk: Desk) -> None:
    desk.vllm()
    deployed(desk)
    before, first = id_and_policy(desk), desk.name
    desk.name = f"{first}-b"
    try:
        desk.llama(device="CUDA0")
        assert desk.deploy().code == 1
        assert docker("ps", "-aq", "--filter", f"name={desk.name}") == ""
        desk.name, second = first, desk.name
        assert (id_and_policy(desk), owner(desk)) == (before, "vllm")
        desk.name = second
        desk.llama()
        deployed(desk)
        assert owner(desk) == "llamacpp"
        assert docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={first}") == second
    finally:
        docker("rm", "-fv", f"{first}-b", check=False)


def test_one_that_nobody_verified_is_named_and_left_alone(desk: Desk) -> None:
    """Whether it is to go is not known: the sentence says how it is replaced, and that is a swap with all of its safety."""
    desk.vllm()
    deployed(desk)
    before, first = id_and_policy(desk), desk.name
    (desk.root.parent / "home/.local/state/sparkwright/verified.json").unlink()
    desk.name = f"{first}-b"
    desk.llama()
    result = desk.deploy()
    assert result.code == 5, result.out
    found = result.task("Run preflight checks")
    assert f"port {desk.port} is in use by container {first}." in found["msg"]
    assert f"name the recipe's container like it (`container.name: {first}`)" in found["msg"] + found["fix"]
    assert docker("ps", "-aq", "--filter", f"name={desk.name}") == ""
    desk.name = first
    assert (id_and_policy(desk), owner(desk)) == (before, "vllm")
    desk.llama()
    deployed(desk)
    assert owner(desk) == "llamacpp"


def test_a_container_of_a_person_keeps_its_name_and_its_life(desk: Desk) -> None:
    """Issue 30: a deploy removed whatever was called NAME-previous, and `host.clean` too."""
    desk.llama()
    deployed(desk)
    before, taken = id_and_policy(desk), f"{desk.name}-previous"
    binds = [word for mount in mounts() for word in ("-v", mount)]
    image = desk.images.name("llama.cpp:server-b11549")
    docker("run", "-d", "--name", taken, "--restart", "always", *binds, "--entrypoint", "sleep", image, "1000")
    shown = "{{.Id}} {{.State.StartedAt}} {{.RestartCount}} {{.HostConfig.RestartPolicy.Name}}"
    theirs = docker("inspect", "-f", shown, taken)
    try:
        desk.llama(parallel=1)
        result = desk.deploy()
        assert result.code == 5, result.out[-3000:]
        assert f"container {taken} (" in result.recap["msg"] and "was not started by sparkwright" in result.recap["msg"]
        assert f"`docker stop {taken} && docker rename {taken} {taken}-kept`" in result.recap["msg"]
        assert (id_and_policy(desk), docker("inspect", "-f", shown, taken)) == (before, theirs)
        docker("rename", taken, f"{desk.name}-theirs")
        deployed(desk)
        assert id_and_policy(desk)[0] != before[0]
        marks = desk.container()["Config"]["Labels"]
        assert (marks["sparkwright.role"], marks["sparkwright.server"]) == ("server", desk.name)
        docker("rename", desk.name, f"{desk.name}-moved")
        message = desk.deploy()
        assert (message.code, f"container {desk.name}-moved is the server {desk.name}, renamed" in message.out) == (
            5,
            True,
        )
        docker("rename", f"{desk.name}-moved", desk.name)
        cleaned = desk.run("host.clean", "--host", "here", "--server", "--yes")
        assert cleaned.code == 0, cleaned.out + cleaned.err
        assert docker("ps", "-aq", "--filter", f"name=^{desk.name}$") == ""
        assert docker("inspect", "-f", shown, f"{desk.name}-theirs") == theirs
    finally:
        docker("rm", "-fv", taken, f"{desk.name}-theirs", f"{desk.name}-moved", check=False)


def owner(desk: Desk) -> str:
    """Who serves at the port, as the server itself says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{desk.port}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["owned_by"])


def test_two_engines_serve_beside_each_other_and_none_touches_the_other(desk: Desk) -> None:
    """The vLLM that was deployed alone stays as it runs while a llama-server comes beside it, fails, and is healed."""
    desk.vllm()
    first = deployed(desk)
    assert first.code == 0
    before = desk.container()["State"]["StartedAt"]
    vllm = yaml.safe_load((desk.root / "recipes/served.yml").read_text())
    desk.llama()
    small = yaml.safe_load((desk.root / "recipes/served.yml").read_text())
    small["container"] |= {"name": f"{desk.name}-small", "ports": [f"127.0.0.1:{free_port()}:8080"]}
    (desk.root / "recipes/served.yml").write_text(yaml.safe_dump(vllm, sort_keys=False))
    (desk.root / "recipes/small.yml").write_text(yaml.safe_dump(small, sort_keys=False))
    host = desk.root / "hosts/here.yml"
    about = yaml.safe_load(host.read_text())
    del about["recipe"]
    host.write_text(yaml.safe_dump({**about, "serves": ["served", "small"]}))

    def untouched() -> bool:
        return bool(desk.container()["State"]["StartedAt"] == before)

    try:
        both = desk.run("deploy", "--host", "here")
        assert both.proved and untouched(), both.out[-3000:]
        again = desk.run("deploy", "--host", "here")
        assert again.proved and untouched(), again.out[-2000:]
        assert desk.run("restart", "--host", "here", "--recipe", "small").proved and untouched()
        health = desk.run("health.check", "--host", "here")
        assert health.code == 0 and health.out.count("ok: a token in") == 2, health.out
        small["model"]["file"] = BROKEN
        (desk.root / "recipes/small.yml").write_text(yaml.safe_dump(small, sort_keys=False))
        failed = desk.run("deploy", "--host", "here", "--recipe", "small")
        assert failed.code == 1 and untouched(), failed.out[-2000:]
        docker("kill", f"{desk.name}-small")
        rows = [json.loads(line) for line in desk.run("status", "--host", "here", "--json").out.splitlines()]
        assert {row["host"]: row["state"] in ("ok", "up") for row in rows} == {"here/served": True, "here/small": False}
        assert untouched()
    finally:
        for name in (f"{desk.name}-small", f"{desk.name}-small-previous"):
            docker("rm", "-fv", name, check=False)
