from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.module import Context, Module
from sparkwright.host.records import cells
from sparkwright.protocol.result import Result, arg


class BenchCells(Module["BenchCells.Args"]):
    """List the cells of an experiment that are finished on this host. It changes nothing.

    Returns: cells (the finished ones by key).
    """

    @dataclass(frozen=True)
    class Args:
        series: str = arg("the experiment")
        keys: list[str] = arg("the cells that are asked for", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        found = cells.found(context.state, args.series, args.keys)
        return Result(msg=f"{len(found)} of {len(args.keys)} are finished", data={"cells": found})
