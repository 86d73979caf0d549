"""A hostile image attacks every mount at start, restart, stop, removal, rollback and pruning, and with the run script."""

import contextlib
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from sparkwright.bench import experiment as lab
from sparkwright.doctor.checks import services as checks_docker
from sparkwright.doctor.host import Finding, IntendedServer
from sparkwright.doctor.host import Host as DoctorHost
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import compile_caches, container_files, lifecycle, mount_sources
from sparkwright.host.gateway import container as gateway
from sparkwright.host.gateway import gateway_folders, haproxy_sockets
from sparkwright.modules.server.previous_server import RestorePrevious
from sparkwright.modules.server.records import GrantRestartPrevious
from sparkwright.modules.server.start import Started
from sparkwright.modules.server.stop import StopAndKeep, Stopped
from sparkwright.modules.storage import PruneCaches
from sparkwright.project import recipe
from sparkwright.project.inventory.groups import Cluster, Fabric
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.container import ContainerSpec
from tests.escape.bench import CANARY, HostileServer, build_image, hostile_server
from tests.host.containers.test_log_reader import engine

__all__ = ["engine"]
pytestmark = pytest.mark.docker

#: the folders that the server leaves are writable for everyone, or only for root
both_modes = pytest.mark.parametrize("hostile", ["0777", "0000"], indirect=True)


@pytest.fixture
def hostile(engine: docker.DockerClient, request: pytest.FixtureRequest) -> Iterator[HostileServer]:
    with hostile_server(engine, mode=getattr(request, "param", "0777")) as server:
        server.deploy("leave", entrypoint=["/bin/cat", "/no-such-file"])  # creates all folders without an attack
        engine.api.remove_container(server.name, force=True)
        server.write_canaries()
        yield server


#: the mounts that the server may write to
WRITABLE = {"/data", "/tmp/torchinductor_root", "/var/cache/sparkwright"}


def stop_server(hostile: HostileServer) -> None:
    Stopped().run(Stopped.Args(hostile.name, stop_timeout_s=0), hostile.context)


def replace_and_restore(hostile: HostileServer, **options: Any) -> None:
    """Deploy another server instead of the running one, and roll back."""
    StopAndKeep().run(StopAndKeep.Args(hostile.name, stop_timeout_s=0), hostile.context)
    hostile.deploy(labels={"another": "server"}, **options)
    hostile.wait_for_attack()
    assert RestorePrevious().run(RestorePrevious.Args(hostile.name), hostile.context).data["to_start"]
    Started().run(Started.Args(hostile.name), hostile.context)
    hostile.wait_for_attack(2)


@both_modes
def test_server_cannot_escape_during_start_verification_restart_and_pruning(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.wait_for_attack()
    assert hostile.places() == hostile.writable() == WRITABLE
    compile_caches.save_verified(hostile.context, hostile.inspect())
    hostile.check_no_escape()
    stop_server(hostile)
    hostile.deploy()
    hostile.wait_for_attack(2)
    stop_server(hostile)
    hostile.check_no_escape()
    aside = compile_caches.move_aside(hostile.context, hostile.inspect(), "a test")
    assert aside is not None and (aside / "cache").exists()
    hostile.engine.api.remove_container(hostile.name, force=True)
    assert PruneCaches().run(PruneCaches.Args(), hostile.context).changed
    assert compile_caches.list_keys(hostile.context) == []
    assert list((hostile.home / container_files.TRASH_FOLDER).iterdir()) == []
    hostile.check_no_escape()


def test_server_cannot_escape_when_restarted_by_docker_or_run_by_the_script(hostile: HostileServer) -> None:
    hostile.deploy("leave")
    policy = {"Name": "unless-stopped", "MaximumRetryCount": 0}
    hostile.engine.api.update_container(hostile.name, restart_policy=policy)
    hostile.wait_for_attack(2)
    hostile.check_no_escape()
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.run_script()
    hostile.wait_for_attack()
    hostile.check_no_escape()


def test_server_cannot_escape_during_a_rollback(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.wait_for_attack()
    replace_and_restore(hostile)
    GrantRestartPrevious().run(GrantRestartPrevious.Args(hostile.name, "unless-stopped"), hostile.context)
    hostile.check_no_escape()


def test_leftovers_are_removed_without_the_hostile_image(hostile: HostileServer) -> None:
    before = _empty_images(hostile)
    hostile.deploy()
    hostile.wait_for_attack()
    stop_server(hostile)
    compile_caches.prepare_start(hostile.context, hostile.inspect())
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.engine.api.remove_image(hostile.image, force=True)
    container_files.empty_trash(hostile.context)
    assert list((hostile.home / container_files.TRASH_FOLDER).iterdir()) == []
    assert _empty_images(hostile) <= before
    hostile.engine.api.tag(build_image(hostile.engine.api, hostile.name), hostile.image.partition(":")[0], "v1")
    hostile.check_no_escape()


def mounts_of(names: dict[str, Any]) -> set[tuple[str, str]]:
    """Return each `docker run` option that mounts something, as (name, whole option)."""
    kinds = ("-v", "--volume", "--mount", "--tmpfs", "--device")
    options = [(option[0].split("=")[0], " ".join(option)) for option in names["docker_options"]]
    return {option for option in options if option[0] in kinds}


CLUSTER = Cluster("pair", "one", ("one", "two"), ("10.0.0.1", "10.0.0.2"))


def make_member(hostile: HostileServer, name: str) -> Host:
    fabric = Fabric(("enp1s0f1np1",), "10.0.0.1")
    return Host(name, name, home=str(hostile.home), cluster=CLUSTER, fabric=fabric)


def test_cluster_members_and_lab_arms_have_no_other_mounts(hostile: HostileServer) -> None:
    """The other tests attack all mounts of a server on a single host."""
    single_host = mounts_of(hostile.names("stay"))
    assert len(single_host) >= 4, single_host
    for name in CLUSTER.members:
        member = mounts_of(hostile.names("stay", make_member(hostile, name), parallel=2, network="host"))
        assert {item for item in member if item[0] != "--device"} == single_host, member ^ single_host
        assert {item[1].split("=")[-1].split()[-1] for item in member - single_host} <= {"/dev/infiniband"}
    hostile.names("stay")
    base = recipe.load(hostile.home / "project", "one")
    for arm in (*lab.recipe_arms(base, base), *lab.flag_arms(base, "enforce-eager", {})):
        box = lab.with_container_name(arm, hostile.name).recipe.file.container
        assert mounts_of(hostile.names("stay", compile_caches=box.compile_caches)) <= single_host


#: allowed on this machine, which may have lower limits than a host
LIMITS = {"memlock": "65536", "nofile": "1024"}


def test_cluster_member_cannot_escape_during_start_rollback_and_removal(hostile: HostileServer) -> None:
    """Its container is in the host network, with a capability and the device nodes of its adapters."""
    member: dict[str, Any] = {"host": make_member(hostile, "one"), "parallel": 2, "network": "host", "ulimits": LIMITS}
    hostile.deploy(**member)
    hostile.wait_for_attack()
    inspected = hostile.inspect()
    assert inspected["HostConfig"]["NetworkMode"] == "host" and "IPC_LOCK" in "".join(inspected["HostConfig"]["CapAdd"])
    assert inspected["HostConfig"]["Devices"]
    assert hostile.places() == hostile.writable() == WRITABLE
    compile_caches.save_verified(hostile.context, inspected)
    replace_and_restore(hostile, **member)
    stop_server(hostile)
    hostile.engine.api.remove_container(hostile.name, force=True)
    container_files.empty_trash(hostile.context)
    hostile.check_no_escape()


@both_modes
def test_lab_arm_cannot_escape(hostile: HostileServer) -> None:
    hostile.deploy(compile_caches=False)
    hostile.wait_for_attack()
    stop_server(hostile)
    hostile.deploy(compile_caches=False)
    hostile.wait_for_attack(2)
    hostile.check_no_escape()


def test_gateway_cannot_escape(hostile: HostileServer) -> None:
    """A hostile gateway, as root with its capabilities, attacks at start, restart, reload, reading and removal."""
    context, container = hostile.context, f"{hostile.name}-gateway"
    names = (gateway_folders.FILES_FOLDER, gateway_folders.SOCKETS_FOLDER)
    files, sockets = (gateway_folders.folder(context, name) for name in names)
    gateway_folders.write_files(files, {"haproxy.cfg": "global\n"})
    for folder in (files.parent, files):
        (folder / CANARY).write_text(f"{hostile.secret}\n")
    env = {"CANARY": str(hostile.home / "outside" / CANARY), "WORD": hostile.secret, "MODE": "0777"}
    entrypoint = ("/bin/sh", "/hostile.sh")
    spec = ContainerSpec(container, hostile.image, gpus="", ipc="", env=env, entrypoint=entrypoint, command=("stay",))
    created = gateway.create(gateway.resolve_spec(spec.to_json(), context), context)
    lifecycle.start(context, created)
    hostile.wait_for_attack(name=container)
    places = {line for line in hostile.log(container).splitlines() if line.startswith("PLACE ")}
    assert places == {f"PLACE {gateway.SOCKETS_MOUNT_POINT}"}
    hostile.engine.api.restart(created, timeout=0)
    hostile.wait_for_attack(2, container)
    assert gateway_folders.read_files(files) == {"haproxy.cfg": "global\n"}
    assert gateway_folders.read_files(sockets) == {}
    with contextlib.suppress(SparkwrightError):  # no process listens on its sockets
        gateway.reload(context)
    assert haproxy_sockets.running_digest(sockets) == "" and not haproxy_sockets.inspect(context.state).get("running")
    lifecycle.force_remove(context, created)
    gateway_folders.remove_folder(sockets)
    for folder in (files.parent, files):
        assert (folder / CANARY).read_text() == f"{hostile.secret}\n"
        (folder / CANARY).unlink()
    hostile.check_no_escape()


def mount_findings(hostile: HostileServer, host: DoctorHost) -> list[Finding]:
    """Return doctor's findings about the server's mounts."""
    return [item for item in checks_docker.check_mounts(host) if item.evidence.startswith(f"{hostile.name}:")]


def test_doctor_reports_the_mounts_that_a_start_would_refuse(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.wait_for_attack()
    stop_server(hostile)
    host = DoctorHost(hostile.context, "ops", IntendedServer(name="spark1"))
    assert mount_findings(hostile, host) == []
    sources = [item for item in mount_sources.container_sources(hostile.inspect()) if ".local/share" in str(item)]
    source = next(source for source in sources if source.is_dir())
    source.rename(source.with_name("aside"))
    source.symlink_to("/")
    (finding,) = mount_findings(hostile, host)
    assert finding.verdict == "bad" and "replace it with a link" in finding.evidence and finding.fix
    source.unlink()
    source.symlink_to("aside")
    (finding,) = mount_findings(hostile, host)
    assert finding.verdict == "bad" and f"{source.name} is a link" in finding.evidence
    source.unlink()
    source.with_name("aside").rename(source)
    assert mount_findings(hostile, host) == []
    hostile.check_no_escape()


def _empty_images(hostile: HostileServer) -> set[str]:
    """Return the images of temporary containers; a killed run may have left some."""
    names = {name for row in hostile.engine.api.images() for name in row["RepoTags"] or ()}
    return {name for name in names if name.startswith("sparkwright-empty-")}


def test_nested_mounts_of_an_earlier_version_are_reported_and_replaced(hostile: HostileServer) -> None:
    """They are started with new folders and without a restart policy, and a deploy replaces them."""
    old_folder = hostile.home / ".local/share/sparkwright/caches" / ("e" * 32) / "files"
    (old_folder / "inductor_headers").mkdir(parents=True)
    for folder in (old_folder, old_folder / "inductor_headers"):
        folder.chmod(0o777)
    hostile.deploy()
    inspected = hostile.inspect()
    hostile.engine.api.remove_container(hostile.name, force=True)
    targets = {"/var/cache/sparkwright": old_folder, "/tmp/torchinductor_root": old_folder / "inductor_headers"}
    host_config = inspected["HostConfig"]
    for mount in host_config["Mounts"]:
        mount["Source"] = str(targets.get(mount["Target"], mount["Source"]))
    config = {**inspected["Config"], "HostConfig": host_config}
    hostile.engine.api.create_container_from_config(config, hostile.name)
    hostile.engine.api.start(hostile.name)
    hostile.wait_for_attack()
    stop_server(hostile)
    assert (old_folder / "inductor_headers").is_symlink(), "the next start would mount the host's root folder"
    assert "mounts" in hostile.drift()
    (finding,) = mount_findings(hostile, DoctorHost(hostile.context, "ops"))
    assert finding.verdict == "warning"
    assert f"{old_folder}/inductor_headers is inside mount {old_folder}" in finding.evidence
    Started().run(Started.Args(hostile.name, "unless-stopped"), hostile.context)
    hostile.wait_for_attack(2)
    assert hostile.inspect()["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert mount_sources.restart_policy(hostile.inspect(), "unless-stopped") == "no"
    hostile.check_no_escape()
