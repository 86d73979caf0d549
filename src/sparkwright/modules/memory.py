"""The `memory` module."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Exit
from sparkwright.modules import holders
from sparkwright.modules.base import Context, Module, Result, arg

POLL_S = 0.25
GIB = 2**30


class Memory(Module["Memory.Args"]):
    """The memory that the engine will want is free, seen in MemAvailable: nothing else is believed on shared memory.

    The engine wants utilization x MemTotal. A container that was stopped, or a model that Ollama let go, gives its memory
    back a little later, so this waits; page cache of the weight files is advised away. What still does not fit is refused
    with a table of who holds the memory and what frees it.

    Returns: available_bytes, need_bytes, waited_s; on a refusal holders.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1")
        reserve_gib: float = arg("what must stay free beside it, GiB", default=4.0)
        timeout_s: float = arg("how long memory may take to come back, seconds", default=60.0)
        model_dir: str = arg("folder whose page cache may be dropped", default="")

    def run(self, args: Args, context: Context) -> Result:
        total = context.machine.meminfo()["MemTotal"]
        need = int(args.utilization * total)
        wanted = need + int(args.reserve_gib * GIB)
        started_s = time.monotonic()
        if wanted > total:
            return Result(failed=True, exit=Exit.REFUSED, msg=_never_fits(need, total, args.reserve_gib), fix=_LOWER)
        dropped = False
        while True:
            available = context.machine.meminfo()["MemAvailable"]
            waited_s = time.monotonic() - started_s
            data = {"available_bytes": available, "need_bytes": need, "waited_s": round(waited_s, 2)}
            if available >= wanted:
                return Result(msg=f"{available / GIB:.1f} GiB available, the engine takes {need / GIB:.1f}", data=data)
            if not dropped and args.model_dir:
                drop_page_cache(context.machine.expand(args.model_dir))
                dropped = True
            if context.check or waited_s > args.timeout_s:
                return self._refuse(context, data, wanted)
            context.progress(available, wanted, unit="bytes", text="waiting for memory to come back")
            time.sleep(POLL_S)

    @staticmethod
    def _refuse(context: Context, data: dict[str, Any], wanted: int) -> Result:
        rows = holders.look(context)
        available = data["available_bytes"]
        msg = f"{wanted / GIB:.1f} GiB are needed and {available / GIB:.1f} GiB are available."
        evidence = [f"{row['bytes'] / GIB:6.1f} GiB  {row['holder']}  ({row['frees']})" for row in rows]
        return Result(failed=True, msg=msg, fix=_LOWER, data={**data, "holders": rows, "evidence": evidence})


_LOWER = "Free what holds it, or lower the recipe's share of memory."


def drop_page_cache(folder: Any) -> None:
    """Let the kernel forget cached pages of these files: they count against the GPU on shared memory. Needs no root."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _never_fits(need: int, total: int, reserve_gib: float) -> str:
    return f"the engine would take {need / GIB:.1f} of {total / GIB:.1f} GiB, and {reserve_gib:g} GiB are to stay free."
