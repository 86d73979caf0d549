"""The folders of compile caches on a host: whose they are, when they count, how they stay within bounds."""

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
    """An engine with these containers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def containers(self, all: bool = False) -> list[dict[str, Any]]:
        return self.rows

    def inspect_image(self, ref: str) -> dict[str, Any]:
        raise AssertionError("nothing here is root's")


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
    """The copy of a cache that a verified server left."""
    frozen = compile_caches.folder(context, key) / "frozen/cache"
    frozen.mkdir(parents=True)
    (frozen / "graph").write_bytes(b"x" * size)
    context.state.write(f"compile_caches/{key}", {"container": "qwen35", "proved": True, "used_s": used_s})
    return frozen


def test_what_no_variable_moves_is_mounted_by_itself_and_outlives_a_move(context: RecordingContext) -> None:
    """Inductor's header: Docker starts no container whose mount source is missing."""
    spec = ContainerSpec(name="qwen35", image="vllm@sha256:1", labels={engine.ENGINE_LABEL: "vllm"}, caches=ONE)
    mounts = compile_caches.prepare_container(context, spec, {"Id": "sha256:1"})["Mounts"]
    sources = {mount["Target"]: Path(mount["Source"]) for mount in mounts}
    header = sources["/tmp/torchinductor_root"]
    assert header.parent == sources[CACHE_MOUNT].parent, "side by side: none is seen from above"
    attrs = {"Id": "c" * 64, "HostConfig": {"Mounts": mounts}}
    compile_caches.prepare_start(context, attrs)
    assert not compile_caches.is_warm_start(context, attrs)
    (header / "header.gch").write_text("")
    compile_caches.prepare_start(context, attrs)  # nobody verified the first start
    assert header.is_dir() and not any(header.iterdir())
    assert (compile_caches.folder(context, ONE) / "aside/inductor_headers/header.gch").exists()


def test_the_first_start_is_cold_and_the_one_after_a_verified_one_is_warm(context: RecordingContext) -> None:
    server = container_row(context, ONE)
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server)
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, server)
    compile_caches.prepare_start(context, server)
    assert compile_caches.is_warm_start(context, server)
    assert (mounted_folder(context) / "graph").read_text() == "compiled"


def test_what_is_written_after_the_verification_does_not_outlive_the_next_start(context: RecordingContext) -> None:
    server = container_row(context, ONE)
    compile_caches.prepare_start(context, server)
    (mounted_folder(context) / "graph.so").write_text("compiled")
    (mounted_folder(context) / "graph.so").chmod(0o700)
    compile_caches.save_verified(context, server)
    (mounted_folder(context) / "graph.so").write_text("from somebody who broke in")
    (mounted_folder(context) / "more.so").write_text("from somebody who broke in")
    compile_caches.prepare_start(context, server)
    assert compile_caches.is_warm_start(context, server)
    assert [(path.name, path.read_text()) for path in mounted_folder(context).iterdir()] == [("graph.so", "compiled")]
    assert (mounted_folder(context) / "graph.so").stat().st_mode & 0o777 == 0o777, "a program stays one, for any user"


def test_a_copy_that_is_not_as_it_was_verified_is_not_used(context: RecordingContext) -> None:
    server = container_row(context, ONE)
    compile_caches.prepare_start(context, server)
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, server)
    (compile_caches.folder(context, ONE) / "frozen/cache/graph").write_text("damaged!")
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server) and not any(mounted_folder(context).iterdir())
    assert any("changed since it was verified" in item.get("text", "") for item in context.events)


def test_links_pipes_and_folders_too_deep_are_no_cache(context: RecordingContext, tmp_path: Path) -> None:
    server = container_row(context, ONE)
    compile_caches.prepare_start(context, server)
    (tmp_path / "secret").write_text("of the host")
    (mounted_folder(context) / "graph").write_text("compiled")
    (mounted_folder(context) / "link").symlink_to(tmp_path / "secret")
    (mounted_folder(context) / "folder").symlink_to(tmp_path)
    os.mkfifo(mounted_folder(context) / "pipe")
    compile_caches.save_verified(context, server)
    frozen = compile_caches.folder(context, ONE) / "frozen/cache"
    assert [path.name for path in frozen.iterdir()] == ["graph"]

    deep = mounted_folder(context).joinpath(*["d"] * (container_files.MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    compile_caches.save_verified(context, server)
    assert any("nested more than" in item.get("text", "") for item in context.events)
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server)


def test_two_servers_with_the_same_cache_never_share_a_folder(context: RecordingContext) -> None:
    value, other = container_row(context, ONE), container_row(context, ONE, "other")
    compile_caches.prepare_start(context, value)
    (mounted_folder(context) / "graph").write_text("compiled")
    compile_caches.save_verified(context, value)
    compile_caches.prepare_start(context, other)
    assert (mounted_folder(context, ONE, "other") / "graph").read_text() == "compiled"
    assert (mounted_folder(context) / "graph").read_text() == "compiled", "the running server keeps its own"


def test_a_container_of_an_earlier_version_starts_with_fresh_folders_and_no_restart_policy(
    context: RecordingContext,
) -> None:
    old = context.machine.home / ".local/share/sparkwright/caches" / ONE / "files"
    old.mkdir(parents=True)
    (old / "inductor_headers").symlink_to("/")
    mounts = [
        {"Type": "bind", "Source": str(old), "Target": CACHE_MOUNT},
        {"Type": "bind", "Source": str(old / "inductor_headers"), "Target": "/tmp/torchinductor_root"},
    ]
    server = {"Id": "c" * 64, "Name": "/qwen35", "HostConfig": {"Mounts": mounts}}
    compile_caches.prepare_start(context, server)
    mount_sources.refuse_unsafe_container(context, server)
    assert (old / "inductor_headers").is_dir() and not (old / "inductor_headers").is_symlink()
    assert not any((old / "inductor_headers").iterdir())
    assert mount_sources.restart_policy(server, "unless-stopped") == "no"
    assert compile_caches.mounted_key(server) == "", "what is in it is not used"
    compile_caches.discard_unused(context)
    assert not old.exists(), "no container mounts it"


def test_what_a_start_that_was_never_verified_left_is_moved_aside(context: RecordingContext) -> None:
    server = container_row(context, ONE)
    compile_caches.prepare_start(context, server)
    (mounted_folder(context) / "graph").write_text("half")
    compile_caches.prepare_start(context, server)
    assert not compile_caches.is_warm_start(context, server)
    assert (compile_caches.folder(context, ONE) / "aside/cache/graph").read_text() == "half"
    assert any("moved aside" in item.get("text", "") for item in context.events)


def test_the_folder_is_open_to_the_container_and_to_nobody_else(context: RecordingContext) -> None:
    compile_caches.prepare_start(context, container_row(context, ONE))
    at = compile_caches.folder(context, ONE)
    for above in (at, at / "live", at / "live/qwen35"):
        assert above.stat().st_mode & 0o777 == 0o700
    assert mounted_folder(context).stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("key", ["", "..", "../../etc", "1" * 31, "1" * 32 + "/..", "G" * 32])
def test_a_key_that_is_none_is_no_path(context: RecordingContext, key: str) -> None:
    with pytest.raises(Failed):
        compile_caches.folder(context, key)


def test_another_folder_at_the_same_place_is_not_taken_for_a_cache(context: RecordingContext) -> None:
    server = {"HostConfig": {"Mounts": [{"Source": "/srv/mine", "Target": CACHE_MOUNT}]}}
    assert compile_caches.mounted_key(server) == ""


def test_the_bound_drops_what_was_move_aside_then_the_oldest_never_what_is_in_use(context: RecordingContext) -> None:
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


def test_the_caches_of_an_image_go_with_it(context: RecordingContext) -> None:
    for key, image in ((ONE, "sha256:a"), (OTHER, "sha256:b")):
        freeze_cache(context, key)
        context.state.write(f"compile_caches/{key}", {"image_id": image, "proved": True})
    cache_removal.remove_for_images(context, {"sha256:a"})
    assert compile_caches.list_keys(context) == [OTHER]
    assert compile_caches.read_record(context.state, ONE).image_id == ""


def test_the_cache_of_the_state_that_a_rollback_goes_to_stays(context: RecordingContext) -> None:
    freeze_cache(context, ONE)
    freeze_cache(context, OTHER)
    spec = {"name": "qwen35", "image": "i"}
    context.state.write("verified", {"spec": {**spec, "caches": ONE}})
    context.state.write("verified_before", {"states": [{"spec": {**spec, "caches": OTHER}}]})
    assert {row.key: row.kept for row in cache_removal.list_caches(context)} == {
        ONE: "the last verified state",
        OTHER: "the state before it, for a rollback",
    }


def test_every_value_makes_another_key() -> None:
    base = {"image": "sha256:a", "model": ["m", "c"], "flags": {"x": 1}}
    others = [{**base, "image": "sha256:b"}, {**base, "model": ["m", "d"]}, {**base, "flags": {"x": 2}}]
    assert len({compile_cache_key(other) for other in (base, *others)}) == 4


def test_of_the_engines_only_vllm_is_known_to_compile_at_its_start() -> None:
    assert {name for name in engine.TITLES if engine.get_engine(name).caches} == {"vllm"}


def test_an_engine_without_caches_gets_no_mount(context: RecordingContext) -> None:
    spec = ContainerSpec("x", "i", labels={engine.ENGINE_LABEL: "llama_cpp"}, caches=ONE)
    assert compile_caches.prepare_container(context, spec, {"Id": "sha256:a"}) == {}
