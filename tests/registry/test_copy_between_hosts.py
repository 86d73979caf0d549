"""`invoke images.copy` between two hosts with separate Docker Engines, one of which sends wrong images."""

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
from tests.registry.images import Images, load_archive, save_archive
from tests.remote.conftest import SshLab, lab  # noqa: F401  the fixture
from tests.remote.sshd import Sshd

pytestmark = [pytest.mark.docker, pytest.mark.ssh]
TOP = Path(__file__).parent.parent.parent

#: a `docker` whose `save` writes another image with other tags
HOSTILE = """#!{python}
import os, sys
if sys.argv[1] != "save":
    os.execv("/usr/bin/docker", ["docker", *sys.argv[1:]])
sys.path.insert(0, "{top}")
import docker
from tests.registry.images import save_archive
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
        """Let the source send this image. incoming: with the requested tag too."""
        requested = "sys.argv[2]" if incoming else "*[]"
        self.replace_docker(HOSTILE.format(python=sys.executable, top=TOP, tags=tags, image=image, incoming=requested))

    def replace_docker(self, program: str) -> None:
        (self.bin / "docker").write_text(program)
        (self.bin / "docker").chmod(0o755)


@pytest.fixture
def other_engine() -> Iterator[tuple[str, Any]]:
    """Yield a second Docker Engine: its address and its API."""
    # in a separate network: without a bridge it would remove that of the first engine
    with engine_beside.second_engine(["--bridge=none"], ["unshare", "--net"]) as address_and_api:
        yield address_and_api


@pytest.fixture
def pair(
    lab: SshLab,  # noqa: F811
    other_engine: tuple[str, Any],
    images: Images,
    engine: Any,
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
    ref, entry = images.push_and_lock(seed=1)
    good_id = images.pull(ref, entry).data["id"]
    lockfile.Lock().with_image(ref, entry).save(root)
    images.registry.stop()
    return Pair(root, engine, target, ref, entry, good_id, binaries)


def commit_other_image(pair: Pair, command: str) -> str:
    """Commit the good image with another command on the source. Return the Id."""
    container_id = pair.source.create_container(pair.good_id, [command])["Id"]
    image_id: str = pair.source.commit(container_id, pair.pinned.repository, command.strip("/"))["Id"]
    pair.source.remove_container(container_id)
    return image_id


def test_image_is_verified_and_a_second_copy_changes_nothing(pair: Pair) -> None:
    result = pair.copy()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "its content matches spark.lock" in result.stdout
    assert image_copy.list_names(pair.target).tags == {pair.ref: pair.good_id, pair.pinned.verified_tag: pair.good_id}
    again = pair.copy()
    assert (again.returncode, "already" in again.stdout) == (0, True)


def test_added_tags_are_removed_and_moved_tags_restored(pair: Pair) -> None:
    mine, evil = commit_other_image(pair, "/mine"), commit_other_image(pair, "/evil")
    load_archive(pair.target, save_archive(pair.source, mine, ["in/use:here"]))
    pair.make_hostile(evil, ["in/use:here", "back/door:v1", pair.pinned.verified_tag, pair.ref])
    result = pair.copy()
    assert result.returncode == 1
    assert "the received image is not" in result.stdout and "removed it" in result.stdout
    assert image_copy.list_names(pair.target).tags == {"in/use:here": mine}
    assert inspect(pair.target, evil) == {}


def test_copy_without_the_requested_tag_leaves_nothing(pair: Pair) -> None:
    pair.make_hostile(commit_other_image(pair, "/evil"), ["back/door:v1"], incoming=False)
    result = pair.copy()
    assert result.returncode == 1 and "no image was received" in result.stdout
    assert image_copy.list_names(pair.target).tags == {}


#: a `docker` whose `save` writes a few kilobytes that `docker load` would unpack to many zeros
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


def watch_disk_usage(folder: Path, stop: threading.Event) -> int:
    """Return the largest disk usage of a folder while it was watched, bytes."""
    peak_bytes = 0
    while not stop.wait(0.02):
        sizes = (path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        with contextlib.suppress(OSError):
            peak_bytes = max(peak_bytes, sum(sizes))
    return peak_bytes


def test_archive_that_unpacks_to_too_much_is_stopped(pair: Pair) -> None:
    """Without the limit from the lock, the engine would write everything before the comparison."""
    mib = 600
    pair.replace_docker(BOMB.format(python=sys.executable, mib=mib, zero="0" * 64))
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
    assert watching.result() < mib * 2**20 / 4
