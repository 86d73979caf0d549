"""A hostile image against every mount of sparkwright: at start, restart, stop, removal, rollback, pruning, and with the run
script."""

import contextlib
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from sparkwright.bench import experiment as lab
from sparkwright.doctor.checks import services as checks_docker
from sparkwright.doctor.host import Finding, IntendedServer
from sparkwright.doctor.host import Host as Host_
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
from tests.escape.bench import CANARY, HostileServer, hostile_server
from tests.host.containers.test_log_reader import engine

__all__ = ["engine"]
pytestmark = pytest.mark.docker

#: the folders that the server leaves are open, or closed to everyone but root
both_modes = pytest.mark.parametrize("hostile", ["0777", "0000"], indirect=True)


@pytest.fixture
def hostile(engine: docker.DockerClient, request: pytest.FixtureRequest) -> Iterator[HostileServer]:
    with hostile_server(engine, mode=getattr(request, "param", "0777")) as server:
        server.deploy(
            "leave", entrypoint=["/bin/cat", "/no-such-file"]
        )  # every folder is there, and nothing was attacked yet
        engine.api.remove_container(server.name, force=True)  # type: ignore[no-untyped-call]
        server.guard()
        yield server


def stop_server(hostile: HostileServer) -> None:
    Stopped().run(Stopped.Args(hostile.name, stop_timeout_s=0), hostile.context)


@both_modes
def test_server_cannot_escape_during_start_verification_restart_and_pruning(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.attacked()
    assert hostile.places() == hostile.writable() == {"/data", "/tmp/torchinductor_root", "/var/cache/sparkwright"}
    compile_caches.save_verified(hostile.context, hostile.inspect())
    hostile.unharmed()
    stop_server(hostile)
    hostile.deploy()
    hostile.attacked(2)
    stop_server(hostile)
    hostile.unharmed()
    aside = compile_caches.move_aside(hostile.context, hostile.inspect(), "a test")
    assert aside is not None and (aside / "cache").exists()
    hostile.engine.api.remove_container(hostile.name, force=True)
    assert PruneCaches().run(PruneCaches.Args(), hostile.context).changed
    assert compile_caches.list_keys(hostile.context) == []
    assert list((hostile.home / container_files.TRASH).iterdir()) == [], "what root wrote is gone, too"
    hostile.unharmed()


def test_server_cannot_escape_when_restarted_by_docker_or_run_by_the_script(hostile: HostileServer) -> None:
    hostile.deploy("leave")
    policy = {"Name": "unless-stopped", "MaximumRetryCount": 0}
    hostile.engine.api.update_container(hostile.name, restart_policy=policy)
    hostile.attacked(2)
    hostile.unharmed()
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.by_script()
    hostile.attacked()
    hostile.unharmed()


def test_server_cannot_escape_during_a_rollback(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.attacked()
    StopAndKeep().run(StopAndKeep.Args(hostile.name, stop_timeout_s=0), hostile.context)
    hostile.deploy(labels={"another": "server"})
    hostile.attacked()
    restored = RestorePrevious().run(RestorePrevious.Args(hostile.name), hostile.context)
    assert restored.data["to_start"]
    Started().run(Started.Args(hostile.name), hostile.context)
    hostile.attacked(2)
    GrantRestartPrevious().run(GrantRestartPrevious.Args(hostile.name, "unless-stopped"), hostile.context)
    hostile.unharmed()


def test_leftovers_are_removed_without_the_hostile_image(hostile: HostileServer) -> None:
    """The hostile image is not even used: it is gone."""
    before = _empty_images(hostile)
    hostile.deploy()
    hostile.attacked()
    stop_server(hostile)
    compile_caches.prepare_start(hostile.context, hostile.inspect())
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.engine.api.remove_image(hostile.image, force=True)
    container_files.empty_trash(hostile.context)
    assert list((hostile.home / container_files.TRASH).iterdir()) == []
    assert _empty_images(hostile) <= before
    hostile.engine.api.tag(_build_image(hostile), hostile.image.partition(":")[0], "v1")
    hostile.unharmed()


def mounts_of(names: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the mounts of a container by the code that creates them: each option of its `docker run` with its value."""
    kinds = ("-v", "--volume", "--mount", "--tmpfs", "--device")
    return {
        (option[0].split("=")[0], " ".join(option))
        for option in names["docker_options"]
        if option[0].split("=")[0] in kinds
    }


def test_cluster_members_and_lab_arms_have_no_other_mounts(
    hostile: HostileServer,
) -> None:
    """By the code that creates them: they have only the mounts of a server on its own host, which the tests above attack."""
    single_host = mounts_of(hostile.names("stay"))
    assert len(single_host) >= 4, single_host
    cluster = Cluster("pair", "one", ("one", "two"), ("10.0.0.1", "10.0.0.2"))
    fabric = Fabric(("enp1s0f1np1",), "10.0.0.1")
    for name in cluster.members:
        host = Host(name, name, home=str(hostile.home), cluster=cluster, fabric=fabric)
        member = mounts_of(hostile.names("stay", host, parallel=2, network="host"))
        assert {item for item in member if item[0] != "--device"} == single_host, member ^ single_host
        assert {item[1].split("=")[-1].split()[-1] for item in member - single_host} <= {"/dev/infiniband"}
    hostile.names("stay")
    base = recipe.load(hostile.home / "project", "one")
    for arm in (*lab.recipe_arms(base, base), *lab.flag_arms(base, "enforce-eager", {})):
        box = lab.with_container_name(arm, hostile.name).recipe.file.container
        names = hostile.names("stay", compile_caches=box.compile_caches)
        assert mounts_of(names) <= single_host


def test_cluster_member_cannot_escape_during_start_rollback_and_removal(hostile: HostileServer) -> None:
    """Its container as the code creates it: in the host's network, with its capability and its adapters' device nodes."""
    member = head_arguments(hostile)
    hostile.deploy(**member)
    hostile.attacked()
    inspected = hostile.inspect()
    assert inspected["HostConfig"]["NetworkMode"] == "host" and "IPC_LOCK" in "".join(inspected["HostConfig"]["CapAdd"])
    assert inspected["HostConfig"]["Devices"]
    assert hostile.places() == hostile.writable() == {"/data", "/tmp/torchinductor_root", "/var/cache/sparkwright"}
    compile_caches.save_verified(hostile.context, inspected)
    StopAndKeep().run(StopAndKeep.Args(hostile.name, stop_timeout_s=0), hostile.context)
    hostile.deploy(labels={"another": "server"}, **member)
    hostile.attacked()
    assert RestorePrevious().run(RestorePrevious.Args(hostile.name), hostile.context).data["to_start"]
    Started().run(Started.Args(hostile.name), hostile.context)
    hostile.attacked(2)
    stop_server(hostile)
    hostile.engine.api.remove_container(hostile.name, force=True)
    container_files.empty_trash(hostile.context)
    hostile.unharmed()


#: of this machine, which may have lower ones than a host
LIMITS = {"memlock": "65536", "nofile": "1024"}


def head_arguments(hostile: HostileServer) -> dict[str, Any]:
    """Return the arguments of `deploy` for the head of a cluster of two."""
    cluster = Cluster("pair", "one", ("one", "two"), ("10.0.0.1", "10.0.0.2"))
    host = Host("one", "one", home=str(hostile.home), cluster=cluster, fabric=Fabric(("enp1s0f1np1",), "10.0.0.1"))
    return {"host": host, "parallel": 2, "network": "host", "ulimits": LIMITS}


@both_modes
def test_lab_arm_cannot_escape(hostile: HostileServer) -> None:
    hostile.deploy(compile_caches=False)
    hostile.attacked()
    stop_server(hostile)
    hostile.deploy(compile_caches=False)
    hostile.attacked(2)
    hostile.unharmed()


def test_gateway_cannot_escape(hostile: HostileServer) -> None:
    """A hostile image as the gateway's, as root and with its capabilities, at start, restart, reload, reading and removal."""
    context, name = hostile.context, f"{hostile.name}-gateway"
    files, sockets = (
        gateway_folders.folder(context, item) for item in (gateway_folders.FILES, gateway_folders.SOCKETS)
    )
    gateway_folders.write_files(files, {"haproxy.cfg": "global\n"})
    for at in (files.parent, files):
        (at / CANARY).write_text(f"{hostile.secret}\n")
    env = {"CANARY": str(hostile.home / "outside" / CANARY), "WORD": hostile.secret, "MODE": "0777"}
    spec = ContainerSpec(
        name, hostile.image, gpus="", ipc="", env=env, entrypoint=("/bin/sh", "/hostile.sh"), command=("stay",)
    )
    created = gateway.create(gateway.resolve_spec(spec.to_json(), context), context)
    lifecycle.start(context, created)
    hostile.attacked(name=name)
    places = {line for line in hostile.log(name).splitlines() if line.startswith("PLACE ")}
    assert places == {f"PLACE {gateway.SOCKETS_INSIDE}"}
    hostile.engine.api.restart(created, timeout=0)
    hostile.attacked(2, name)
    assert (
        gateway_folders.read_files(files) == {"haproxy.cfg": "global\n"} and gateway_folders.read_files(sockets) == {}
    )
    with contextlib.suppress(SparkwrightError):  # nobody listens where its sockets should be
        gateway.reload(context)
    assert haproxy_sockets.running_digest(sockets) == "" and not haproxy_sockets.inspect(context.state).get("running")
    lifecycle.force_remove(context, created)
    gateway_folders.remove_folder(sockets)
    for at in (files.parent, files):
        assert (at / CANARY).read_text() == f"{hostile.secret}\n"
        (at / CANARY).unlink()
    hostile.unharmed()


def mount_findings(hostile: HostileServer, host: Host_) -> list[Finding]:
    """Return doctor's findings about the server; the engine may have other containers."""
    return [item for item in checks_docker.check_mounts(host) if item.evidence.startswith(f"{hostile.name}:")]


def test_doctor_reports_the_mounts_that_a_start_would_refuse(hostile: HostileServer) -> None:
    hostile.deploy()
    hostile.attacked()
    stop_server(hostile)
    host = Host_(hostile.context, "ops", IntendedServer(name="spark1"))
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
    hostile.unharmed()


def _empty_images(hostile: HostileServer) -> set[str]:
    """Return the images of throw-away containers: a killed run of this or another checkout may have left some."""
    names = {name for row in hostile.engine.api.images() for name in row["RepoTags"] or ()}
    return {name for name in names if name.startswith("sparkwright-empty-")}


def _build_image(hostile: HostileServer) -> Any:
    from tests.escape.bench import build_image

    return build_image(hostile.engine.api, hostile.name)


def test_nested_mounts_of_an_earlier_version_are_reported_and_replaced(hostile: HostileServer) -> None:
    """They are started with new folders, never by Docker itself, and a deploy replaces them."""
    old_folder = hostile.home / ".local/share/sparkwright/caches" / ("e" * 32) / "files"
    (old_folder / "inductor_headers").mkdir(parents=True)
    for folder in (old_folder, old_folder / "inductor_headers"):
        folder.chmod(0o777)
    hostile.deploy()
    inspected = hostile.inspect()
    hostile.engine.api.remove_container(hostile.name, force=True)
    targets = {"/var/cache/sparkwright": old_folder, "/tmp/torchinductor_root": old_folder / "inductor_headers"}
    nested_mounts = [
        {**mount, "Source": str(targets.get(mount["Target"], mount["Source"]))}
        for mount in inspected["HostConfig"]["Mounts"]
    ]
    config = {**inspected["Config"], "HostConfig": {**inspected["HostConfig"], "Mounts": nested_mounts}}
    hostile.engine.api.create_container_from_config(config, hostile.name)
    hostile.engine.api.start(hostile.name)
    hostile.attacked()
    stop_server(hostile)
    assert (old_folder / "inductor_headers").is_symlink(), (
        "the attack: its next start would mount the host's root folder"
    )
    assert "mounts" in hostile.drift()
    (nested,) = mount_findings(hostile, Host_(hostile.context, "ops"))
    assert (
        nested.verdict == "warning" and f"{old_folder}/inductor_headers is inside mount {old_folder}" in nested.evidence
    )
    Started().run(Started.Args(hostile.name, "unless-stopped"), hostile.context)
    hostile.attacked(2)
    assert hostile.inspect()["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert mount_sources.restart_policy(hostile.inspect(), "unless-stopped") == "no"
    hostile.unharmed()
