"""`gateway.deploy` and `gateway.status` on the sandbox, where the gateway is this machine's own HAProxy."""

import contextlib
import http.client
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import published
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.remote.sshd import free_port

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
KEY = "gateway-key-gateway-key"
FILES = ".local/state/sparkwright/gateway"


class GatewayProject:
    """A project whose sandbox serves a model behind a gateway."""

    def __init__(self, project: SandboxProject) -> None:
        self.project, self.port = project, free_port()
        self.write()

    def write(self, **changes: Any) -> None:
        """`gateway:` of the group box."""
        settings = {"host": "sandbox", "port": self.port, "tls": "none", "key": {"env": "GATEWAY_KEY"}, **changes}
        gateway = {key: value for key, value in settings.items() if value is not None}
        (self.project.root / "hosts/groups.yml").write_text(
            json.dumps({"lab": {}, "box": {"hosts": ["sandbox"], "gateway": gateway}})
        )

    def deploy(self, *words: str) -> CommandResult:
        return self.project.run("gateway.deploy", "--host", "box", "--json", *words)

    def rollback(self, *words: str) -> CommandResult:
        result = self.project.run("gateway.rollback", "--host", "box", "--json", *words)
        assert published.check_output("gateway.rollback", result.out) == []
        return result

    def status(self) -> dict[str, Any]:
        result = self.project.run("gateway.status", "--host", "box", "--json")
        status: dict[str, Any] = json.loads(result.out)
        assert result.code == (1 if not status["running"] else 0 if status["verified"] else 2)
        return status

    def fleet_entry(self) -> tuple[int, dict[str, Any]]:
        """The gateway in `status`, and its exit code."""
        result = self.project.run("status", "--host", "sandbox", "--json")
        gateway: dict[str, Any] = json.loads(result.out)["gateway"]
        return result.code, gateway

    def request(self, key: str = KEY, **body: Any) -> http.client.HTTPResponse:
        """A chat request through it; its answer begins."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        messages = [{"role": "user", "content": "hello"}]
        content = json.dumps({"model": "qwen3.5-35b", "messages": messages, "max_tokens": 4, **body})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what refuses a body need not read it
            link.request("POST", "/v1/chat/completions", content, {"Authorization": f"Bearer {key}"})
        return link.getresponse()

    def container(self) -> dict[str, Any]:
        container: dict[str, Any] = self.project.docker().api.inspect_container("gateway")
        return container


@pytest.fixture(scope="module")
def gate() -> Iterator[GatewayProject]:
    """Deploy a gateway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        patch.setenv("GATEWAY_KEY", KEY)
        with sandbox_project() as project:
            project.deployed()
            value = GatewayProject(project)
            assert (result := value.deploy()).code == 0, result.out + result.err
            yield value


@pytest.fixture(autouse=True)
def restore_files(request: pytest.FixtureRequest) -> None:
    """Restore the files as they were deployed."""
    if "gate" in request.fixturenames:
        request.getfixturevalue("gate").write()


def test_a_gateway_is_proved_and_earns_its_restart_policy(gate: GatewayProject) -> None:
    gate.deploy()
    answer = gate.request()
    assert (answer.status, json.loads(answer.read())["choices"][0]["finish_reason"]) == (200, "length")
    assert gate.request(key="another-key-another-key").status == 401
    found = gate.container()
    assert found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert found["Config"]["Image"].startswith("haproxy:2.6@sha256:")


def test_a_second_deploy_changes_nothing(gate: GatewayProject) -> None:
    gate.deploy()
    before = gate.container()
    result = gate.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0)
    assert gate.container()["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_no_key_is_in_the_configuration_and_no_file_is_anothers_to_read(gate: GatewayProject) -> None:
    gate.deploy()
    files = [path for path in (gate.project.sandbox / "home" / FILES).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"haproxy.cfg", "keys", "models.map"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not [path for path in files if KEY in path.read_text()]
    runs = (gate.project.sandbox / "home/.local/state/sparkwright/runs").rglob("*")
    assert not [path for path in runs if path.is_file() and KEY in path.read_text(errors="replace")]


def test_other_limits_are_read_without_cutting_a_stream(gate: GatewayProject) -> None:
    """A stream that began before a reload goes on to its end; the container is the same."""
    gate.deploy()
    before = gate.container()
    stream = gate.request(stream=True, max_tokens=150, ignore_eos=True)
    first = stream.read1(10)
    gate.write(limits={"queue_s": 7})
    result = gate.deploy()
    assert result.code == 0, result.out
    assert (
        result.task("Start the gateway, or reload its configuration")["msg"] == "reloaded without interrupting streams"
    )
    assert (first + stream.read()).endswith(b"data: [DONE]\n\n")
    assert gate.container()["Id"] == before["Id"]
    assert gate.container()["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_another_port_makes_another_container_and_the_one_before_goes(gate: GatewayProject) -> None:
    gate.deploy()
    before, gate.port = gate.container()["Id"], free_port()
    gate.write()
    assert gate.deploy().code == 0
    assert gate.request().status == 200
    assert gate.container()["Id"] != before
    assert [container for container in gate.project.containers() if container.startswith("gateway")] == [
        "gateway running"
    ]


def test_check_mode_shows_the_files_that_differ_and_touches_nothing(gate: GatewayProject) -> None:
    gate.deploy()
    gate.write(limits={"queue_s": 9})
    result = gate.deploy("--check", "--diff")
    task = result.task("Start the gateway, or reload its configuration")
    assert result.code == 2
    assert [item["field"] for item in task["diff"]] == ["file haproxy.cfg"]
    gate.write()
    assert gate.deploy("--check").code == 0


def test_what_the_pinned_haproxy_refuses_touches_nothing(gate: GatewayProject, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.deploy()
    before = gate.container()
    broken = gate.project.root / "playbooks/gateway/deploy.yml"
    text = broken.read_text()
    broken.write_text(text.replace('files: "{{ gateway.files }}"', 'files: {haproxy.cfg: "global\\n  nonsense 1\\n"}'))
    try:
        result = gate.deploy()
    finally:
        broken.write_text(text)
    assert result.code == 1
    assert "unknown keyword 'nonsense'" in result.recap["msg"], result.recap
    assert gate.container()["State"]["StartedAt"] == before["State"]["StartedAt"]
    assert gate.request().status == 200


def test_a_gateway_that_is_not_proved_gives_way_to_the_last_verified_one(gate: GatewayProject) -> None:
    """Its configuration is valid and routes to a port where nobody listens."""
    gate.deploy()
    served = gate.project.root / "hosts/sandbox.yml"
    text = served.read_text()
    served.write_text(text.replace(str(gate.project.port), str(free_port())))
    try:
        result = gate.deploy()
    finally:
        served.write_text(text)
    assert result.code == 1
    assert "no server of qwen3.5-35b is up. The last verified gateway is restored." in result.recap["msg"]
    assert gate.request().status == 200
    assert gate.deploy().recap["changed"] == 0


def test_a_port_of_another_program_is_refused(gate: GatewayProject) -> None:
    gate.deploy()
    gate.write(port=gate.project.port)
    result = gate.project.run("gateway.deploy", "--host", "box")
    assert result.code == 5
    assert f"`box.gateway.port`: {gate.project.port} is the port of the server of sandbox." in result.err


def test_status_counts_requests_and_names_servers(gate: GatewayProject) -> None:
    gate.deploy()
    before = gate.status()["models"][0]
    assert gate.request().status == 200
    deadline_s = time.monotonic() + 10
    while (now := gate.status()["models"][0])["requests"] == before["requests"]:
        assert time.monotonic() < deadline_s
    assert (now["model"], now["queued"], now["servers"][0]["host"]) == ("qwen3.5-35b", 0, "sandbox")
    result = gate.project.run("gateway.status", "--host", "box")
    assert result.code == 0 and "qwen3.5-35b" in result.out and "sandbox up" in result.out


def test_the_script_starts_the_same_container(gate: GatewayProject) -> None:
    gate.deploy()
    script = (gate.project.sandbox / "home/.local/share/sparkwright/run/gateway.sh").read_text()
    found = gate.container()
    assert found["Config"]["Image"] in script
    assert script.rstrip().endswith(" ".join(found["Config"]["Cmd"]))


def test_the_history_says_what_was_verified(gate: GatewayProject) -> None:
    result = gate.project.run("history", "--host", "sandbox", "--json")
    assert "gateway verified" in result.out
    output = gate.project.run("history", "--host", "sandbox").out
    assert ": changed" in output and "None" not in output


def test_its_address_is_told_where_it_is_needed(gate: GatewayProject) -> None:
    url = f"base URL {f'http://127.0.0.1:{gate.port}/v1'}"
    assert url in gate.project.run("gateway.deploy", "--host", "box").out
    assert url.removeprefix("base URL ") in gate.project.run("gateway.status", "--host", "box").out
    assert url.removeprefix("base URL ") in gate.project.run("client", "--host", "sandbox").out
    assert url not in gate.project.run("gateway.deploy", "--host", "box", "--check").out


def test_the_fleets_status_shows_it(gate: GatewayProject) -> None:
    gate.deploy()
    code, entry = gate.fleet_entry()
    assert (code, entry["name"], entry["port"], entry["state"]) == (0, "box", gate.port, "up")
    assert [(model["model"], model["queued"], model["servers"][0]["state"]) for model in entry["models"]] == [
        ("qwen3.5-35b", 0, "up")
    ]
    output = gate.project.run("status", "--host", "sandbox").out
    assert f"box (sandbox:{gate.port})" in output and "sandbox up (0)" in output


def test_files_that_somebody_changed_are_drift(gate: GatewayProject) -> None:
    gate.deploy()
    config = gate.project.sandbox / "home" / FILES / "files/haproxy.cfg"
    config.write_text(config.read_text().replace("retries 3", "retries 4"))
    code, entry = gate.fleet_entry()
    assert (code, entry["state"], entry["why"]) == (2, "degraded", "files were changed: haproxy.cfg")
    single = gate.project.run("gateway.status", "--host", "box")
    assert single.code == 2 and "running, files were changed: haproxy.cfg" in single.out
    result = gate.project.run("health", "--host", "sandbox")
    assert result.code == 2
    assert "files of the gateway differ from the verified ones: haproxy.cfg" in result.out
    assert gate.deploy().code == 0
    assert gate.fleet_entry()[0] == 0
    assert gate.project.run("health", "--host", "sandbox").code == 0


def test_a_stopped_gateway_is_down_in_status_and_started_by_deploy(gate: GatewayProject) -> None:
    gate.deploy()
    gate.project.docker().api.stop("gateway")
    assert gate.status()["running"] is False
    code, entry = gate.fleet_entry()
    assert (code, entry["state"], entry["models"]) == (1, "down", [])
    assert "the gateway is down" in gate.project.run("health", "--host", "sandbox").out
    assert gate.deploy().code == 0
    assert gate.status()["running"] is True


def test_a_rollback_goes_to_the_gateway_before_and_no_stream_is_cut(gate: GatewayProject) -> None:
    """Its files, its script and its history are those of then; the inventory of now is not read."""
    gate.write(limits={"queue_s": 11})
    assert gate.deploy().code == 0
    gate.write(limits={"queue_s": 12})
    assert gate.deploy().code == 0
    checked = gate.rollback("--check", "--diff")
    assert checked.code == 2
    assert [item["field"] for item in checked.task("Start the gateway, or reload its configuration")["diff"]] == [
        "file haproxy.cfg"
    ]
    stream = gate.request(stream=True, max_tokens=150, ignore_eos=True)
    first = stream.read1(10)
    result = gate.rollback()
    assert result.code == 0, result.out + result.err
    assert (first + stream.read()).endswith(b"data: [DONE]\n\n")
    config = (gate.project.sandbox / "home" / FILES / "files/haproxy.cfg").read_text()
    assert "timeout queue 11s" in config
    assert gate.status()["verified"] is True
    assert gate.request().status == 200
    assert "gateway rolled back" in gate.project.run("history", "--host", "sandbox", "--json").out


def test_a_rollback_brings_back_the_container_and_its_script(gate: GatewayProject) -> None:
    gate.deploy()
    was = gate.port
    gate.port = free_port()
    gate.write()
    assert gate.deploy().code == 0
    gate.port = was
    result = gate.rollback()
    assert result.code == 0, result.out + result.err
    assert gate.request().status == 200
    assert [container for container in gate.project.containers() if container.startswith("gateway")] == [
        "gateway running"
    ]
    script = (gate.project.sandbox / "home/.local/share/sparkwright/run/gateway.sh").read_text()
    assert f"{was}:{was}" in script
    gate.write()
    assert gate.deploy().recap["changed"] == 0


@pytest.mark.parametrize("key", [None, "short"])
def test_without_a_good_clients_key_no_host_is_asked(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv("GATEWAY_KEY")
    else:
        monkeypatch.setenv("GATEWAY_KEY", key)
    for command in ("gateway.deploy", "gateway.rollback"):
        result = gate.project.run(command, "--host", "box")
        assert (result.code, result.out) == (5, ""), "no host was asked"
        assert "box.gateway.key`:" in result.err and "groups.yml:" in result.err, result.err


def test_a_rollback_without_the_key_of_then_touches_nothing(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.deploy()
    gate.write(limits={"queue_s": 13})
    assert gate.deploy().code == 0
    before = gate.container()["State"]["StartedAt"]
    monkeypatch.setenv("GATEWAY_KEY", "another-key-another-key")
    result = gate.rollback()
    assert result.code == 5
    assert "requires a different API key from the current `key`" in result.recap["msg"]
    assert gate.container()["State"]["StartedAt"] == before


def test_a_deploy_that_changes_what_serves_where_is_followed_by_the_gateways(gate: GatewayProject) -> None:
    """A server under another port is routed there: its clients never hear of it."""
    gate.deploy()
    host, groups = gate.project.root / "hosts/sandbox.yml", gate.project.root / "hosts/groups.yml"
    was = host.read_text()
    port = free_port()
    host.write_text(was.replace(str(gate.project.port), str(port)))
    try:
        result = gate.project.run("deploy", "--host", "sandbox")
        assert result.code == 0, result.out + result.err
        assert "A server behind the gateway box was changed: gateway.deploy follows." in result.out
        assert f"127.0.0.1:{port}" in (gate.project.sandbox / "home" / FILES / "files/haproxy.cfg").read_text()
        assert gate.request().status == 200
        assert "gateway.deploy" not in gate.project.run("deploy", "--host", "sandbox").out
        groups.write_text(groups.read_text().replace("GATEWAY_KEY", "NO_KEY"))
        host.write_text(was)
        result = gate.project.run("deploy", "--host", "sandbox")
        assert result.code == 1, "5 would say that nothing was touched, and the server was replaced"
        assert "NO_KEY provides no key" in result.err
        assert (
            "The server is deployed, but the gateway box is not: " in result.err
            and "gateway.deploy --host box" in result.err
        )
    finally:
        host.write_text(was)
        gate.write()
        gate.project.run("deploy", "--host", "sandbox")
        gate.deploy()


def test_a_group_without_a_gateway_is_refused(gate: GatewayProject) -> None:
    result = gate.project.run("gateway.deploy", "--host", "lab")
    assert (result.code, result.err.strip()) == (5, "no gateway is called 'lab'. Available: box.")


def test_a_clean_host_keeps_a_gateway_that_runs_and_what_it_reads(gate: GatewayProject) -> None:
    gate.deploy()
    result = gate.project.run("host.clean", "--host", "sandbox", "--yes")
    assert result.code == 0, result.out + result.err
    assert "gateway running" in gate.project.containers()
    assert gate.request().status == 200
    assert (gate.project.sandbox / "home" / FILES / "files/haproxy.cfg").is_file()
    assert gate.status()["running"] is True


def test_containers_of_a_person_that_have_the_gateways_names_are_left_alone(gate: GatewayProject) -> None:
    """Issue 30: whatever was called gateway-previous or gateway-check was removed."""
    api = gate.project.docker().api
    image = next(row["RepoTags"][0] for row in api.images())
    theirs = [api.create_container(image, name=name)["Id"] for name in ("gateway-previous", "gateway-check")]
    before = gate.container()["Id"]
    try:
        refused = gate.deploy()
        assert refused.code == 5, refused.out[-2000:]
        assert "container gateway-previous (" in refused.recap["msg"]
        assert "`docker rename gateway-previous gateway-previous-kept`" in refused.recap["msg"]
        assert gate.container()["Id"] == before
        api.rename(theirs[0], "theirs")
        assert gate.deploy().code == 0
        assert {api.inspect_container(item)["Name"] for item in theirs} == {"/theirs", "/gateway-check"}
    finally:
        for item in theirs:
            api.remove_container(item, force=True)


def test_a_deploy_proves_each_api_that_the_recipe_promises(gate: GatewayProject) -> None:
    recipe = gate.project.root / "recipes/qwen3.5-35b.yml"
    before = recipe.read_text()
    recipe.write_text(before.replace("json_schema, image,", "json_schema, image, messages, responses,"))
    try:
        assert (result := gate.deploy()).code == 0, result.out
        log = gate.project.docker().containers.get("qwen35").logs().decode()
    finally:
        recipe.write_text(before)
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses"):
        assert f'"POST {path} HTTP/1.1" 200' in log, path


def test_clients_get_keys_of_their_own_without_a_cut_and_are_counted(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "alice-key-alice-key"
    monkeypatch.setenv("ALICE_KEY", secret)
    gate.deploy()
    stream = gate.request(stream=True, max_tokens=150, ignore_eos=True)
    first = stream.read1(10)
    alice = {"key": {"env": "ALICE_KEY"}, "requests_per_minute": 2, "tokens_per_day": 9000, "models": ["qwen3.5-35b"]}
    gate.write(clients={"alice": alice})
    result = gate.deploy()
    assert result.code == 0, result.out
    assert (
        result.task("Start the gateway, or reload its configuration")["msg"] == "reloaded without interrupting streams"
    )
    assert (first + stream.read()).endswith(b"data: [DONE]\n\n")
    answers = [gate.request(key=secret) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert gate.request().status == 200
    usages = [json.loads(answer.read())["usage"] for answer in answers[:2]]
    expected = {"client": "alice", "requests": 2, "running": 0, "refused": 1, "errors": 0, "estimated": 0}
    expected |= {"prompt_tokens": sum(usage["prompt_tokens"] for usage in usages), "tokens_per_day": 9000}
    expected |= {"generated_tokens": sum(usage["completion_tokens"] for usage in usages)}
    until_s = time.monotonic() + 30  # the counts are written every 5 s
    while not expected.items() <= (row := gate.status()["clients"][0]).items():
        assert time.monotonic() < until_s, row
    output = gate.project.run("gateway.status", "--host", "box", "--clients").out
    assert "CLIENT" in output and "alice" in output and "0% of 9000" in output
    state_files = [
        path for path in (gate.project.sandbox / "home/.local/state/sparkwright").rglob("*") if path.is_file()
    ]
    assert not [path for path in state_files if secret in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        ({"alice": {"key": {"env": "GATEWAY_KEY"}}}, "`box.gateway.clients.alice.key` is the same key as that of `key`"),
        ({"alice": {"key": {"env": "SHORT_KEY"}}}, "a key must be 16 to 512 letters"),
        ({"alice": {"key": {"env": "NO_KEY_HERE"}}}, "provides no key"),
        ({"alice": {"key": {"env": "ALICE_KEY"}}, "bob": {"key": {"env": "ALICE_KEY"}}}, "the same key as that of alice"),
        ({"alice": {"key": {"env": "ALICE_KEY"}, "models": ["qwen3.5-35"]}}, "no server serves `qwen3.5-35`"),
        ({"Alice": {"key": {"env": "ALICE_KEY"}}}, "small letters, digits"),
    ],
)  # fmt: skip
def test_a_client_that_cannot_be_told_apart_is_refused_by_its_line(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch, clients: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("ALICE_KEY", "alice-key-alice-key")
    monkeypatch.setenv("SHORT_KEY", "short")
    gate.write(clients=clients)
    result = gate.deploy()
    assert result.code == 5 and why in result.out + result.err, result.out + result.err
    assert "groups.yml:" in result.out + result.err and "alice-key" not in result.out + result.err


def test_a_clients_settings_have_the_key_and_the_models_of_that_client(gate: GatewayProject) -> None:
    alice = {"key": {"env": "ALICE_KEY"}, "models": ["fast"]}
    bob, carol = {"key": {"file": "~/bob.key"}}, {"key": {"env": "CAROL_KEY"}, "models": ["other"]}
    gate.write(clients={"alice": alice, "bob": bob, "carol": carol}, models={"fast": "qwen3.5-35b", "other": "nobody"})

    def run_client(*words: str) -> str:
        result = gate.project.run("client", "--host", "sandbox", *words)
        return f"{result.code} {result.out}{result.err}"

    own, named = run_client("--for", "codex"), run_client("--for", "codex", "--client", "alice")
    assert own.startswith("0 ") and 'env_key = "GATEWAY_KEY"' in own and 'model = "qwen3.5-35b"' in own
    assert named.startswith("0 ") and 'env_key = "ALICE_KEY"' in named and 'model = "fast"' in named
    assert "# set GATEWAY_KEY to the key of bob, from the file ~/bob.key" in run_client(
        "--for", "curl", "--client", "bob"
    )
    assert "model      fast\nkey        $ALICE_KEY: the key of alice" in run_client("--client", "alice")
    assert run_client("--client", "carol").startswith("5 ") and "$CAROL_KEY" not in run_client("--client", "carol")
    assert run_client("--for", "codex", "--client", "carol").startswith("5 ")
    assert "carol may use other, but sandbox serves qwen3.5-35b" in run_client("--for", "codex", "--client", "carol")
    unknown = run_client("--for", "codex", "--client", "alicia")
    assert unknown.startswith("5 ") and "no gateway in front of sandbox has a client called 'alicia'" in unknown
    assert run_client("--json", "--client", "alice").startswith("5 ")
