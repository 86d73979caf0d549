"""Files that a container wrote as root are removed by another user, on a real Docker Engine."""

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
pytestmark = pytest.mark.docker

NOBODY = 65534
PROGRAMS = ("/bin/sh", "/bin/rm", "/bin/mkdir", "/bin/chmod")


@pytest.fixture
def image(engine: docker.DockerClient) -> Iterator[str]:
    """The Id of an image with this machine's shell, rm, mkdir and chmod."""
    with docker_image.temporary_image(engine, PROGRAMS) as name:
        yield str(engine.images.get(name).id)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a user other than root, who cannot enter pytest's own folders."""
    path = Path(tempfile.mkdtemp(prefix="sparkwright-test-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=False)


def fill_as_root(engine: docker.DockerClient, image: str, folder: Path) -> None:
    """Create a folder of the user in which a container leaves a folder that only root can enter."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    script = "mkdir -p /c/files/triton && echo compiled > /c/files/triton/one && chmod 700 /c/files/triton"
    mount = {str(folder): {"bind": "/c", "mode": "rw"}}
    engine.containers.run(image, ["/bin/sh", "-c", script], volumes=mount, network_mode="none", remove=True)


def run_as_nobody(act: Callable[[], None]) -> str:
    """Call a function as a user who may use Docker and is not root. Returns the exception as text."""
    if os.geteuid() != 0:
        return describe_error(act)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([Path("/var/run/docker.sock").stat().st_gid])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(writing, describe_error(act).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as result:
        return result.read()


def describe_error(act: Callable[[], None]) -> str:
    try:
        act()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def remove_live(context: RecordingContext) -> None:
    container_files.discard(context, context.machine.home / "live")
    container_files.empty_trash(context)


def test_files_of_root_are_removed_by_a_container(engine: docker.DockerClient, image: str, folder: Path) -> None:
    fill_as_root(engine, image, folder / "live")
    context = RecordingContext(folder)
    assert run_as_nobody(lambda: remove_live(context)) == ""
    assert not (folder / "live").exists() and not list((folder / container_files.TRASH_FOLDER).iterdir())
    left = [row for row in engine.api.containers(all=True) if str(folder) in str(row["Mounts"])]
    assert left == []


def test_files_of_root_are_made_readable(engine: docker.DockerClient, image: str, folder: Path) -> None:
    fill_as_root(engine, image, folder / "live")
    context = RecordingContext(folder)

    def read_file() -> None:
        container_files.make_readable(context, folder / "live")
        assert (folder / "live/files/triton/one").read_text() == "compiled\n"

    assert run_as_nobody(read_file) == ""


class FullDocker:
    """A Docker client whose engine has no room for an image."""

    def __init__(self) -> None:
        self.api = self

    def import_image_from_data(self, *words: Any, **options: Any) -> Any:
        raise docker.errors.APIError("no room")


def test_if_no_container_can_remove_files_the_message_names_the_command(
    engine: docker.DockerClient, image: str, folder: Path
) -> None:
    fill_as_root(engine, image, folder / "live")
    context: Any = RecordingContext(folder)
    context.docker = FullDocker
    error = run_as_nobody(lambda: remove_live(context))
    assert error.startswith(Failed.__name__) and f"sudo rm -rf {folder / container_files.TRASH_FOLDER}/" in error
