"""The `fail` module."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.modules.base import Context, Module, Result, arg


class Fail(Module["Fail.Args"]):
    """Fail on purpose, with a sentence: the end of a rescue that put things right but must not be green."""

    @dataclass(frozen=True)
    class Args:
        msg: str = arg("the sentence the run ends with")

    def run(self, args: Args, context: Context) -> Result:
        del context
        return Result(failed=True, msg=args.msg)
