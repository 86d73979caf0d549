"""Files that a container wrote as root are removed by a user who is not root, on a real Docker Engine."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.errors import Failed
from sparkwright.host.containers import container_files
from tests import docker_image
from tests.host.containers.test_log_reader import engine
from tests.modules.context import RecordingContext

__all__ = ["engine"]

NOBODY = 65534
PROGRAMS = ("/bin/sh", "/bin/rm", "/bin/mkdir", "/bin/chmod")


@pytest.fixture
def image(engine: docker.DockerClient) -> Iterator[str]:
    """An image of this machine's shell, rm, mkdir and chmod."""
    with docker_image.temporary_image(engine, PROGRAMS) as name:
        yield str(engine.images.get(name).id)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a user who is not root; pytest's own is below one that only root can enter."""
    path = Path(tempfile.mkdtemp(prefix="sparkwright-test-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=False)


def fill_as_root(engine: docker.DockerClient, image: str, folder: Path) -> None:
    """A folder of the user's in which a container left a folder of root's, closed to others."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    script = "mkdir -p /c/files/triton && echo compiled > /c/files/triton/one && chmod 700 /c/files/triton"
    mount = {str(folder): {"bind": "/c", "mode": "rw"}}
    engine.containers.run(image, ["/bin/sh", "-c", script], volumes=mount, network_mode="none", remove=True)


def run_as_nobody(act: Callable[[], None]) -> str:
    """Do it as a user who may use Docker and is not root; what it raised."""
    if os.geteuid() != 0:
        return _describe_raised(act)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([Path("/var/run/docker.sock").stat().st_gid])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(writing, _describe_raised(act).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as result:
        return result.read()


def _describe_raised(act: Callable[[], None]) -> str:
    try:
        act()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.docker
def test_a_container_removes_what_a_container_wrote(engine: docker.DockerClient, image: str, folder: Path) -> None:
    fill_as_root(engine, image, folder / "live")
    context = RecordingContext(folder)

    def remove() -> None:
        container_files.discard(context, folder / "live")
        container_files.empty_trash(context)

    assert run_as_nobody(remove) == ""
    assert not (folder / "live").exists() and not list((folder / container_files.TRASH).iterdir())
    left = [row for row in engine.api.containers(all=True) if str(folder) in str(row["Mounts"])]  # type: ignore[no-untyped-call]
    assert left == []


@pytest.mark.docker
def test_what_root_closed_is_opened_for_reading(engine: docker.DockerClient, image: str, folder: Path) -> None:
    fill_as_root(engine, image, folder / "live")
    context = RecordingContext(folder)
    assert run_as_nobody(lambda: container_files.make_readable(context, folder / "live")) == ""
    assert run_as_nobody(lambda: _require((folder / "live/files/triton/one").read_text() == "compiled\n")) == ""


@pytest.mark.docker
def test_where_no_container_can_root_is_told_what_to_type(
    engine: docker.DockerClient, image: str, folder: Path
) -> None:
    fill_as_root(engine, image, folder / "live")
    context: Any = RecordingContext(folder)
    context.docker = lambda: _without_images()

    def remove() -> None:
        container_files.discard(context, folder / "live")
        container_files.empty_trash(context)

    result = run_as_nobody(remove)
    assert result.startswith(Failed.__name__) and f"sudo rm -rf {folder / container_files.TRASH}/" in result


def _require(holds: bool) -> None:
    assert holds


def _without_images() -> Any:
    """An engine that takes no image."""

    class Api:
        def import_image_from_data(self, *words: Any, **options: Any) -> Any:
            raise docker.errors.APIError("no room")

    class Client:
        api = Api()

    return Client()
