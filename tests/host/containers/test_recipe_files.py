"""The files of a recipe on the host: in its user's folder, whatever the umask, with the content that their name hashes."""

import hashlib
import os
from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.containers import recipe_files
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import ContainerSpec

TEXT = "name: served\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
SPEC = ContainerSpec("served", "a/b:c", files={"/etc/engine/options.yml": DIGEST})


def test_the_folder_is_its_users_alone_and_the_file_can_be_read_in_the_container(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (mount,) = recipe_files.prepare_mounts(StateFolder(tmp_path / "state"), SPEC, {DIGEST: TEXT})
    finally:
        os.umask(before)
    folder = Path(mount["Source"])
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent, folder.parent.parent)] == [
        0o444,
        0o700,
        0o700,
    ]
    assert folder.read_text() == TEXT


@pytest.mark.parametrize("digest", ["../../.ssh/authorized_keys", "0" * 63, "0" * 64])
def test_a_name_that_is_not_that_of_its_content_is_not_written(tmp_path: Path, digest: str) -> None:
    spec = ContainerSpec("served", "a/b:c", files={"/etc/engine/options.yml": digest})
    with pytest.raises(Failed, match="is missing or changed on this host"):
        recipe_files.prepare_mounts(StateFolder(tmp_path / "state"), spec, {digest: TEXT})
    assert not list(tmp_path.rglob("*authorized*"))
