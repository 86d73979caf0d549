"""The page cache of a model's files is kept before a start only under a condition."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.modules.model.model_files import PageCache
from sparkwright.units import GIB
from tests.modules.context import RecordingContext


@pytest.mark.parametrize(
    ("policy", "free_gib", "action"),
    [("drop", 119, "advised"), ("fit", 119, "kept"), ("fit", 100, "advised")],
)
def test_page_cache_is_kept_only_if_the_server_fits_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, free_gib: int, action: str
) -> None:
    context = RecordingContext(tmp_path)
    memory = {"MemTotal": 120 * GIB, "MemFree": free_gib * GIB, "MemAvailable": 119 * GIB, "Cached": 9 * GIB}
    monkeypatch.setattr(type(context.machine), "meminfo", lambda _: memory)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (tmp_path / "one.safetensors").write_bytes(b"x")
    args = PageCache.Args(model_dir=str(tmp_path), policy=policy, utilization=0.85, reserve_gib=4)
    assert PageCache().run(args, context).data["how"] == action


def test_page_cache_is_dropped_if_the_need_is_unknown(tmp_path: Path) -> None:
    args = PageCache.Args(model_dir=str(tmp_path), policy="fit")
    assert PageCache().run(args, RecordingContext(tmp_path)).data["how"] in ("advised", "dropped")
