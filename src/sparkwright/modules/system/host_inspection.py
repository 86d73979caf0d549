"""Modules that check a host, fix its setup, and list its hardware, servers and models."""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.doctor.checks import memory, run_checks
from sparkwright.doctor.host import FIXES, Host, IntendedServer, format_counts
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import running_server
from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, Module
from sparkwright.host.records import verified_states
from sparkwright.modules.system.facts import Facts
from sparkwright.protocol.result import Result, arg
from sparkwright.shell import join
from sparkwright.units import GIB
from sparkwright.visible import format_count

FIX_TIMEOUT_S = 120.0

SURVEY_FACTS = (
    *("user", "hostname", "architecture", "os", "memory_bytes", "memory_available_bytes", "disk_free_bytes", "gpu"),
    *("docker", "ollama", "sandbox"),
)


class Doctor(Module["Doctor.Args"]):
    """Check that the host is ready to serve. Makes no changes and does not need root.

    Checks the operating system with its driver and kernel, the GPU, memory and disk, the network, and services such as Docker
    and Ollama; if the host has a recipe, also what its server needs. docs/doctor.md lists every check. A value that cannot be
    read is `unknown`, never `ok`.

    Returns: findings (check; verdict: ok, warning, bad or unknown; evidence; fix: a command; source; repair: the name of the
    fix for the module `fix`), user, now_s (the host's clock, seconds since the epoch), budget (memory budget of the recipe's
    server; null without a recipe). Never fails.
    """

    @dataclass(frozen=True)
    class Args:
        host: str = arg("the host's name, for the fix commands", default="")
        recipe: str = arg("name of its recipe; empty: none", default="")
        container: str = arg("the server's container", default="")
        port: int = arg("the server's port; 0: none", default=0)
        image: str = arg("the recipe's image", default="")
        platforms: list[str] | None = arg("the image's platforms according to spark.lock; null: unknown", default=None)
        utilization: float | None = arg("the share of memory that the engine allocates, 0 to 1", default=None)
        reserve_gib: float = arg(
            "memory that must stay free besides the memory that the engine allocates, in GiB",
            default=defaults.RESERVE_GIB,
        )
        ipc: str = arg("the container's --ipc", default="")
        model_dir: str = arg("the model's folder", default="")
        engine_memory: dict[str, Any] = arg("the server's memory use", default_factory=dict)
        ollama: str = arg("how a deploy treats Ollama: unload, stop, leave", default="")

    def run(self, args: Args, context: Context) -> Result:
        intended_server = IntendedServer(
            name=args.host,
            recipe=args.recipe,
            container=args.container,
            port=args.port,
            image=args.image,
            platforms=None if args.platforms is None else tuple(args.platforms),
            utilization=args.utilization,
            reserve_bytes=int(args.reserve_gib * GIB),
            ipc=args.ipc,
            model_dir=args.model_dir,
            engine_memory=args.engine_memory,
            ollama=args.ollama,
        )
        user = getpass.getuser()
        host = Host(context, user, intended_server)
        findings = run_checks(host)
        rows = [finding.to_json() for finding in findings]
        budget = memory.server_budget(host)
        data = {"findings": rows, "user": user, "now_s": time.time(), "budget": budget.to_json() if budget else None}
        return Result(msg=format_counts(finding.verdict for finding in findings), data=data)


class Fix(Module["Fix.Args"]):
    """Apply one of the safe fixes of `doctor`, by name. Needs root (`become`).

    Fixes are idempotent, neither install nor upgrade packages, and never restart the Docker Engine.

    Returns: command (the command that was run). Fails with the command's error message. Refuses an unknown name.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("name of the fix, from the field `repair` of a finding of `doctor`")
        user: str = arg("the ssh user on this host")

    def run(self, args: Args, context: Context) -> Result:
        fix = FIXES.get(args.name)
        if fix is None:
            raise Refused(f"unknown fix {args.name!r}.", fix=f"Known fixes: {', '.join(FIXES)}.")
        if context.machine.sandbox:
            raise Refused("fixes are not available for a sandbox: they would change the machine that it runs on.")
        argv = fix.command(args.user)
        data = {"command": join(argv)}
        if context.check:
            return Result(changed=True, msg=fix.description, data=data)
        result = context.machine.run(argv, timeout_s=FIX_TIMEOUT_S)
        if not result.ok:
            last_line = (result.err.strip() or result.out.strip() or f"exit code {result.code}").splitlines()[-1]
            manual_fix = f"On the host: `{fix.manual_command(args.user)}`."
            raise Failed(f"{args.name}: `{join(argv)}` failed: {last_line[-300:]}", fix=manual_fix)
        return Result(changed=True, msg=fix.description, data=data)


class Survey(Module["Survey.Args"]):
    """List the hardware, Docker, Ollama, existing servers and models of a host, before the first deploy.

    Makes no changes and does not need root. A container counts as a server if it answers a request for its list of models
    (OpenAI's API). A folder counts as a model by its name or location alone; a deploy verifies its contents.

    Returns: user, hostname, architecture, os, memory_bytes, memory_available_bytes, disk_free_bytes, gpu, docker, ollama,
    sandbox (as in `facts`), servers (name, image, engine, port, models, model_dir, verified: it is the last verified server),
    models (id; dir; place: "own" if dir is the one in `dirs`, otherwise "folder" or "hub cache"; size_bytes).
    """

    @dataclass(frozen=True)
    class Args:
        ids: list[str] = arg("models to find, by their names on the hub", default_factory=list)
        dirs: list[str] = arg(
            "folder of each model, as given in its recipe; ~ is the user's home", default_factory=list
        )

    def run(self, args: Args, context: Context) -> Result:
        if len(args.ids) != len(args.dirs):
            raise Failed("ids and dirs must have the same length.")
        facts = Facts().run(Facts.Args(), context).data
        servers = _list_servers(context) if facts["docker"]["reachable"] else []
        models = [asdict(model) for model in model_folders.find_on_disk(context.machine, args.ids, args.dirs)]
        data = {**{name: facts[name] for name in SURVEY_FACTS}, "servers": servers, "models": models}
        msg = f"{format_count(len(servers), 'server')}, {format_count(len(models), 'model')} on disk"
        return Result(msg=msg, data=data)


def _list_servers(context: Context) -> list[dict[str, Any]]:
    verified_id = verified_states.load_last(context.state).container_id
    rows = [asdict(server) for server in running_server.list_servers(context)]
    return [{"verified": row.pop("id") == verified_id, **row} for row in rows]
