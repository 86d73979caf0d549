"""Sending an image through a real sshd to a real Docker Engine, with a key for this transfer."""

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
from tests.registry.images import Images
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
def image(images: Images) -> str:
    """Return the pinned reference of an image on the host."""
    ref, entry = images.push_and_lock(layer_bytes=(300_000, 200_000))
    images.pull(ref, entry)
    return f"{ref}@{entry['digest']}"


#: the command that a host runs for the key
LOAD = image_archive.build_load_command("gzip", image_archive.build_receive_command(2**24))


def authorize_sender(sshd: Sshd, folder: Path, command: str = LOAD) -> RecordingContext:
    """Let a new key run this command. Return the context of a host that has the key."""
    private, public = _generate_key_pair()
    CopyKey().run(CopyKey.Args(public, command), RecordingContext(sshd.home))
    line = (sshd.home / ".ssh/authorized_keys").read_text()
    assert line.startswith('restrict,expiry-time="')
    (sshd.folder / "authorized_keys").write_text(line)  # the file that this sshd reads
    return RecordingContext(folder / "home", architecture="x86_64", secrets={"SPARKWRIGHT_COPY_KEY": private})


def send_arguments(image: str, sshd: Sshd, **other: Any) -> SendImage.Args:
    defaults = {
        "image": image,
        "incoming": f"{ImageReference.parse(image).repository}:incoming-1",
        "addresses": [f"127.0.0.1:{sshd.port}"],
        "user": "root",
        "host_key": " ".join(sshd.known_hosts_line().split()[1:]),
    }
    return SendImage.Args(**{**defaults, **other})


def test_sent_image_is_compared_and_adopted(
    image: str, sshd: Sshd, engine: Any, context: RecordingContext, tmp_path: Path
) -> None:
    sender = authorize_sender(sshd, tmp_path)
    image_data = InspectImage().run(InspectImage.Args(image), context).data
    result = SendImage().run(send_arguments(image, sshd), sender)
    assert result.data["sent_bytes"] > 500_000
    assert [item for item in sender.events if item["event"] == "progress"]
    name = ImageReference.parse(image)
    content = image_data["layers"], image_data["platform"], [image_data["id"]], image_data["names"]
    args = AdoptImage.Args(f"{name.repository}:incoming-1", image, *content)
    engine.remove_image(f"{name.repository}@{name.digest}", force=True)
    AdoptImage().run(args, context)
    assert find(engine, image, [image_data["id"]])["Id"] == image_data["id"]
    assert inspect(engine, name.verified_tag)["Id"] == image_data["id"]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "host_key"]
    assert not [path for path in files if b"OPENSSH PRIVATE" in path.read_bytes()]


def test_other_image_than_expected_is_removed(image: str, engine: Any, context: RecordingContext) -> None:
    incoming = f"{ImageReference.parse(image).repository}:incoming-2"
    engine.tag(image, *incoming.rsplit(":", 1))
    image_data = InspectImage().run(InspectImage.Args(image), context).data
    args = AdoptImage.Args(incoming, image, ["sha256:other"], image_data["platform"])
    with pytest.raises(Failed, match="is not"):
        AdoptImage().run(args, context)
    assert inspect(engine, incoming) == {}


def test_host_with_another_key_receives_nothing(image: str, sshd: Sshd, tmp_path: Path) -> None:
    sender = authorize_sender(sshd, tmp_path)
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
    with pytest.raises(Unreachable, match="cannot reach"):
        SendImage().run(send_arguments(image, sshd, host_key=other), sender)
    assert "load" not in (sshd.folder / "log").read_text()


def test_unreachable_address_is_skipped(image: str, sshd: Sshd, tmp_path: Path) -> None:
    sender = authorize_sender(sshd, tmp_path)
    result = SendImage().run(send_arguments(image, sshd, addresses=["127.0.0.1:9", f"127.0.0.1:{sshd.port}"]), sender)
    assert result.data["address"] == f"127.0.0.1:{sshd.port}"


def test_error_of_the_receiving_engine_is_reported(image: str, sshd: Sshd, engine: Any, tmp_path: Path) -> None:
    sender = authorize_sender(sshd, tmp_path, "cat > /dev/null; echo no space left on device >&2; exit 1")
    with pytest.raises(Failed, match="no space left on device"):
        SendImage().run(send_arguments(image, sshd), sender)
    assert not [tag for row in engine.images() for tag in row["RepoTags"] or () if ":incoming-" in tag]


def test_only_the_key_of_the_transfer_is_removed(tmp_path: Path) -> None:
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
