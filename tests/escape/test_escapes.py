"""A hostile image against every mount that we make: over start, restart, stop, removal, rollback, pruning, and the script by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import docker
import pytest

from sparkwright.host.containers import compile_caches, files_of_root, mount_sources
from sparkwright.modules.rpc.prune_caches import PruneCaches
from sparkwright.modules.server.grant_restart_previous import GrantRestartPrevious
from sparkwright.modules.server.restore_previous import RestorePrevious
from sparkwright.modules.server.started import Started
from sparkwright.modules.server.stop_and_keep import StopAndKeep
from sparkwright.modules.server.stopped import Stopped
from tests.escape.bench import Bench, bench
from tests.modules.test_log_reading import engine

__all__ = ["engine"]
pytestmark = pytest.mark.docker

#: the folders that the server leaves are open, or closed to everyone but root
both = pytest.mark.parametrize("hostile", ["0777", "0000"], indirect=True)


@pytest.fixture
def hostile(engine: docker.DockerClient, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(engine, mode=getattr(request, "param", "0777")) as made:
        made.deploy(
            "leave", entrypoint=["/bin/cat", "/no-such-file"]
        )  # every folder is there, and nothing was attacked yet
        engine.api.remove_container(made.name, force=True)  # type: ignore[no-untyped-call]
        made.guard()
        yield made


def stop(hostile: Bench) -> None:
    Stopped().run(Stopped.Args(hostile.name, stop_timeout_s=0), hostile.context)


@both
def test_it_gets_out_of_no_mount_over_start_verification_restart_and_pruning(hostile: Bench) -> None:
    hostile.deploy()
    hostile.attacked()
    assert hostile.places() == hostile.writable() == {"/data", "/tmp/torchinductor_root", "/var/cache/sparkwright"}
    compile_caches.verified(hostile.context, hostile.inspect())
    hostile.unharmed()
    stop(hostile)
    hostile.deploy()
    hostile.attacked(2)
    stop(hostile)
    hostile.unharmed()
    aside = compile_caches.move_aside(hostile.context, hostile.inspect(), "a test")
    assert aside is not None and (aside / "cache").exists()
    hostile.engine.api.remove_container(hostile.name, force=True)
    assert PruneCaches().run(PruneCaches.Args(), hostile.context).changed
    assert compile_caches.keys(hostile.context) == []
    assert list((hostile.home / files_of_root.TRASH).iterdir()) == [], "what root wrote is gone, too"
    hostile.unharmed()


def test_nor_when_docker_starts_it_again_nor_by_the_script(hostile: Bench) -> None:
    hostile.deploy("leave")
    policy = {"Name": "unless-stopped", "MaximumRetryCount": 0}
    hostile.engine.api.update_container(hostile.name, restart_policy=policy)
    hostile.attacked(2)
    hostile.unharmed()
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.by_script()
    hostile.attacked()
    hostile.unharmed()


def test_nor_by_a_rollback(hostile: Bench) -> None:
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


def test_what_it_left_is_removed_by_none_of_its_own_programs(hostile: Bench) -> None:
    """The image of whoever wrote it is not even asked for: it is gone."""
    hostile.deploy()
    hostile.attacked()
    stop(hostile)
    compile_caches.before_start(hostile.context, hostile.inspect())
    hostile.engine.api.remove_container(hostile.name, force=True)
    hostile.engine.api.remove_image(hostile.image, force=True)
    files_of_root.empty_trash(hostile.context)
    assert list((hostile.home / files_of_root.TRASH).iterdir()) == []
    images = [name for row in hostile.engine.api.images() for name in row["RepoTags"] or ()]
    assert not [name for name in images if name.startswith("sparkwright-empty-")]
    hostile.engine.api.tag(_any_image(hostile), hostile.image.partition(":")[0], "v1")
    hostile.unharmed()


def _any_image(hostile: Bench) -> Any:
    from tests.escape.bench import image

    return image(hostile.engine.api, hostile.name)


def test_mounts_of_an_earlier_version_lie_in_one_another_and_are_found(hostile: Bench) -> None:
    """They are started with fresh folders, never by Docker itself, and a deploy replaces them."""
    old = hostile.home / ".local/share/sparkwright/caches" / ("e" * 32) / "files"
    (old / "inductor_headers").mkdir(parents=True)
    for folder in (old, old / "inductor_headers"):
        folder.chmod(0o777)
    hostile.deploy()
    made = hostile.inspect()
    hostile.engine.api.remove_container(hostile.name, force=True)
    targets = {"/var/cache/sparkwright": old, "/tmp/torchinductor_root": old / "inductor_headers"}
    mounts = [{**one, "Source": str(targets.get(one["Target"], one["Source"]))} for one in made["HostConfig"]["Mounts"]]
    config = {**made["Config"], "HostConfig": {**made["HostConfig"], "Mounts": mounts}}
    hostile.engine.api.create_container_from_config(config, hostile.name)
    hostile.engine.api.start(hostile.name)
    hostile.attacked()
    stop(hostile)
    assert (old / "inductor_headers").is_symlink(), "the attack: its next start would mount the host's root folder"
    assert "mounts" in hostile.drift()
    Started().run(Started.Args(hostile.name, "unless-stopped"), hostile.context)
    hostile.attacked(2)
    assert hostile.inspect()["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert mount_sources.policy(hostile.inspect(), "unless-stopped") == "no"
    hostile.unharmed()
