"""A gateway's container on a real Docker Engine: hostile images cannot read the host, and earlier releases are replaced."""

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.gateway import clients, listeners, operations, render
from sparkwright.gateway.model import Gateway, Model, Upstream
from sparkwright.host.gateway import container, gateway_folders, haproxy_sockets, server_operations
from sparkwright.modules.gateway.gateway_container import GatewayRestore, GatewayRunning
from sparkwright.modules.gateway.gateway_files import GatewayCheck, GatewayKeep, GatewayLastGood
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Result
from tests import docker_image
from tests.gateway.loopback import PATHS
from tests.gateway.servers import needs_haproxy
from tests.host.containers.test_log_reader import engine
from tests.modules.context import RecordingContext
from tests.remote.sshd import free_port
from tests.waiting import wait_until

__all__ = ["engine"]

pytestmark = needs_haproxy
PROGRAMS = (
    "/usr/sbin/haproxy", "/bin/sh", "/bin/ln", "/bin/rm", "/bin/mkdir", "/usr/bin/mkfifo", "/bin/sleep", "/bin/cp",
    "/bin/mv",
)  # fmt: skip
SECRET = "the private key of this user"
#: a hostile image attacks each folder that it may write to, and then keeps running
ATTACK = """
for at in /etc/gateway /etc/gateway/files /etc/gateway/sockets; do
  ln -sf HOME/secret $at/keys; ln -sf HOME/secret $at/haproxy.cfg; ln -sf HOME/secret $at/operators.map
  ln -s HOME/secret $at/more.map; mkfifo $at/models.map; cp /bin/sh $at/operate.lua
  ln -sf HOME/engine.sock $at/admin.sock; ln -sf HOME/engine.sock $at/master.sock; ln -sf HOME/engine.sock $at/proof.sock
done
rm -rf /etc/gateway/sockets/x; mkdir -p /etc/gateway/sockets/x/y; ln -s HOME /etc/gateway/sockets/x/home
mv /etc/gateway/files /etc/gateway/other; ln -s HOME /etc/gateway/files
exec sleep 600
"""


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> Iterator[str]:
    """Yield an image with this machine's HAProxy, and a shell with a few programs."""
    with docker_image.temporary_image(engine, PROGRAMS, changes=["ENV PATH=/usr/sbin:/usr/bin:/bin"]) as name:
        yield name


class GatewayHost:
    """A host with a gateway that has a unique name."""

    def __init__(self, home: Path, image: str) -> None:
        self.context = RecordingContext(home)
        (home / "secret").write_text(SECRET)
        port, self.name = free_port(), f"sparkwright-test-{uuid.uuid4().hex[:12]}"
        model = Model("qwen", (Upstream("one", "127.0.0.1", 9, 4),), 4096, '{"model": "qwen"}')
        self.routing = Gateway(
            "lab", "127.0.0.1", port, port + 1, False, False, "none", 16, 2**20, 10, 60, 1, (model,), PATHS
        )
        memory = f"{render.container_limit_bytes(self.routing) // 2**20}m"
        self.spec = ContainerSpec(
            self.name, image, gpus="", ipc="", network="host", memory=memory, cap_drop=("ALL",),
            security_opt=("no-new-privileges",), working_dir=container.FILES_MOUNT_POINT, stop_signal="SIGUSR1",
            entrypoint=("haproxy",), command=render.HAPROXY_ARGUMENTS,
        ).to_json()  # fmt: skip

    @property
    def folder(self) -> Path:
        return gateway_folders.state_of(self.context).path

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the modules share."""
        key = server_operations.hash_key(server_operations.ensure_key(self.context.state))
        return {"spec": self.spec, "files": {**render.render_files(self.routing)}, "operators": {"one": key}}

    def running(self) -> Result:
        """Run the module that starts, reloads or replaces the gateway."""
        return GatewayRunning().run(GatewayRunning.Args(**self.arguments(), name="lab"), self.context)

    def keep(self, digest: Any) -> Result:
        """Record the gateway as verified."""
        proof = {"name": "lab", "port": self.routing.port, "keyed": False, "tls": False, "models": {}}
        return GatewayKeep().run(GatewayKeep.Args(self.spec, str(digest), ["qwen"], proof), self.context)

    def inspect(self) -> dict[str, Any]:
        return dict(haproxy_sockets.inspect(self.context.state))

    def start_earlier_release(self) -> dict[str, Any]:
        """Start a gateway as a release before 0.36 did, verified. Return its spec."""
        arguments = self.arguments()
        config = self.folder / gateway_folders.LEGACY_FOLDER
        files = {name: text.replace(listeners.SOCKETS_FOLDER + "/", "") for name, text in arguments["files"].items()}
        operators = {operations.HOST_KEYS_FILE: clients.format_keys(arguments["operators"])}
        digest = gateway_folders.digest_of(files | operators)
        files[render.CONFIG_FILE] = files[render.CONFIG_FILE].replace(render.DIGEST_PLACEHOLDER, digest)
        gateway_folders.folder(self.context, gateway_folders.LEGACY_FOLDER)
        for folder in (config, gateway_folders.folder(self.context, gateway_folders.VERIFIED_FOLDER) / digest):
            gateway_folders.write_files(folder, files | operators)
        command = tuple(word.replace(listeners.SOCKETS_FOLDER + "/", "") for word in render.HAPROXY_ARGUMENTS)
        rendered = replace(
            container.resolve_spec(self.spec, self.context),
            volumes=(f"{config}:{gateway_folders.LEGACY_WORKING_DIR}",),
            working_dir=gateway_folders.LEGACY_WORKING_DIR,
            command=command,
            memory="",
        )
        container.start(container.create(rendered, self.context), rendered, self.context)
        container.wait_for_running(self.name, digest, self.context)
        inspected = self.context.docker().api.inspect_container(self.name)
        state = {"spec": rendered.to_json(), "digest": digest, "container_id": inspected["Id"], "models": ["qwen"]}
        state |= {"proof": {"name": "lab"}, "since": time.time()}
        gateway_folders.state_of(self.context).write("verified", state)
        return rendered.to_json()

    def end(self) -> None:
        for name in (self.name, f"{self.name}-previous"):
            with contextlib.suppress(docker.errors.NotFound):
                self.context.docker().api.remove_container(name, force=True)


@pytest.fixture
def bench(engine: docker.DockerClient, image: str, tmp_path: Path) -> Iterator[GatewayHost]:
    host = GatewayHost(tmp_path, image)
    yield host
    host.end()


def test_a_gateway_has_read_only_files_and_keeps_drained_servers_over_a_reload(bench: GatewayHost) -> None:
    """A second run without changes changes nothing."""
    check = GatewayCheck.Args(port=bench.routing.port, **bench.arguments())
    assert GatewayCheck().run(check, bench.context).msg == "valid"
    digest = bench.running().data["digest"]
    bench.keep(digest)
    mounts = bench.context.docker().api.inspect_container(bench.name)["Mounts"]
    assert {(mount["Destination"], mount["RW"]) for mount in mounts} == {
        (container.FILES_MOUNT_POINT, False),
        (container.SOCKETS_MOUNT_POINT, True),
    }
    assert not bench.running().changed
    endpoint = server_operations.Gateway("lab", "127.0.0.1", bench.routing.control_port, tls=False, server="one")
    key = server_operations.load_key(bench.context.state)
    for server in server_operations.list_servers(endpoint, key):
        server_operations.send_action(endpoint, key, operations.MAINTENANCE, server)
    bench.routing = replace(bench.routing, queue_s=11)
    result = bench.running()
    assert result.data["reloaded"] and result.data["digest"] != digest
    assert [server.state for server in server_operations.list_servers(endpoint, key)] == ["maintenance"]
    bench.keep(result.data["digest"])
    assert bench.inspect()["verified"] is True


def test_a_restart_by_docker_is_distinguished_from_a_deploy(bench: GatewayHost) -> None:
    digest = str(bench.running().data["digest"])
    bench.keep(digest)
    assert bench.inspect()["restarted_s"] is None
    gateway = gateway_folders.state_in(bench.context.state)
    gateway.write("verified", {**(gateway.read("verified") or {}), "since": time.time() - 3600})
    api = bench.context.docker().api
    crashed = api.inspect_container(bench.name)["State"]["Pid"]
    os.kill(crashed, signal.SIGKILL)
    wait_until(lambda: api.inspect_container(bench.name)["State"]["Pid"] not in (0, crashed), "the restart")
    container.wait_for_running(bench.name, digest, bench.context)
    inspected = bench.inspect()
    assert inspected["verified"] and 0 <= inspected["restarted_s"] < 3600


def test_a_hostile_image_cannot_read_the_host_or_block_its_readers(bench: GatewayHost) -> None:
    home = bench.context.machine.home
    script = ATTACK.replace("HOME", str(home))
    bench.spec = {**bench.spec, "entrypoint": ["/bin/sh"], "command": ["-c", script]}
    (home / "engine.sock").symlink_to("/var/run/docker.sock")
    files = bench.arguments()["files"]
    gateway_folders.folder(bench.context, gateway_folders.SOCKETS_FOLDER)
    gateway_folders.write_files(gateway_folders.folder(bench.context, gateway_folders.FILES_FOLDER), files)
    resolved = container.resolve_spec(bench.spec, bench.context)
    container.start(container.create(resolved, bench.context), resolved, bench.context)
    wait_until((bench.folder / "sockets/x/home").is_symlink, "the attack")
    assert gateway_folders.read_files(bench.folder / gateway_folders.FILES_FOLDER) == files
    for name in (listeners.ADMIN_SOCKET, listeners.MASTER_SOCKET):
        assert (bench.folder / "sockets" / name).is_symlink()
        assert haproxy_sockets.send_command(bench.folder / "sockets", "show info", name) == ""
    assert not bench.inspect()
    with pytest.raises(SparkwrightError):
        bench.keep("0" * 16)
        bench.running()
    bench.end()
    GatewayRestore().run(GatewayRestore.Args(bench.name, "x"), bench.context)
    copies = [path for path in bench.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in copies if "sockets" not in path.parts and SECRET in path.read_text()]
    assert (home / "secret").read_text() == SECRET


@pytest.mark.parametrize("name", ["keys", "haproxy.cfg", "more.map"])
def test_links_in_the_folder_of_an_earlier_release_are_not_followed(bench: GatewayHost, name: str) -> None:
    """The container of an earlier release could write there: files are read by name and never copied."""
    bench.start_earlier_release()
    folder = bench.folder / gateway_folders.LEGACY_FOLDER
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(bench.context.machine.home / "secret")
    (folder / "server_keys.map").symlink_to("/dev/zero")
    assert SECRET not in json.dumps(gateway_folders.read_files(folder))
    assert SECRET not in json.dumps(bench.inspect())
    digest = str(bench.running().data["digest"])
    bench.keep(digest)
    assert not folder.exists()
    assert SECRET not in json.dumps(bench.context.events)
    assert SECRET not in json.dumps(gateway_folders.state_files(bench.context, digest))


def test_a_gateway_of_an_earlier_release_is_replaced_and_the_plan_shows_it(bench: GatewayHost) -> None:
    bench.start_earlier_release()
    assert bench.inspect()["running"] is True
    bench.context.check = True
    planned = {change.field for change in bench.running().diff}
    bench.context.check = False
    assert {"volumes", "working-dir"} <= planned
    result = bench.running()
    assert result.data["reloaded"] is False
    bench.keep(result.data["digest"])
    assert bench.inspect()["verified"] is True
    assert not bench.running().changed
    with pytest.raises(Refused, match="deployed by sparkwright 0.1"):
        GatewayLastGood().run(GatewayLastGood.Args(bench.name), bench.context)


def test_a_failed_upgrade_restores_the_gateway_of_the_earlier_release(bench: GatewayHost) -> None:
    bench.start_earlier_release()
    bench.running()
    assert bench.inspect()["verified"] is False
    result = GatewayRestore().run(GatewayRestore.Args(bench.name, "no model generates"), bench.context)
    assert result.data["restored"] is True
    inspected = bench.inspect()
    assert (inspected["running"], inspected["verified"], inspected["changed"]) == (True, True, [])
    assert bench.running().changed


def test_verified_files_that_do_not_match_their_digest_are_not_used(bench: GatewayHost) -> None:
    """An earlier release copied files that a container had written."""
    spec = bench.start_earlier_release()
    digest = gateway_folders.state_of(bench.context).read("verified")["digest"]  # type: ignore[index]
    assert gateway_folders.state_files(bench.context, digest) and gateway_folders.is_legacy(spec)
    (bench.folder / gateway_folders.VERIFIED_FOLDER / digest / "models.map").write_text(SECRET)
    assert gateway_folders.state_files(bench.context, digest) == {}
