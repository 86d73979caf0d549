"""Modules of the lab, which measure an experiment's cells (one load on one arm) and remove the containers of its arms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkwright import defaults
from sparkwright.errors import Refused
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels, containers, lifecycle, ownership, server_key
from sparkwright.host.memory import holders
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import baselines, verified_states
from sparkwright.host.runs import lock
from sparkwright.measure import lab
from sparkwright.measure.http_probe import Target
from sparkwright.measure.workload import Load
from sparkwright.protocol.container import LAB_LABEL
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.units import GIB

#: advice after the memory guard stopped the server
SMALLER_LOAD_FIX = (
    "Use a smaller `--depth`, or start the server with a shorter context or a smaller share of the memory."
)


class Bench(Module["Bench.Args"]):
    """Send one load of an experiment to a server, measure it, and store the result on the host as a cell.

    Prompts begin with fresh random text; a warm-up request for each class of prompt lengths is not counted. Token counts
    come from the stream's usage figures. A cell already finished in the same series is not measured again.

    Other traffic before the measurement makes it inconclusive (exit code 4). A doubtful cell (server counters that differ by
    more than 1 %, prompts answered from a cache, a GPU held at a low clock) is reported but not stored, so the next command
    measures it again.

    A load of kind `depth` is sent under the memory guard (docs/memory.md), which kills the server before the host runs out
    of memory.

    Returns: cell (docs/lab.md; figures with units in their names), kept (whether it was measured before).
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        load: dict[str, Any] = arg("the load: its kind and the parameters of that kind (docs/lab.md)")
        series: str = arg("name of the experiment")
        key: str = arg("the cell's name in its series")
        arm: str = arg("name of the arm in the experiment", default="")
        repetition: int = arg("number of the repetition of this load on this arm, from 1", default=1)
        timeout_s: float = arg("maximum time between two tokens of a stream, seconds", default=600.0)
        idle_s: float = arg("time limit for other requests to finish, seconds", default=10.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        load = _parse_load(args.load)
        if context.check:
            return Result(msg=f"would measure {load.kind}")
        earlier_cell = baselines.read_cell(context.state, args.series, args.key)
        if earlier_cell is not None:
            return Result(
                msg=f"measured before: {lab.describe_cell(earlier_cell)}", data={"cell": earlier_cell, "kept": True}
            )
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        http = container_labels.engine_at(context, args.base_url).http
        target = Target(http, args.base_url, args.model, key, args.timeout_s)
        with (
            lock.acquire_measurement(context.state, context.run_id, "a benchmark", note=context.note),
            _guard_server(args, load, context) if load.kind == "depth" else contextlib.nullcontext() as memory,
        ):
            measurement = lab.measure_load(
                target,
                load,
                idle_s=args.idle_s,
                sample_gpu=lambda: nvidia_smi.sample_gpu(context.machine),
                report_progress=lambda done, total, text: context.progress(done, total, text=text),
            )
        if memory is not None:
            measurement["derived"] |= {"lowest_available_gib": round(memory.lowest_bytes / GIB, 3)}
        fields = {"key": args.key, "arm": args.arm, "repetition": args.repetition, "load": load.result_fields}
        cell = {**fields, **measurement}
        if cell["verdict"] == "measured":
            baselines.write_cell(context.state, args.series, args.key, cell)
        for doubt in (*cell["doubts"], *cell["notes"]):
            context.note(doubt)
        return Result(msg=lab.describe_cell(cell), data={"cell": cell, "kept": False})


@dataclass
class _LowestMemory:
    """The lowest MemAvailable of the host while a load is served."""

    lowest_bytes: int


@contextlib.contextmanager
def _guard_server(args: Bench.Args, load: Load, context: Context) -> Iterator[_LowestMemory]:
    """Guard a server's container while it serves a load that may use up the memory; see host/memory/start_guard.py."""
    available_bytes = context.machine.meminfo()["MemAvailable"]
    memory = _LowestMemory(available_bytes)
    container = containers.find_by_port(context.docker(), urlsplit(args.base_url).port)
    if container is None:
        context.note("the memory is not guarded: no running container publishes the port")
        yield memory
    else:
        context.guards.expect(None)
        context.guards.advice = SMALLER_LOAD_FIX
        context.guards.begin(context.machine, context.state, context.run_id, container, activity="serving")
        context.guards.set_process(container)
        context.guards.set_stage(f"{load.concurrency} x {load.prompt_tokens} tokens")
        try:
            yield memory
        finally:
            lowest = context.guards.end_verified()
            if lowest is not None:
                memory.lowest_bytes = min(available_bytes, lowest.lowest_bytes)
    memory.lowest_bytes = min(memory.lowest_bytes, context.machine.meminfo()["MemAvailable"])


def _parse_load(data: dict[str, Any]) -> Load:
    try:
        return Load.from_json(data)
    except (TypeError, ValueError) as error:
        raise Refused(f"bench.load: {error}.") from None


class BenchCells(Module["BenchCells.Args"]):
    """List the finished cells of an experiment on this host. Changes nothing.

    Returns: cells (by key; with the arms' settings, by `settings`).
    """

    @dataclass(frozen=True)
    class Args:
        series: str = arg("name of the experiment")
        keys: list[str] = arg("only these cells", default_factory=list)
        settings: list[str] = arg("keys of the arms' settings, which are not cells of their own", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        cells = baselines.read_cells(context.state, args.series, [*args.keys, *args.settings])
        finished_count = len(cells.keys() - set(args.settings))
        return Result(msg=f"{finished_count} of {len(args.keys)} are finished", data={"cells": cells})


class BenchFailed(Module["BenchFailed.Args"]):
    """Record that an arm could not be measured, and why; the experiment continues with the other arms.

    Returns: arm, why.
    """

    @dataclass(frozen=True)
    class Args:
        arm: str = arg("name of the arm")
        why: str = arg("what happened, in one sentence")

    def run(self, args: Args, context: Context) -> Result:
        return Result(msg=f"arm {args.arm} skipped: {args.why}", data={"arm": args.arm, "why": args.why})


class ClearArm(StateModule["ClearArm.Args", dict[str, Any]]):
    """Remove the lab's container with this name; any other container is kept.

    The lab's containers have the label sparkwright.bench. The last verified container is always kept, because a deploy
    may have adopted an arm.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg(
            "how long it may take to stop before it is killed, seconds", default=defaults.STOP_TIMEOUT_S
        )

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        container = containers.inspect(context.docker(), args.name) or {}
        is_verified = container.get("Id") == verified_states.load_last(context.state).container_id
        return container if ownership.is_ours(context, container) and not is_verified else {}

    def differences(self, args: Args, observed: dict[str, Any]) -> list[Change]:
        labels = (observed.get("Config") or {}).get("Labels") or {}
        return [Change("container", f"{args.name} (arm {labels[LAB_LABEL]})", None)] if LAB_LABEL in labels else []

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        holders.record_stop(context, observed)
        lifecycle.remove(context, observed, args.stop_timeout_s)
        return {}
