from __future__ import annotations

import time
from dataclasses import dataclass

from sparkwright.host.memory import footprint, holders
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import GIB, gib

POLL_S = 0.1
#: memory that other programs may take meanwhile: for a small server it is more than the tolerance
OTHERS_BYTES = GIB // 2
#: if the server's memory was not recorded: time without a release after which all of it counts as released
SETTLED_S = 1.0
RISE_BYTES = 64 * 2**20


class WaitMemoryReleased(Module["WaitMemoryReleased.Args"]):
    """The memory of the stopped server is available again: MemAvailable rose by as much, within a tolerance.

    What it held was recorded when it was verified; where it was not, this waits until no more is released. On shared memory a
    CUDA context, or what the driver leaks, can outlive its process; so this waits, and names who holds what is missing. It does
    not fail: whether the next server fits is for `memory` to say, and what a driver has leaked would keep the previous server out
    just as well.

    Returns: back (false: some is missing; null: nothing to compare with), missing_bytes, waited_s, holders.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        tolerance: float = arg("share of its memory that may stay unreleased, 0 to 1", default=0.05)
        timeout_s: float = arg("how long to wait for memory to be released, seconds", default=30.0)

    def run(self, args: Args, context: Context) -> Result:
        stopped = footprint.stopped_now(context)
        held = stopped.get("held_bytes")
        if context.check or not stopped:
            return Result(msg="nothing was stopped", data=_data(None))
        if not held:
            back, waited_s = _settled(context, int(stopped["available_bytes"]), args.timeout_s)
            return Result(msg=f"not recorded; {gib(back)} GiB released", data=_data(None, waited_s=waited_s))
        wanted = int(stopped["available_bytes"] + held - max(held * args.tolerance, OTHERS_BYTES))
        started_s = time.monotonic()
        while True:
            available = context.machine.meminfo()["MemAvailable"]
            waited_s = round(time.monotonic() - started_s, 2)
            if available >= wanted:
                return Result(msg=f"{gib(held)} GiB", data=_data(True, waited_s=waited_s))
            if waited_s > args.timeout_s:
                break
            context.progress(max(0, available - stopped["available_bytes"]), held, unit="bytes", text="released")
            time.sleep(POLL_S)
        missing = stopped["available_bytes"] + held - available
        rows = holders.inspect(context)
        msg = f"{gib(missing)} of the {gib(held)} GiB it held not released within {args.timeout_s:g} s"
        context.note(msg)
        for line in holders.table(rows):
            context.note(line)
        return Result(msg=msg, data={**_data(False, missing, waited_s), "holders": rows})


def _settled(context: Context, before: int, timeout_s: float) -> tuple[int, float]:
    """Wait until no more memory is released: the next server's use is measured from there.

    Returns the released bytes, and the seconds waited.
    """
    started_s = rose_s = time.monotonic()
    highest = before
    while True:
        available, now_s = context.machine.meminfo()["MemAvailable"], time.monotonic()
        if available > highest + RISE_BYTES:
            highest, rose_s = available, now_s
        if now_s - rose_s >= SETTLED_S or now_s - started_s >= timeout_s:
            return max(0, available - before), round(now_s - started_s, 2)
        time.sleep(POLL_S)


def _data(back: bool | None, missing: int = 0, waited_s: float = 0.0) -> dict[str, object]:
    return {"back": back, "missing_bytes": missing, "waited_s": waited_s}
