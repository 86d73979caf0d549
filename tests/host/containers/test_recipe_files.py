"""The files of a recipe on the host: their permissions, and names that are hashes of the content."""

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


def test_only_the_user_can_enter_the_folder_and_everyone_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (mount,) = recipe_files.prepare_mounts(StateFolder(tmp_path / "state"), SPEC, {DIGEST: TEXT})
    finally:
        os.umask(before)
    file = Path(mount["Source"])
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o444, 0o700, 0o700]
    assert file.read_text() == TEXT


@pytest.mark.parametrize("digest", ["../../.ssh/authorized_keys", "0" * 63, "0" * 64])
def test_a_file_whose_name_is_not_the_hash_of_its_content_is_not_written(tmp_path: Path, digest: str) -> None:
    spec = ContainerSpec("served", "a/b:c", files={"/etc/engine/options.yml": digest})
    with pytest.raises(Failed, match="is missing or changed on this host"):
        recipe_files.prepare_mounts(StateFolder(tmp_path / "state"), spec, {digest: TEXT})
    assert not list(tmp_path.rglob("*authorized*"))
