from __future__ import annotations

from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class Fail(Module["Fail.Args"]):
    """Fail on purpose, with a sentence: the end of a rescue that put things right but must not be green.

    Or refuse on purpose (`refused`), before anything was touched: then the run ends with 5.
    """

    @dataclass(frozen=True)
    class Args:
        msg: str = arg("the message the run ends with")
        refused: bool = arg("exit with 5 (refused) if the run changed nothing", default=False)

    def run(self, args: Args, context: Context) -> Result:
        del context
        return Result(failed=True, msg=args.msg, exit=Exit.REFUSED if args.refused else None)
