from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib

DROP = "/proc/sys/vm/drop_caches"


class PageCache(Module["PageCache.Args"]):
    """The page cache holds no more of the model's files: on shared memory CUDA counts it as taken.

    As root (`become: true`) the kernel drops all its clean pages. Without root the kernel is advised to drop the pages
    of the model's files, file by file; what of them was not written to the disk yet is written first. Pages that a running
    process has mapped stay. It changes nothing that anybody can notice but memory and the time of the next read.

    Returns: how (dropped or advised), freed_bytes (by which the page cache shrank), files.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        model_dir: str = arg("the folder of the model's files", default="")

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="page cache is dropped")
        before = context.machine.meminfo().get("Cached", 0)
        if os.geteuid() == 0 and not context.machine.root and _drop():
            how, files = "dropped", 0
        else:
            how, files = "advised", advise_away(context.machine.expand(args.model_dir)) if args.model_dir else 0
        freed = max(0, before - context.machine.meminfo().get("Cached", 0))
        return Result(msg=f"{gib(freed)} GiB dropped", data={"how": how, "freed_bytes": freed, "files": files})


def _drop() -> bool:
    """As root: `sync; echo 3 > drop_caches`. False where that is not allowed (a container without the right)."""
    os.sync()
    try:
        Path(DROP).write_text("3\n")
    except OSError:
        return False
    return True


def advise_away(folder: Path) -> int:
    """Let the kernel forget the cached pages of all files under a folder. Needs no root. Returns how many files."""
    count = 0
    for path in filter(Path.is_file, folder.rglob("*")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.fdatasync(file.fileno())  # dirty pages are not forgotten
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count += 1
    return count
