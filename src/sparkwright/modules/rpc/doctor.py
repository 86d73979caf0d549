from __future__ import annotations

import getpass
import time
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.doctor.checks import memory
from sparkwright.doctor.examine import examine, sentence
from sparkwright.doctor.host import Host, Wanted
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import GIB


class Doctor(Module["Doctor.Args"]):
    """Check one by one that the host is ready to serve. Changes nothing, and needs no root.

    Looks at: DGX OS and its update, memory, driver and firmware, kernel, Docker for this very login and at boot, container
    toolkit and CDI specification, what a logout takes away, locale, names, the recipe's memory budget, earlyoom against the
    recipe, swap, disk, clock, the server's port, other starts of it, Ollama, the image's platform. What can't be seen is
    `unknown`, never `ok`.

    Returns: findings (check, verdict ok/warning/bad/unknown, evidence, fix: one command, source, repair), user, now_s (the host's
    clock, seconds since the epoch), budget (of the recipe's server here; null without one). It never fails: the findings are the
    answer.
    """

    @dataclass(frozen=True)
    class Args:
        host: str = arg("the host's name, for the fix commands", default="")
        recipe: str = arg("what it is to serve; empty: nothing", default="")
        container: str = arg("the server's container", default="")
        port: int = arg("the server's port; 0: none", default=0)
        image: str = arg("the recipe's image", default="")
        platforms: list[str] | None = arg("of the image, as the lock knows them; null: it does not", default=None)
        utilization: float | None = arg("the share of memory that the engine takes", default=None)
        reserve_gib: float = arg("memory that must stay free beside the engine, GiB", default=defaults.RESERVE_GIB)
        ipc: str = arg("the container's --ipc", default="")
        model_dir: str = arg("where the model lies", default="")
        engine_memory: dict[str, Any] = arg("what the server takes of the memory", default_factory=dict)
        ollama: str = arg("what a deploy does with Ollama: unload, stop, leave", default="")

    def run(self, args: Args, context: Context) -> Result:
        same = ("recipe", "container", "port", "image", "utilization", "ipc", "model_dir", "ollama", "engine_memory")
        given = {name: getattr(args, name) for name in same}
        platforms = None if args.platforms is None else tuple(args.platforms)
        reserve_bytes = int(args.reserve_gib * GIB)
        wanted = Wanted(name=args.host, platforms=platforms, reserve_bytes=reserve_bytes, **given)
        user = getpass.getuser()
        host = Host(context, user, wanted)
        found = examine(host)
        rows = [finding.to_json() for finding in found]
        budget = memory.of_host(host)
        data = {"findings": rows, "user": user, "now_s": time.time(), "budget": budget.to_json() if budget else None}
        return Result(msg=sentence(found), data=data)
