"""`gateway.deploy`, `gateway.status` and `gateway.rollback` on the sandbox, with this machine's HAProxy."""

import contextlib
import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import published
from tests.certificate import write_self_signed
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.e2e.two_hosts import undeployed_two_host_project
from tests.remote.sshd import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
KEY = "gateway-key-gateway-key"
START_TASK = "Start the gateway, or reload its configuration"


class GatewayProject:
    """A project with a server behind a gateway."""

    def __init__(self, project: SandboxProject) -> None:
        self.project, self.port = project, free_port()
        self.write()

    @property
    def folder(self) -> Path:
        return self.project.state.path / "gateway"

    @property
    def config(self) -> Path:
        return self.folder / "files/haproxy.cfg"

    @property
    def script(self) -> Path:
        return self.project.sandbox / "home/.local/share/sparkwright/run/gateway.sh"

    def write(self, **changes: Any) -> None:
        """Write `gateway:` of the group box."""
        settings = {"host": "sandbox", "port": self.port, "tls": "none", "key": {"env": "GATEWAY_KEY"}, **changes}
        groups = {"lab": {}, "box": {"hosts": ["sandbox"], "gateway": settings}}
        (self.project.root / "hosts/groups.yml").write_text(json.dumps(groups))

    def deploy(self, *words: str) -> CommandResult:
        return self.project.run("gateway.deploy", "--host", "box", "--json", *words)

    def deployed(self) -> None:
        result = self.deploy()
        assert result.code == 0, result.out + result.err

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
        """Return the exit code of `status`, and its entry for the gateway."""
        result = self.project.run("status", "--host", "sandbox", "--json")
        gateway: dict[str, Any] = json.loads(result.out)["gateway"]
        return result.code, gateway

    def request(self, key: str = KEY, **body: Any) -> http.client.HTTPResponse:
        """Send a chat request through the gateway, and return the answer when it begins."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        messages = [{"role": "user", "content": "hello"}]
        content = json.dumps({"model": "qwen3.5-35b", "messages": messages, "max_tokens": 4, **body})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a refused body may be unread
            link.request("POST", "/v1/chat/completions", content, {"Authorization": f"Bearer {key}"})
        return link.getresponse()

    @contextmanager
    def unbroken_stream(self) -> Iterator[None]:
        """Check that a stream that begins before the block ends after it."""
        stream = self.request(stream=True, max_tokens=150, ignore_eos=True)
        first = stream.read1(10)
        yield
        assert (first + stream.read()).endswith(b"data: [DONE]\n\n")

    def container(self) -> dict[str, Any]:
        return self.project.container("gateway")

    def started(self) -> tuple[str, str]:
        """Return the container's Id and the time of its start."""
        container = self.container()
        return container["Id"], container["State"]["StartedAt"]

    def assert_only_container(self) -> None:
        names = [name for name in self.project.containers() if name.startswith("gateway")]
        assert names == ["gateway running"]


@pytest.fixture(scope="module")
def deployed_gateway() -> Iterator[GatewayProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("GATEWAY_KEY", KEY)
        project.deployed()
        gateway = GatewayProject(project)
        gateway.deployed()
        yield gateway


@pytest.fixture
def gate(deployed_gateway: GatewayProject) -> GatewayProject:
    """The gateway with its first settings."""
    deployed_gateway.write()
    deployed_gateway.deploy()
    return deployed_gateway


def test_a_gateway_is_verified_before_it_gets_its_restart_policy(gate: GatewayProject) -> None:
    answer = gate.request()
    assert (answer.status, json.loads(answer.read())["choices"][0]["finish_reason"]) == (200, "length")
    assert gate.request(key="another-key-another-key").status == 401
    container = gate.container()
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert container["Config"]["Image"].startswith("haproxy:2.6@sha256:")


def test_a_second_deploy_changes_nothing(gate: GatewayProject) -> None:
    before = gate.started()
    result = gate.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0)
    assert gate.started() == before


def test_no_key_is_in_the_configuration_and_all_files_are_private(gate: GatewayProject) -> None:
    files = [path for path in gate.folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"haproxy.cfg", "keys", "models.map"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not [path for path in files if KEY in path.read_text()]
    runs = (gate.project.state.path / "runs").rglob("*")
    assert not [path for path in runs if path.is_file() and KEY in path.read_text(errors="replace")]


def test_changed_limits_are_reloaded_without_cutting_a_stream(gate: GatewayProject) -> None:
    before = gate.started()
    with gate.unbroken_stream():
        gate.write(limits={"queue_s": 7})
        result = gate.deploy()
        assert result.code == 0, result.out
        assert result.task(START_TASK)["msg"] == "reloaded without interrupting streams"
    assert gate.started() == before


def test_another_port_needs_another_container_and_the_old_one_is_removed(gate: GatewayProject) -> None:
    before, gate.port = gate.container()["Id"], free_port()
    gate.write()
    gate.deployed()
    assert gate.request().status == 200
    assert gate.container()["Id"] != before
    gate.assert_only_container()


def test_check_mode_shows_changed_files_and_changes_nothing(gate: GatewayProject) -> None:
    gate.write(limits={"queue_s": 9})
    result = gate.deploy("--check", "--diff")
    assert result.code == 2
    assert [item["field"] for item in result.task(START_TASK)["diff"]] == ["file haproxy.cfg"]
    gate.write()
    assert gate.deploy("--check").code == 0


def test_a_check_without_a_container_does_not_announce_that_the_servers_script_is_removed(gate: GatewayProject) -> None:
    gate.project.docker().api.remove_container("gateway", force=True)
    result = gate.deploy("--check", "--diff")
    assert result.code == 2
    assert result.task("Write an equivalent docker run script")["diff"] == []
    gate.deployed()


def test_a_configuration_that_haproxy_refuses_changes_nothing(gate: GatewayProject) -> None:
    before = gate.started()
    playbook = gate.project.root / "playbooks/gateway/deploy.yml"
    invalid = 'files: {haproxy.cfg: "global\\n  nonsense 1\\n"}'
    with gate.project.restored_files():
        playbook.write_text(playbook.read_text().replace('files: "{{ gateway.files }}"', invalid))
        result = gate.deploy()
    assert result.code == 1
    assert "unknown keyword 'nonsense'" in result.recap["msg"], result.recap
    assert gate.started() == before
    assert gate.request().status == 200


def test_a_gateway_that_fails_verification_is_replaced_by_the_last_verified_one(gate: GatewayProject) -> None:
    """The configuration is valid, but routes to a port without a server."""
    with gate.project.restored_files():
        gate.project.edit("hosts/sandbox.yml", str(gate.project.port), str(free_port()))
        result = gate.deploy()
    assert result.code == 1
    assert "no server of qwen3.5-35b is up. The last verified gateway is restored." in result.recap["msg"]
    assert gate.request().status == 200
    assert gate.status()["restarted_s"] is None, "a restore is not a restart by Docker"
    assert gate.deploy().recap["changed"] == 0


def test_a_gateway_whose_servers_are_all_down_is_left_unchanged_by_a_deploy(gate: GatewayProject) -> None:
    before, served = gate.started(), len(gate.project.history())
    gate.project.docker().api.stop("qwen35")
    try:
        result = gate.deploy()
    finally:
        gate.project.docker().api.start("qwen35")
    assert (result.code, result.recap["changed"]) == (1, 0)
    assert "no server of qwen3.5-35b is up. The gateway was not changed." in result.recap["msg"]
    assert (gate.started(), len(gate.project.history())) == (before, served)
    wait_until(lambda: gate.fleet_entry()[0] == 0, timeout_s=60)


def test_a_gateway_without_any_server_names_all_hosts_to_deploy() -> None:
    with undeployed_two_host_project() as two:
        result = two.run("gateway.deploy", "--host", "box", "--json")
    assert result.code == 1
    fixes = {event.get("fix") for event in result.events()}
    assert "Run `sparkwright deploy --host side1,side2` first." in fixes, result.out + result.err


def test_status_counts_requests_and_names_servers(gate: GatewayProject) -> None:
    before = gate.status()["models"][0]["requests"]
    assert gate.request().status == 200
    wait_until(lambda: gate.status()["models"][0]["requests"] > before, "the request")
    model = gate.status()["models"][0]
    assert (model["model"], model["queued"], model["servers"][0]["host"]) == ("qwen3.5-35b", 0, "sandbox")
    result = gate.project.run("gateway.status", "--host", "box")
    assert result.code == 0 and "qwen3.5-35b" in result.out and "sandbox up" in result.out


def test_the_script_starts_the_same_container(gate: GatewayProject) -> None:
    script, config = gate.script.read_text(), gate.container()["Config"]
    assert config["Image"] in script
    assert script.rstrip().endswith(" ".join(config["Cmd"]))


def test_the_history_records_verifications(gate: GatewayProject) -> None:
    assert "gateway verified" in [row["what"] for row in gate.project.history()]
    output = gate.project.run("history", "--host", "sandbox").out
    assert ": changed" in output and "None" not in output


def test_commands_print_the_gateways_address(gate: GatewayProject) -> None:
    url = f"http://127.0.0.1:{gate.port}/v1"
    assert f"base URL {url}" in gate.project.run("gateway.deploy", "--host", "box").out
    assert url in gate.project.run("gateway.status", "--host", "box").out
    assert url in gate.project.run("client", "--host", "sandbox").out
    assert f"base URL {url}" not in gate.project.run("gateway.deploy", "--host", "box", "--check").out
    assert f"base URL {url}" not in gate.project.run("gateway.deploy", "--host", "box", "--list-tasks").out


def test_status_shows_the_gateway(gate: GatewayProject) -> None:
    code, entry = gate.fleet_entry()
    assert (code, entry["name"], entry["port"], entry["state"]) == (0, "box", gate.port, "up")
    models = [(model["model"], model["queued"], model["servers"][0]["state"]) for model in entry["models"]]
    assert models == [("qwen3.5-35b", 0, "up")]
    output = gate.project.run("status", "--host", "sandbox").out
    assert f"box (sandbox:{gate.port})" in output and "sandbox up (0)" in output


def test_changed_files_are_drift(gate: GatewayProject) -> None:
    gate.config.write_text(gate.config.read_text().replace("retries 3", "retries 4"))
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


def test_an_expired_certificate_of_a_running_gateway_is_reported(gate: GatewayProject, tmp_path: Path) -> None:
    certificate, key = write_self_signed(tmp_path, address="192.0.2.1")
    tls = {"certificate": str(certificate), "key": {"file": str(key)}}
    gate.write(tls=tls)
    deployed = gate.project.run("gateway.deploy", "--host", "box")
    mismatch = "The certificate is for localhost, 192.0.2.1, not for 127.0.0.1"
    assert deployed.code == 0 and mismatch in " ".join(deployed.out.split()), deployed.out + deployed.err
    assert gate.fleet_entry()[0] == 0
    old_certificate, _ = write_self_signed(tmp_path, begin_days=-3, end_days=-2)
    for path in gate.folder.rglob("tls.pem"):  # the same files two days later
        path.write_text(old_certificate.read_text())
    code, entry = gate.fleet_entry()
    assert (code, entry["state"], entry["why"][:26]) == (1, "degraded", "its certificate expired on")
    single = gate.project.run("gateway.status", "--host", "box")
    assert single.code == 1 and "running, its certificate expired on" in single.out
    health = gate.project.run("health", "--host", "sandbox")
    assert health.code == 2 and "degraded: the gateway's certificate expired on" in health.out
    for advice in (
        "first replace the file in `tls.certificate`",
        "`sparkwright gateway.deploy --host sandbox` restores it.",
    ):
        assert advice in " ".join(health.out.split()), health.out
    lint = gate.project.run("lint")
    assert lint.code == 5 and "hosts/groups.yml:1: `tls.certificate`:" in lint.err and "Renew it." in lint.err


def test_a_stopped_gateway_is_down_in_status_and_started_by_deploy(gate: GatewayProject) -> None:
    gate.project.docker().api.stop("gateway")
    assert gate.status()["running"] is False
    code, entry = gate.fleet_entry()
    assert (code, entry["state"], entry["models"]) == (1, "down", [])
    health = gate.project.run("health", "--host", "sandbox")
    assert (health.code, "degraded: the gateway is down" in health.out) == (2, True)
    assert "gateway.deploy --host sandbox` restores it" in health.out
    assert gate.deploy().code == 0
    assert gate.status()["running"] is True


def test_a_rollback_restores_the_previous_configuration_without_cutting_a_stream(gate: GatewayProject) -> None:
    for queue_s in (11, 12):
        gate.write(limits={"queue_s": queue_s})
        gate.deployed()
    checked = gate.rollback("--check", "--diff")
    assert checked.code == 2
    assert [item["field"] for item in checked.task(START_TASK)["diff"]] == ["file haproxy.cfg"]
    with gate.unbroken_stream():
        result = gate.rollback()
        assert result.code == 0, result.out + result.err
    assert "timeout queue 11s" in gate.config.read_text()
    assert gate.status()["verified"] is True
    assert gate.request().status == 200
    assert gate.project.history()[0]["what"] == "gateway rolled back"


def test_a_rollback_restores_the_previous_container_and_its_script(gate: GatewayProject) -> None:
    port, gate.port = gate.port, free_port()
    gate.write()
    gate.deployed()
    gate.port = port
    result = gate.rollback()
    assert result.code == 0, result.out + result.err
    assert gate.request().status == 200
    gate.assert_only_container()
    assert f"{port}:{port}" in gate.script.read_text()
    gate.write()
    assert gate.deploy().recap["changed"] == 0


@pytest.mark.parametrize("key", [None, "short"])
def test_a_missing_or_short_key_is_refused_before_the_host_is_contacted(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv("GATEWAY_KEY")
    else:
        monkeypatch.setenv("GATEWAY_KEY", key)
    for command in ("gateway.deploy", "gateway.rollback"):
        result = gate.project.run(command, "--host", "box")
        assert (result.code, result.out) == (5, "")
        assert "box.gateway.key`:" in result.err and "groups.yml:" in result.err, result.err


def test_a_rollback_without_the_previous_key_changes_nothing(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.write(limits={"queue_s": 13})
    gate.deployed()
    before = gate.started()
    monkeypatch.setenv("GATEWAY_KEY", "another-key-another-key")
    result = gate.rollback()
    assert result.code == 5
    assert "requires a different API key from the current `key`" in result.recap["msg"]
    assert gate.started() == before


def test_a_deploy_that_moves_a_server_also_deploys_the_gateway(gate: GatewayProject) -> None:
    port, other_port = str(gate.project.port), str(free_port())
    try:
        with gate.project.restored_files():
            gate.project.edit("hosts/sandbox.yml", port, other_port)
            result = gate.project.run("deploy", "--host", "sandbox")
            assert result.code == 0, result.out + result.err
            assert "A server behind the gateway box was changed: gateway.deploy follows." in result.out
            assert f"127.0.0.1:{other_port}" in gate.config.read_text()
            assert gate.request().status == 200
            assert "gateway.deploy" not in gate.project.run("deploy", "--host", "sandbox").out
            gate.project.edit("hosts/groups.yml", "GATEWAY_KEY", "NO_KEY")
            gate.project.edit("hosts/sandbox.yml", other_port, port)
            result = gate.project.run("deploy", "--host", "sandbox")
            assert result.code == 1, "5 would mean that the server was not replaced"
            assert "NO_KEY provides no key" in result.err
            assert "The server is deployed, but the gateway box is not: " in result.err
            assert "gateway.deploy --host box" in result.err
    finally:
        gate.project.run("deploy", "--host", "sandbox")


def test_after_a_deploy_the_gateway_counts_as_deployed_although_another_model_has_no_server(
    gate: GatewayProject,
) -> None:
    other_host = gate.project.root / "hosts/other1.yml"
    try:
        with gate.project.restored_files():
            other_host.write_text(f"connection: sandbox\nuser: spark\nrecipe: qwen3-1.7b\nserve_port: {free_port()}\n")
            gate.project.edit("hosts/groups.yml", r'"hosts": \["sandbox"\]', '"hosts": ["sandbox", "other1"]')
            gate.project.edit("hosts/sandbox.yml", str(gate.project.port), str(free_port()))
            result = gate.project.run("deploy", "--host", "sandbox")
            assert result.code == 4 and "no server of qwen3-1.7b is up" in result.out, result.out + result.err
            assert "Clients of box: base URL" in result.out and not result.err
    finally:
        other_host.unlink()
        gate.project.run("deploy", "--host", "sandbox")


def test_a_group_without_a_gateway_is_refused(gate: GatewayProject) -> None:
    result = gate.project.run("gateway.deploy", "--host", "lab")
    assert (result.code, result.err.strip()) == (5, "no gateway is called 'lab'. Available: box.")


def test_host_clean_keeps_a_running_gateway_and_its_files(gate: GatewayProject) -> None:
    result = gate.project.run("host.clean", "--host", "sandbox", "--yes")
    assert result.code == 0, result.out + result.err
    assert "gateway running" in gate.project.containers()
    assert gate.request().status == 200
    assert gate.config.is_file()
    assert gate.status()["running"] is True


def test_manual_containers_with_the_gateways_names_are_not_changed(gate: GatewayProject) -> None:
    """Issue 30: every container named gateway-previous or gateway-check was removed."""
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


def test_a_deploy_verifies_each_api_of_the_recipe(gate: GatewayProject) -> None:
    apis = "json_schema, image, messages, responses,"
    with gate.project.restored_files():
        gate.project.edit("recipes/qwen3.5-35b.yml", "json_schema, image,", apis)
        gate.deployed()
        log = gate.project.docker().containers.get("qwen35").logs().decode()
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses"):
        assert f'"POST {path} HTTP/1.1" 200' in log, path


def test_a_client_with_a_key_is_added_without_cutting_a_stream_and_counted(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "alice-key-alice-key"
    monkeypatch.setenv("ALICE_KEY", secret)
    alice = {"key": {"env": "ALICE_KEY"}, "requests_per_minute": 2, "tokens_per_day": 9000, "models": ["qwen3.5-35b"]}
    with gate.unbroken_stream():
        gate.write(clients={"alice": alice})
        gate.deployed()
    answers = [gate.request(key=secret) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert gate.request().status == 200
    usages = [json.loads(answer.read())["usage"] for answer in answers[:2]]
    expected = {"client": "alice", "requests": 2, "running": 0, "refused": 1, "errors": 0, "estimated": 0}
    expected |= {"prompt_tokens": sum(usage["prompt_tokens"] for usage in usages), "tokens_per_day": 9000}
    expected |= {"generated_tokens": sum(usage["completion_tokens"] for usage in usages)}
    wait_until(lambda: expected.items() <= gate.status()["clients"][0].items(), "the counts")
    output = gate.project.run("gateway.status", "--host", "box", "--clients").out
    assert "CLIENT" in output and "alice" in output and "0% of 9000" in output
    state_files = [path for path in gate.project.state.path.rglob("*") if path.is_file()]
    assert not [path for path in state_files if secret in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"alice": {"key": {"env": "GATEWAY_KEY"}}}, "`box.gateway.clients.alice.key` is the same key as that of `key`"),
        ({"alice": {"key": {"env": "SHORT_KEY"}}}, "a key must be 16 to 512 letters"),
        ({"alice": {"key": {"env": "NO_KEY_HERE"}}}, "provides no key"),
        ({"alice": {"key": {"env": "ALICE_KEY"}}, "bob": {"key": {"env": "ALICE_KEY"}}}, "the same key as that of alice"),
        ({"alice": {"key": {"env": "ALICE_KEY"}, "models": ["qwen3.5-35"]}}, "no server serves `qwen3.5-35`"),
        ({"Alice": {"key": {"env": "ALICE_KEY"}}}, "lowercase letters, digits"),
    ],
)  # fmt: skip
def test_an_invalid_client_is_refused_with_its_line(
    gate: GatewayProject, monkeypatch: pytest.MonkeyPatch, clients: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("ALICE_KEY", "alice-key-alice-key")
    monkeypatch.setenv("SHORT_KEY", "short")
    gate.write(clients=clients)
    result = gate.deploy()
    assert result.code == 5 and message in result.out + result.err, result.out + result.err
    assert "groups.yml:" in result.out + result.err and "alice-key" not in result.out + result.err


def test_client_settings_contain_the_key_and_models_of_the_client(gate: GatewayProject) -> None:
    alice = {"key": {"env": "ALICE_KEY"}, "models": ["fast"]}
    bob, carol = {"key": {"file": "~/bob.key"}}, {"key": {"env": "CAROL_KEY"}, "models": ["other"]}
    gate.write(clients={"alice": alice, "bob": bob, "carol": carol}, models={"fast": "qwen3.5-35b", "other": "nobody"})

    def run_client(*words: str) -> str:
        result = gate.project.run("client", "--host", "sandbox", *words)
        return f"{result.code} {result.out}{result.err}"

    default, named = run_client("--for", "codex"), run_client("--for", "codex", "--client", "alice")
    assert default.startswith("0 ") and 'env_key = "GATEWAY_KEY"' in default and 'model = "qwen3.5-35b"' in default
    assert named.startswith("0 ") and 'env_key = "ALICE_KEY"' in named and 'model = "fast"' in named
    curl_settings = run_client("--for", "curl", "--client", "bob")
    assert "# set GATEWAY_KEY to the key of bob, from the file ~/bob.key" in curl_settings
    assert "model      fast\nkey        $ALICE_KEY: the key of alice" in run_client("--client", "alice")
    assert run_client("--client", "carol").startswith("5 ") and "$CAROL_KEY" not in run_client("--client", "carol")
    assert run_client("--for", "codex", "--client", "carol").startswith("5 ")
    assert "carol may use other, but sandbox serves qwen3.5-35b" in run_client("--for", "codex", "--client", "carol")
    unknown = run_client("--for", "codex", "--client", "alicia")
    assert unknown.startswith("5 ") and "no gateway in front of sandbox has a client called 'alicia'" in unknown
    machine_readable = run_client("--json", "--client", "alice")
    assert machine_readable.startswith("0 ") and '"api_key_variable": "ALICE_KEY"' in machine_readable
