from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.host.memory import memory_fit
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib

DROP = "/proc/sys/vm/drop_caches"


class PageCache(Module["PageCache.Args"]):
    """The page cache holds no more of the model's files: on shared memory CUDA counts it as taken.

    As root (`become: true`) the kernel drops all its clean pages. Without root the kernel is advised to drop the pages
    of the model's files, file by file; what of them was not written to the disk yet is written first. Pages that a running
    process has mapped stay. It changes nothing that anybody can notice but memory and the time of the next read.

    `policy: fit` keeps it where the server fits beside it: MemFree alone, without what the kernel would give back, must hold what
    the engine needs and the reserve. The next load then reads from memory.

    Returns: how (dropped, advised or kept), freed_bytes (by which the page cache shrank), files.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        model_dir: str = arg("the folder of the model's files", default="")
        models: list[dict[str, Any]] = arg(
            "further models of the server, each with its folder `dir`", default_factory=list
        )
        policy: Literal["drop", "fit"] = arg("fit: only where the server does not fit beside it", default="drop")
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1; for `fit`", default=0.0)
        needs_bytes: int = arg("what an engine without such a share takes, bytes; for `fit`", default=0)
        engine_memory: dict[str, Any] = arg("the same, as `engine_memory` in scope has it", default_factory=dict)
        reserve_gib: float = arg("memory that must stay free beside it, GiB; for `fit`", default=defaults.RESERVE_GIB)

    def run(self, args: Args, context: Context) -> Result:
        if args.policy == "fit" and (room := _room(args, context)):
            return Result(msg=room, data={"how": "kept", "freed_bytes": 0, "files": 0})
        if context.check:
            return Result(msg="page cache is dropped")
        before = context.machine.meminfo().get("Cached", 0)
        if os.geteuid() == 0 and not context.machine.root and _drop():
            how, files = "dropped", 0
        else:
            folders = [folder for folder in (args.model_dir, *(str(model["dir"]) for model in args.models)) if folder]
            how, files = "advised", sum(advise_away(context.machine.expand(folder)) for folder in folders)
        freed = max(0, before - context.machine.meminfo().get("Cached", 0))
        return Result(msg=f"{gib(freed)} GiB dropped", data={"how": how, "freed_bytes": freed, "files": files})


def _room(args: PageCache.Args, context: Context) -> str:
    """Return a message with the memory that is free beside the page cache, if the server fits into it.

    Empty if it does not fit, or if its need is unknown.
    """
    server = Server.of("", args.engine_memory, args.utilization, args.needs_bytes)
    found = memory_fit.of(context, server, args.reserve_gib)
    need = found.need_bytes
    free = context.machine.meminfo().get("MemFree", 0)
    if not found.of("server") or free < need:
        return ""
    return f"kept: {gib(free)} GiB are free beside it, {gib(need)} GiB needed"


def _drop() -> bool:
    """Run `sync; echo 3 > drop_caches` as root. Returns False where that is not allowed (a container without the right)."""
    os.sync()
    try:
        Path(DROP).write_text("3\n")
    except OSError:
        return False
    return True


def advise_away(folder: Path) -> int:
    """Drop the cached pages of all files under a folder; needs no root. Returns the number of files."""
    count = 0
    for path in filter(Path.is_file, folder.rglob("*")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fdatasync(file.fileno())  # dirty pages are not forgotten
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count += 1
    return count
