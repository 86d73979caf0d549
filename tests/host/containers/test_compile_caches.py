"""The folders of compile caches on a host: permissions, use by later starts, and limits."""

import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.compile_caches import CACHE_MOUNT, compile_cache_key
from sparkwright.errors import Failed
from sparkwright.host.containers import cache_removal, compile_caches, container_files, mount_sources
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext

ONE, OTHER = "1" * 32, "2" * 32
GIB = 2**30


class FakeApi:
    """A Docker Engine with the containers in `rows`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def containers(self, all: bool = False) -> list[dict[str, Any]]:
        return self.rows

    def inspect_image(self, ref: str) -> dict[str, Any]:
        raise AssertionError("no image is needed: root owns no file here")


class FakeEngine:
    def __init__(self) -> None:
        self.api = FakeApi()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingContext:
    recording, docker = RecordingContext(tmp_path), FakeEngine()
    monkeypatch.setattr(recording, "docker", lambda: docker)
    return recording


def mounted_folder(context: RecordingContext, key: str = ONE, name: str = "qwen35") -> Path:
    """Return the folder that a container with this key mounts."""
    return compile_caches.folder(context, key) / "live" / name / "cache"


def container_row(context: RecordingContext, key: str, name: str = "qwen35") -> dict[str, Any]:
    source = str(mounted_folder(context, key, name))
    return {"Id": "c" * 64, "HostConfig": {"Mounts": [{"Type": "bind", "Source": source, "Target": CACHE_MOUNT}]}}


def freeze_cache(context: RecordingContext, key: str, *, size: int = 4096, used_s: float = 0.0) -> Path:
    """Create the kept copy of a verified server's cache."""
    frozen = compile_caches.folder(context, key) / "frozen/cache"
    frozen.mkdir(parents=True)
    (frozen / "graph").write_bytes(b"x" * size)
    context.state.write(f"compile_caches/{key}", {"container": "qwen35", "proved": True, "used_s": used_s})
    return frozen


@pytest.fixture
def server(context: RecordingContext) -> dict[str, Any]:
    """The container of a server, prepared for its first start."""
    row = container_row(context, ONE)
    compile_caches.prepare_start(context, row)
    return row


def test_each_cache_has_a_mount_and_unverified_files_are_moved_aside(context: RecordingContext) -> None:
    """No variable changes the place of Inductor's header, and Docker starts no container whose mount source is missing."""
    spec = ContainerSpec(name="qwen35", image="vllm@sha256:1", labels={engine.ENGINE_LABEL: "vllm"}, caches=ONE)
    mounts = compile_caches.prepare_container(context, spec, {"Id": "sha256:1"})["Mounts"]
    sources = {mount["Target"]: Path(mount["Source"]) for mount in mounts}
    header = sources["/tmp/torchinductor_root"]
    assert header.parent == sources[CACHE_MOUNT].parent, "mounts are not nested"
    attrs = {"Id": "c" * 64, "HostConfig": {"Mounts": mounts}}
    compile_caches.prepare_start(context, attrs)
    assert not compile_caches.is_warm_start(context, attrs)
    (header / "header.gch").write_text("")
    compile_caches.prepare_start(context, attrs)  # nobody verified the first start
    assert header.is_dir() and not any(header.iterdir())
    assert (compile_caches.folder(context, ONE) / "aside/inductor_headers/header.gch").exists()


def test_the_first_start_is_cold_and_the_start_after_a_verification_is_warm(
    context: RecordingContext, server: dict[str, Any]
) -> None:
    assert not compile_caches.is_warm_start(context, server)
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, server)
    compile_caches.prepare_start(context, server)
    assert compile_caches.is_warm_start(context, server)
    assert (mounted_folder(context) / "graph").read_text() == "compiled"


def test_files_written_after_the_verification_are_not_used_by_the_next_start(
    context: RecordingContext, server: dict[str, Any]
) -> None:
    live = mounted_folder(context)
    (live / "graph.so").write_text("compiled")
    (live / "graph.so").chmod(0o700)
    compile_caches.save_verified(context, server)
    for name in ("graph.so", "more.so"):
        (live / name).write_text("from an intruder")
    compile_caches.prepare_start(context, server)
    assert compile_caches.is_warm_start(context, server)
    assert [(path.name, path.read_text()) for path in live.iterdir()] == [("graph.so", "compiled")]
    assert (live / "graph.so").stat().st_mode & 0o777 == 0o777, "executable for the container's user"


def test_a_cache_that_changed_since_its_verification_is_not_used(
    context: RecordingContext, server: dict[str, Any]
) -> None:
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, server)
    (compile_caches.folder(context, ONE) / "frozen/cache/graph").write_text("damaged!")
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server) and not any(mounted_folder(context).iterdir())
    assert "changed since it was verified" in "\n".join(context.notes)


def test_links_pipes_and_deeply_nested_folders_are_not_kept(
    context: RecordingContext, server: dict[str, Any], tmp_path: Path
) -> None:
    live = mounted_folder(context)
    (tmp_path / "secret").write_text("of the host")
    (live / "graph").write_text("compiled")
    (live / "link").symlink_to(tmp_path / "secret")
    (live / "folder").symlink_to(tmp_path)
    os.mkfifo(live / "pipe")
    compile_caches.save_verified(context, server)
    frozen = compile_caches.folder(context, ONE) / "frozen/cache"
    assert [path.name for path in frozen.iterdir()] == ["graph"]

    live.joinpath(*["d"] * (container_files.MAX_DEPTH + 1)).mkdir(parents=True)
    compile_caches.save_verified(context, server)
    assert "nested more than" in "\n".join(context.notes)
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server)


def test_two_servers_with_the_same_cache_do_not_share_a_folder(
    context: RecordingContext, server: dict[str, Any]
) -> None:
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, server)
    compile_caches.prepare_start(context, container_row(context, ONE, "other"))
    for name in ("qwen35", "other"):
        assert (mounted_folder(context, ONE, name) / "graph").read_text() == "compiled"


def test_a_container_of_an_earlier_version_starts_with_new_folders_and_no_restart_policy(
    context: RecordingContext,
) -> None:
    old = context.machine.home / ".local/share/sparkwright/caches" / ONE / "files"
    old.mkdir(parents=True)
    header = old / "inductor_headers"
    header.symlink_to("/")
    mounts = [
        {"Type": "bind", "Source": str(old), "Target": CACHE_MOUNT},
        {"Type": "bind", "Source": str(header), "Target": "/tmp/torchinductor_root"},
    ]
    old_server = {"Id": "c" * 64, "Name": "/qwen35", "HostConfig": {"Mounts": mounts}}
    compile_caches.prepare_start(context, old_server)
    mount_sources.refuse_unsafe_container(context, old_server)
    assert header.is_dir() and not header.is_symlink() and not any(header.iterdir())
    assert mount_sources.restart_policy(old_server, "unless-stopped") == "no"
    assert compile_caches.mounted_key(old_server) == "", "its files are not used"
    compile_caches.discard_unused(context)
    assert not old.exists(), "no container mounts it"


def test_files_of_an_unverified_start_are_moved_aside(context: RecordingContext, server: dict[str, Any]) -> None:
    (mounted_folder(context) / "graph").write_text("half")
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server)
    assert (compile_caches.folder(context, ONE) / "aside/cache/graph").read_text() == "half"
    assert "moved aside" in "\n".join(context.notes)


@pytest.mark.usefixtures("server")
def test_only_the_mounted_folder_is_open_to_every_user(context: RecordingContext) -> None:
    folder = compile_caches.folder(context, ONE)
    for path in (folder, folder / "live", folder / "live/qwen35"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert mounted_folder(context).stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("key", ["", "..", "../../etc", "1" * 31, "1" * 32 + "/..", "G" * 32])
def test_an_invalid_key_is_refused(context: RecordingContext, key: str) -> None:
    with pytest.raises(Failed):
        compile_caches.folder(context, key)


def test_a_foreign_folder_mounted_at_the_same_place_is_no_cache() -> None:
    foreign = {"HostConfig": {"Mounts": [{"Source": "/srv/mine", "Target": CACHE_MOUNT}]}}
    assert compile_caches.mounted_key(foreign) == ""


def test_the_limit_removes_moved_files_then_the_oldest_unused_caches(context: RecordingContext) -> None:
    oldest = freeze_cache(context, ONE, size=3 * 2**20, used_s=1.0).parent
    newer = freeze_cache(context, OTHER, size=3 * 2**20, used_s=2.0).parent
    used = freeze_cache(context, "3" * 32, size=3 * 2**20, used_s=0.5).parent
    (newer.parent / "aside").mkdir()
    (newer.parent / "aside/graph").write_bytes(b"x" * 3 * 2**20)
    mounted_folder(context, "3" * 32).mkdir(parents=True)
    rows = [{"Names": ["/qwen35"], "Mounts": [{"Source": str(mounted_folder(context, "3" * 32))}]}]
    context.docker().api.rows = rows  # type: ignore[attr-defined]

    cache_removal.enforce_limit(context, 10 / 1024)
    assert oldest.exists() and newer.exists() and not (newer.parent / "aside").exists()
    cache_removal.enforce_limit(context, 7 / 1024)
    assert not oldest.parent.exists() and newer.exists()
    cache_removal.enforce_limit(context, 1 / 1024)
    assert used.exists() and not newer.exists()
    assert "`caches_gib` sets the limit" in context.events[-1]["text"]


def test_the_caches_of_removed_images_are_removed(context: RecordingContext) -> None:
    for key, image in ((ONE, "sha256:a"), (OTHER, "sha256:b")):
        freeze_cache(context, key)
        context.state.write(f"compile_caches/{key}", {"image_id": image, "proved": True})
    cache_removal.remove_for_images(context, {"sha256:a"})
    assert compile_caches.list_keys(context) == [OTHER]
    assert compile_caches.read_record(context.state, ONE).image_id == ""


def test_caches_of_verified_states_are_kept(context: RecordingContext) -> None:
    freeze_cache(context, ONE)
    freeze_cache(context, OTHER)
    spec = {"name": "qwen35", "image": "i"}
    context.state.write("verified", {"spec": {**spec, "caches": ONE}})
    context.state.write("verified_before", {"states": [{"spec": {**spec, "caches": OTHER}}]})
    assert {row.key: row.kept for row in cache_removal.list_caches(context)} == {
        ONE: "the last verified state",
        OTHER: "the state before it, for a rollback",
    }


def test_each_value_changes_the_key() -> None:
    base = {"image": "sha256:a", "model": ["m", "c"], "flags": {"x": 1}}
    others = [{**base, "image": "sha256:b"}, {**base, "model": ["m", "d"]}, {**base, "flags": {"x": 2}}]
    assert len({compile_cache_key(other) for other in (base, *others)}) == 4


def test_only_vllm_has_compile_caches() -> None:
    assert {name for name in engine.TITLES if engine.get_engine(name).caches} == {"vllm"}


def test_an_engine_without_caches_gets_no_mount(context: RecordingContext) -> None:
    spec = ContainerSpec("x", "i", labels={engine.ENGINE_LABEL: "llama_cpp"}, caches=ONE)
    assert compile_caches.prepare_container(context, spec, {"Id": "sha256:a"}) == {}
