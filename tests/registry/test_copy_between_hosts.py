"""`invoke images.copy` between two hosts with an engine of their own, one of which sends more than was requested."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.host.images import image_copy
from sparkwright.host.images.image_names import inspect
from sparkwright.project import lockfile
from sparkwright.trust.image_name import ImageReference
from tests import commands, engine_beside
from tests.modules.context import RecordingContext
from tests.registry.server import Registry
from tests.registry.test_docker_image import lock_image, pull_image
from tests.registry.test_hostile_images import load_archive, save_archive
from tests.remote.conftest import SshLab, lab  # noqa: F401  the fixture
from tests.remote.sshd import Sshd

pytestmark = [pytest.mark.docker, pytest.mark.ssh]
TOP = Path(__file__).parent.parent.parent

#: a `docker` that saves another image than it is asked for, under the tags that it likes
HOSTILE = """#!{python}
import os, sys
if sys.argv[1] != "save":
    os.execv("/usr/bin/docker", ["docker", *sys.argv[1:]])
sys.path.insert(0, "{top}")
import docker
from tests import commands
from tests.registry.test_hostile_images import save_archive
tags = [{incoming}, *{tags!r}]
sys.stdout.buffer.write(save_archive(docker.DockerClient().api, "{image}", tags))
"""


@dataclass
class Pair:
    """Two hosts, one of which copies an image from the other."""

    #: the user's project folder
    root: Path
    #: the local engine
    source: Any
    #: a second engine
    target: Any
    ref: str
    entry: dict[str, Any]
    good_id: str
    bin: Path

    @property
    def pinned(self) -> ImageReference:
        return ImageReference.parse(f"{self.ref}@{self.entry['digest']}")

    def copy(self) -> subprocess.CompletedProcess[str]:
        words = ["images.copy", "--from", "one", "--to", "two", "--image", self.ref]
        return commands.run(*words, cwd=self.root, timeout_s=180)

    def make_hostile(self, image: str, tags: list[str], *, incoming: bool = True) -> None:
        text = HOSTILE.format(
            python=sys.executable, top=TOP, tags=tags, image=image, incoming="sys.argv[2]" if incoming else "*[]"
        )
        (self.bin / "docker").write_text(text)
        (self.bin / "docker").chmod(0o755)


@pytest.fixture
def other_engine() -> Iterator[tuple[str, Any]]:
    """Yield a second Docker Engine: its address and its API."""
    # in a network of its own: without a bridge it would take the first engine's away
    with engine_beside.second_engine(["--bridge=none"], ["unshare", "--net"]) as address_and_api:
        yield address_and_api


@pytest.fixture
def pair(
    lab: SshLab,  # noqa: F811
    other_engine: tuple[str, Any],
    registry: Registry,
    engine: Any,
    repository: str,
    context: RecordingContext,
    tmp_path: Path,
) -> Pair:
    address, target = other_engine
    binaries = tmp_path / "hostile"
    binaries.mkdir()
    path = os.environ["PATH"].partition(os.pathsep)[2]
    ports = {}
    for name, env in (("one", (f"PATH={binaries}:{path}",)), ("two", (f"PATH={path}", f"DOCKER_HOST={address}"))):
        sshd = Sshd(lab.folder / f"sshd-{name}", lab.folder / f"at-{name}", env=env)
        lab.started.append(sshd)
        sshd.start()
        lab.trust(sshd)
        ports[name] = sshd.port
    root = tmp_path / "project"
    (root / "hosts").mkdir(parents=True)
    for folder in ("recipes", "playbooks"):
        shutil.copytree(TOP / folder, root / folder)
    for name, port in ports.items():
        (root / f"hosts/{name}.yml").write_text(
            yaml.safe_dump({"address": "127.0.0.1", "port": port, "recipe": "qwen3.5-35b"})
        )
    registry.push(repository, "v1", seed=1)
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    good_id = pull_image(context, ref, entry).data["id"]
    lockfile.Lock().with_image(ref, entry).save(root)
    registry.stop()
    return Pair(root, engine, target, ref, entry, good_id, binaries)


def commit_other_image(pair: Pair, command: str) -> str:
    """Return the Id of another image on the source: the good one with another command."""
    container_id = pair.source.create_container(pair.good_id, [command])["Id"]
    image_id: str = pair.source.commit(container_id, pair.pinned.repository, command.strip("/"))["Id"]
    pair.source.remove_container(container_id)
    return image_id


def test_an_image_arrives_proved_and_a_second_copy_has_nothing_to_do(pair: Pair) -> None:
    result = pair.copy()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "its content matches spark.lock" in result.stdout
    assert image_copy.list_names(pair.target).tags == {pair.ref: pair.good_id, pair.pinned.verified_tag: pair.good_id}
    again = pair.copy()
    assert (again.returncode, "already" in again.stdout) == (0, True)


def test_tags_that_come_along_go_and_a_name_that_was_taken_comes_back(pair: Pair) -> None:
    mine, evil = commit_other_image(pair, "/mine"), commit_other_image(pair, "/evil")
    load_archive(pair.target, save_archive(pair.source, mine, ["in/use:here"]))
    pair.make_hostile(evil, ["in/use:here", "back/door:v1", pair.pinned.verified_tag, pair.ref])
    result = pair.copy()
    assert result.returncode == 1
    assert "the received image is not" in result.stdout and "removed it" in result.stdout
    assert image_copy.list_names(pair.target).tags == {"in/use:here": mine}
    assert inspect(pair.target, evil) == {}


def test_a_copy_that_brings_only_what_nobody_asked_for_leaves_nothing(pair: Pair) -> None:
    pair.make_hostile(commit_other_image(pair, "/evil"), ["back/door:v1"], incoming=False)
    result = pair.copy()
    assert result.returncode == 1 and "no image was received" in result.stdout
    assert image_copy.list_names(pair.target).tags == {}


#: a `docker` that saves a few kilobytes: a layer of zeros, as many as it likes, in what `docker load` unpacks by itself
BOMB = """#!{python}
import gzip, io, os, sys, tarfile
if sys.argv[1] != "save":
    os.execv("/usr/bin/docker", ["docker", *sys.argv[1:]])
MIB, layer = 2**20, io.BytesIO()
with gzip.GzipFile(fileobj=layer, mode="wb", compresslevel=9) as packed:
    info = tarfile.TarInfo("zeros")
    info.size = {mib} * MIB
    packed.write(info.tobuf(tarfile.GNU_FORMAT))
    zeros = bytes(MIB)
    for _ in range({mib}):
        packed.write(zeros)
    packed.write(bytes(1024))
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    info = tarfile.TarInfo("one/layer.tar")
    info.size = layer.tell()
    layer.seek(0)
    archive.addfile(info, layer)
    config = b'{{"rootfs": {{"type": "layers", "diff_ids": ["sha256:{zero}"]}}, "os": "linux", "architecture": "amd64"}}'
    for name, data in (("c.json", config), ("manifest.json", b'[{{"Config": "c.json", "RepoTags": null, "Layers": ["one/layer.tar"]}}]')):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
"""


def watch_disk_usage(folder: Path, stop: threading.Event) -> list[int]:
    """Return the largest disk usage of a folder while it was watched, bytes."""
    peak_bytes = [0]
    while not stop.wait(0.02):
        sizes = (path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        with contextlib.suppress(OSError):
            peak_bytes[0] = max(peak_bytes[0], sum(sizes))
    return peak_bytes


def test_kilobytes_that_unpack_to_gigabytes_are_stopped_at_what_the_lock_allows(pair: Pair) -> None:
    """Without the check the engine would write all of them before comparing anything."""
    mib = 600
    text = BOMB.format(python=sys.executable, mib=mib, zero="0" * 64)
    (pair.bin / "docker").write_text(text)
    (pair.bin / "docker").chmod(0o755)
    root, ended = Path(pair.target.info()["DockerRootDir"]), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch_disk_usage, root, ended)
        try:
            output = pair.copy()
        finally:
            ended.set()
    assert output.returncode == 1
    assert "unpacks to more than" in output.stdout and "too much for this image" in output.stdout
    assert image_copy.list_names(pair.target).tags == {} and not pair.target.images(all=True)
    assert watching.result()[0] < mib * 2**20 / 4
