from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class BenchFailed(Module["BenchFailed.Args"]):
    """Write down that an arm could not be measured, and why; the experiment goes on with the others.

    Returns: arm, why.
    """

    @dataclass(frozen=True)
    class Args:
        arm: str = arg("which arm")
        why: str = arg("what happened, a sentence")

    def run(self, args: Args, context: Context) -> Result:
        return Result(msg=f"arm {args.arm} skipped: {args.why}", data={"arm": args.arm, "why": args.why})
