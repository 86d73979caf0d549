"""Sending an image through a real sshd into a real engine, with a key created for it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.stores.images import _generate_key_pair
from sparkwright.errors import Failed, Unreachable
from sparkwright.host.images import image_archive
from sparkwright.host.images.image_names import find, inspect
from sparkwright.modules.image.docker_image import AdoptImage
from sparkwright.modules.image.image_transfer import CopyKey, InspectImage, SendImage
from sparkwright.trust.image_name import ImageReference
from tests.modules.context import RecordingContext
from tests.registry.server import Registry
from tests.registry.test_docker_image import lock_image, pull_image
from tests.remote.sshd import SSHD, Sshd

pytestmark = [pytest.mark.docker, pytest.mark.ssh]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if SSHD is None or not shutil.which("docker"):
        pytest.skip("needs sshd and the docker command")
    (tmp_path / "id.pub").write_text("")
    value = Sshd(tmp_path / "sshd", tmp_path / "there")
    value.start()
    yield value
    value.stop()


@pytest.fixture
def image(registry: Registry, engine: Any, repository: str, context: RecordingContext) -> str:
    registry.push(repository, "v1", layer_bytes=(300_000, 200_000))
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    pull_image(context, ref, entry)
    return f"{ref}@{entry['digest']}"


def authorize(sshd: Sshd, public: str, command: str) -> None:
    """Copy the line that `copy_key` writes to the file that this sshd reads."""
    target = RecordingContext(sshd.home)
    CopyKey().run(CopyKey.Args(public, command), target)
    line = (sshd.home / ".ssh/authorized_keys").read_text()
    assert line.startswith('restrict,expiry-time="')
    (sshd.folder / "authorized_keys").write_text(line)


def send_arguments(image: str, sshd: Sshd, **other: Any) -> SendImage.Args:
    defaults = {
        "image": image,
        "incoming": f"{ImageReference.parse(image).repository}:incoming-1",
        "addresses": [f"127.0.0.1:{sshd.port}"],
        "user": "root",
        "host_key": " ".join(sshd.known_hosts_line().split()[1:]),
    }
    return SendImage.Args(**{**defaults, **other})


def test_an_image_arrives_is_compared_and_known_by_its_digest(
    image: str, sshd: Sshd, engine: Any, context: RecordingContext, tmp_path: Path
) -> None:
    private, public = _generate_key_pair()
    authorize(sshd, public, image_archive.load_command("gzip", image_archive.receive_command(2**24)))
    image_data = InspectImage().run(InspectImage.Args(image), context).data
    sender = RecordingContext(tmp_path / "home", architecture="x86_64", secrets={"SPARKWRIGHT_COPY_KEY": private})
    result = SendImage().run(send_arguments(image, sshd), sender)
    assert result.data["sent_bytes"] > 500_000
    assert [item for item in sender.events if item["event"] == "progress"]
    incoming = f"{ImageReference.parse(image).repository}:incoming-1"
    args = AdoptImage.Args(
        incoming, image, image_data["layers"], image_data["platform"], [image_data["id"]], image_data["names"]
    )
    engine.remove_image(f"{ImageReference.parse(image).repository}@{ImageReference.parse(image).digest}", force=True)
    AdoptImage().run(args, context)
    assert (
        find(engine, image, [image_data["id"]])["Id"]
        == inspect(engine, ImageReference.parse(image).verified_tag)["Id"]
        == image_data["id"]
    )
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and b"OPENSSH PRIVATE" in path.read_bytes() and path.name != "host_key"
    ]


def test_what_arrives_and_is_something_else_is_removed(image: str, engine: Any, context: RecordingContext) -> None:
    incoming = f"{ImageReference.parse(image).repository}:incoming-2"
    engine.tag(image, *incoming.rsplit(":", 1))
    image_data = InspectImage().run(InspectImage.Args(image), context).data
    args = AdoptImage.Args(incoming, image, ["sha256:other"], image_data["platform"])
    with pytest.raises(Failed, match="is not"):
        AdoptImage().run(args, context)
    assert inspect(engine, incoming) == {}


def test_a_host_with_another_key_gets_nothing(image: str, sshd: Sshd, tmp_path: Path) -> None:
    private, public = _generate_key_pair()
    authorize(sshd, public, image_archive.load_command("gzip", image_archive.receive_command(2**24)))
    sender = RecordingContext(tmp_path / "home", secrets={"SPARKWRIGHT_COPY_KEY": private})
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
    with pytest.raises(Unreachable, match="cannot reach"):
        SendImage().run(send_arguments(image, sshd, host_key=other), sender)
    assert "load" not in (sshd.folder / "log").read_text()


def test_an_address_where_nobody_listens_is_passed_over(image: str, sshd: Sshd, tmp_path: Path) -> None:
    private, public = _generate_key_pair()
    authorize(sshd, public, image_archive.load_command("gzip", image_archive.receive_command(2**24)))
    sender = RecordingContext(tmp_path / "home", secrets={"SPARKWRIGHT_COPY_KEY": private})
    result = SendImage().run(send_arguments(image, sshd, addresses=["127.0.0.1:9", f"127.0.0.1:{sshd.port}"]), sender)
    assert result.data["address"] == f"127.0.0.1:{sshd.port}"


def test_an_engine_that_refuses_is_quoted(image: str, sshd: Sshd, engine: Any, tmp_path: Path) -> None:
    private, public = _generate_key_pair()
    authorize(sshd, public, "cat > /dev/null; echo no space left on device >&2; exit 1")
    sender = RecordingContext(tmp_path / "home", secrets={"SPARKWRIGHT_COPY_KEY": private})
    with pytest.raises(Failed, match="no space left on device"):
        SendImage().run(send_arguments(image, sshd), sender)
    assert not [tag for row in engine.images() for tag in row["RepoTags"] or () if ":incoming-" in tag]


def test_the_key_of_a_transfer_goes_and_other_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / ".ssh/authorized_keys"
    file.parent.mkdir()
    file.write_text("ssh-ed25519 AAAAmine me@laptop\nrestrict ssh-ed25519 AAAAold sparkwright-copy\n")
    file.chmod(0o600)
    context = RecordingContext(tmp_path)
    _, public = _generate_key_pair()
    assert CopyKey().run(CopyKey.Args(public, "true"), context).changed
    assert public in file.read_text() and "AAAAold" not in file.read_text()
    assert not CopyKey().run(CopyKey.Args(public, "true"), context).changed
    CopyKey().run(CopyKey.Args(public, state="absent"), context)
    assert file.read_text() == "ssh-ed25519 AAAAmine me@laptop\n"
    assert file.stat().st_mode & 0o777 == 0o600
