"""Mounts whose source a container could replace are refused, by their paths and by the links in them."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.engine import ENGINE_LABEL
from sparkwright.errors import Refused
from sparkwright.host.containers import mount_sources
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext


class FakeEngine:
    """A Docker Engine with these containers."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.api, self._rows = self, rows

    def containers(self, all: bool = False) -> tuple[dict[str, Any], ...]:
        return self._rows


def container_row(source: Path, name: str = "other", *, ours: bool = True, writable: bool = True) -> dict[str, Any]:
    mounts = [{"Type": "bind", "Source": str(source), "RW": writable}]
    return {"Names": [f"/{name}"], "Labels": {ENGINE_LABEL: "vllm"} if ours else {}, "Mounts": mounts}


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingContext:
    recording = RecordingContext(tmp_path / "home")
    monkeypatch.setattr(recording, "docker", FakeEngine)
    for name in ("models/one", "data/below"):
        (tmp_path / name).mkdir(parents=True)
    return recording


def check_volumes(context: RecordingContext, *volumes: str) -> None:
    mount_sources.refuse_unsafe_spec(context, ContainerSpec("one", "image", volumes=volumes))


def test_separate_folders_and_a_read_only_outer_folder_are_accepted(context: RecordingContext, tmp_path: Path) -> None:
    check_volumes(context, f"{tmp_path}/models/one:/model:ro", f"{tmp_path}/data:/data", f"{tmp_path}/data:/again")
    check_volumes(context, f"{tmp_path}/data:/data:ro", f"{tmp_path}/data/below:/below", "named:/volume")


def test_a_source_below_a_writable_mount_is_refused(context: RecordingContext, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="data/below is inside .*data, where one could replace"):
        check_volumes(context, f"{tmp_path}/data:/data", f"{tmp_path}/data/below:/below:ro")


def test_a_source_below_a_writable_mount_by_another_path_is_refused(context: RecordingContext, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    (tmp_path / "data/link").symlink_to(tmp_path / "models/one")
    for inner in ("alias/below", "data/link", "models/../data/below"):
        with pytest.raises(Refused, match="could replace"):
            check_volumes(context, f"{tmp_path}/data:/data", f"{tmp_path}/{inner}:/below")


def test_a_writable_mount_must_not_contain_folders_of_sparkwright(context: RecordingContext, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="sparkwright is inside"):
        check_volumes(context, f"{tmp_path}:/all")
    check_volumes(context, f"{tmp_path}:/all:ro")


def test_writable_mounts_of_other_servers_count_and_those_of_foreign_containers_do_not(
    context: RecordingContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = f"{tmp_path}/data/below:/below:ro"
    data = tmp_path / "data"
    for row in (container_row(data, ours=False), container_row(data, writable=False), container_row(tmp_path, "one")):
        monkeypatch.setattr(context, "docker", lambda row=row: FakeEngine(row))
        check_volumes(context, inner)
    monkeypatch.setattr(context, "docker", lambda: FakeEngine(container_row(tmp_path / "data")))
    with pytest.raises(Refused, match="where other could replace"):
        check_volumes(context, inner)


def test_a_link_in_a_folder_of_sparkwright_is_not_mounted(context: RecordingContext, tmp_path: Path) -> None:
    """Even if no container can write to the folder."""
    caches = context.machine.home / ".local/share/sparkwright/compile-caches"
    caches.mkdir(parents=True, mode=0o700)
    (caches / "key").symlink_to(tmp_path)
    mounts = [{"Type": "bind", "Source": str(caches / "key/models"), "Target": "/cache"}]
    with pytest.raises(Refused, match="key is a link"):
        mount_sources.refuse_unsafe_container(context, {"Name": "/one", "HostConfig": {"Mounts": mounts}})
