"""The folders of compile caches on a host: whose they are, when they count, how they stay within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.compile_caches import MOUNT, key_of
from sparkwright.errors import Failed
from sparkwright.host.containers import cache_removal, compile_caches
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext

ONE, OTHER = "1" * 32, "2" * 32
GIB = 2**30


class Api:
    """An engine with these containers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def containers(self, all: bool = False) -> list[dict[str, Any]]:
        return self.rows

    def inspect_image(self, ref: str) -> dict[str, Any]:
        raise AssertionError("nothing here is root's")


class Engine:
    def __init__(self) -> None:
        self.api = Api()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingContext:
    made, docker = RecordingContext(tmp_path), Engine()
    monkeypatch.setattr(made, "docker", lambda: docker)
    return made


def container(context: RecordingContext, key: str) -> dict[str, Any]:
    source = str(compile_caches.folder(context, key) / "files")
    return {"Id": "c" * 64, "HostConfig": {"Mounts": [{"Type": "bind", "Source": source, "Target": MOUNT}]}}


def made(context: RecordingContext, key: str, *, size: int = 4096, used_s: float = 0.0) -> Path:
    """A cache that a verified server left."""
    files = compile_caches.folder(context, key) / "files"
    files.mkdir(parents=True)
    (files / "graph").write_bytes(b"x" * size)
    context.state.write(f"compile_caches/{key}", {"container": "qwen35", "proved": True, "used_s": used_s})
    return files


def test_what_no_variable_moves_is_mounted_by_itself_and_outlives_a_move(context: RecordingContext) -> None:
    """Inductor's header: Docker starts no container of which a mount's source is gone."""
    spec = ContainerSpec(name="qwen35", image="vllm@sha256:1", labels={engine.LABEL: "vllm"}, caches=ONE)
    mounts = compile_caches.created(context, spec, {"Id": "sha256:1"})["Mounts"]
    sources = {one["Target"]: Path(one["Source"]) for one in mounts}
    header = sources["/tmp/torchinductor_root"]
    assert header.parent == sources[MOUNT]
    found = {"Id": "c" * 64, "HostConfig": {"Mounts": mounts}}
    compile_caches.before_start(context, found)
    assert not compile_caches.started_warm(context, found)
    (header / "header.gch").write_text("")
    compile_caches.before_start(context, found)  # nobody verified the first start
    assert header.is_dir() and not any(header.iterdir())
    assert (compile_caches.folder(context, ONE) / "aside/inductor_headers/header.gch").exists()


def test_the_first_start_is_cold_and_the_one_after_a_verified_one_is_warm(context: RecordingContext) -> None:
    server = container(context, ONE)
    compile_caches.before_start(context, server)
    assert not compile_caches.started_warm(context, server)
    (compile_caches.folder(context, ONE) / "files/graph").write_text("compiled")
    compile_caches.verified(context, server)
    compile_caches.before_start(context, server)
    assert compile_caches.started_warm(context, server)


def test_what_a_start_that_was_never_verified_left_is_moved_aside(context: RecordingContext) -> None:
    server = container(context, ONE)
    compile_caches.before_start(context, server)
    (compile_caches.folder(context, ONE) / "files/graph").write_text("half")
    compile_caches.before_start(context, server)
    assert not compile_caches.started_warm(context, server)
    assert (compile_caches.folder(context, ONE) / "aside/graph").read_text() == "half"
    assert any("moved aside" in one.get("text", "") for one in context.said)


def test_the_folder_is_open_to_the_container_and_to_nobody_else(context: RecordingContext) -> None:
    compile_caches.before_start(context, container(context, ONE))
    at = compile_caches.folder(context, ONE)
    assert at.stat().st_mode & 0o777 == 0o700
    assert (at / "files").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("key", ["", "..", "../../etc", "1" * 31, "1" * 32 + "/..", "G" * 32])
def test_a_key_that_is_none_is_no_path(context: RecordingContext, key: str) -> None:
    with pytest.raises(Failed):
        compile_caches.folder(context, key)


def test_another_folder_at_the_same_place_is_not_taken_for_a_cache(context: RecordingContext) -> None:
    server = {"HostConfig": {"Mounts": [{"Source": "/srv/mine", "Target": MOUNT}]}}
    assert compile_caches.mounted(server) == ""


def test_the_bound_drops_what_was_move_aside_then_the_oldest_never_what_is_in_use(context: RecordingContext) -> None:
    oldest = made(context, ONE, size=3 * 2**20, used_s=1.0)
    newer = made(context, OTHER, size=3 * 2**20, used_s=2.0)
    used = made(context, "3" * 32, size=3 * 2**20, used_s=0.5)
    (newer.parent / "aside").mkdir()
    (newer.parent / "aside/graph").write_bytes(b"x" * 3 * 2**20)
    context.docker().api.rows = [{"Names": ["/qwen35"], "Mounts": [{"Source": str(used)}]}]  # type: ignore[attr-defined]

    cache_removal.within(context, 10 / 1024)
    assert oldest.exists() and newer.exists() and not (newer.parent / "aside").exists()
    cache_removal.within(context, 7 / 1024)
    assert not oldest.parent.exists() and newer.exists()
    cache_removal.within(context, 1 / 1024)
    assert used.exists() and not newer.exists()
    assert "`caches_gib` sets the bound" in context.said[-1]["text"]


def test_the_caches_of_an_image_go_with_it(context: RecordingContext) -> None:
    for key, image in ((ONE, "sha256:a"), (OTHER, "sha256:b")):
        made(context, key)
        context.state.write(f"compile_caches/{key}", {"image_id": image, "proved": True})
    cache_removal.with_image(context, {"sha256:a"})
    assert compile_caches.keys(context) == [OTHER]
    assert compile_caches.read(context.state, ONE).image_id == ""


def test_the_cache_of_the_state_that_a_rollback_goes_to_stays(context: RecordingContext) -> None:
    made(context, ONE)
    made(context, OTHER)
    spec = {"name": "qwen35", "image": "i"}
    context.state.write("verified", {"spec": {**spec, "caches": ONE}})
    context.state.write("verified_before", {"states": [{"spec": {**spec, "caches": OTHER}}]})
    assert {row.key: row.kept for row in cache_removal.rows(context)} == {
        ONE: "the last verified state",
        OTHER: "the state before it, for a rollback",
    }


def test_every_value_makes_another_key() -> None:
    base = {"image": "sha256:a", "model": ["m", "c"], "flags": {"x": 1}}
    others = [{**base, "image": "sha256:b"}, {**base, "model": ["m", "d"]}, {**base, "flags": {"x": 2}}]
    assert len({key_of(one) for one in (base, *others)}) == 4


def test_of_the_engines_only_vllm_is_known_to_compile_at_its_start() -> None:
    assert {name for name in engine.TITLES if engine.of(name).caches} == {"vllm"}


def test_an_engine_without_caches_gets_no_mount(context: RecordingContext) -> None:
    spec = ContainerSpec("x", "i", labels={engine.LABEL: "llama_cpp"}, caches=ONE)
    assert compile_caches.created(context, spec, {"Id": "sha256:a"}) == {}
