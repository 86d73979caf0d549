"""Modules that report on a host: its checks and their fixes, and what it has."""

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


class Doctor(Module["Doctor.Args"]):
    """Check that the host is ready to serve. Changes nothing, and needs no root.

    Checks: DGX OS and its updates, memory, driver and firmware, kernel, Docker for this login and at boot, container toolkit
    and CDI specification, effects of a logout, locale, names, the recipe's memory budget, earlyoom against the recipe, swap,
    disk, clock, the server's port, its other start mechanisms, Ollama, the image's platform. What cannot be read is
    `unknown`, never `ok`.

    Returns: findings (check, verdict ok/warning/bad/unknown, evidence, fix: one command, source, repair), user, now_s (the
    host's clock, seconds since the epoch), budget (of the recipe's server here; null without a recipe). It never fails: the
    findings are the result.
    """

    @dataclass(frozen=True)
    class Args:
        host: str = arg("the host's name, for the fix commands", default="")
        recipe: str = arg("name of its recipe; empty: none", default="")
        container: str = arg("the server's container", default="")
        port: int = arg("the server's port; 0: none", default=0)
        image: str = arg("the recipe's image", default="")
        platforms: list[str] | None = arg("platforms of the image in the lock; null: unknown", default=None)
        utilization: float | None = arg("the share of memory that the engine takes", default=None)
        reserve_gib: float = arg(
            "memory that must stay free in addition to the engine's, GiB", default=defaults.RESERVE_GIB
        )
        ipc: str = arg("the container's --ipc", default="")
        model_dir: str = arg("the model's folder", default="")
        engine_memory: dict[str, Any] = arg("the server's memory use", default_factory=dict)
        ollama: str = arg("how a deploy treats Ollama: unload, stop, leave", default="")

    def run(self, args: Args, context: Context) -> Result:
        argument_names = (
            "recipe",
            "container",
            "port",
            "image",
            "utilization",
            "ipc",
            "model_dir",
            "ollama",
            "engine_memory",
        )
        values = {name: getattr(args, name) for name in argument_names}
        platforms = None if args.platforms is None else tuple(args.platforms)
        reserve_bytes = int(args.reserve_gib * GIB)
        intended = IntendedServer(name=args.host, platforms=platforms, reserve_bytes=reserve_bytes, **values)
        user = getpass.getuser()
        host = Host(context, user, intended)
        findings = run_checks(host)
        rows = [finding.to_json() for finding in findings]
        budget = memory.server_budget(host)
        data = {"findings": rows, "user": user, "now_s": time.time(), "budget": budget.to_json() if budget else None}
        return Result(msg=format_counts(finding.verdict for finding in findings), data=data)


COMMAND_S = 120.0


class Fix(Module["Fix.Args"]):
    """Apply one of the safe fixes of `doctor`, by name. Needs root (`become`).

    It never installs or upgrades a package and never restarts an engine; fixes are idempotent.

    Returns: command (that was run). Fails with the command's own message, and refuses an unknown name.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("name of the fix in a finding of `doctor`")
        user: str = arg("the ssh user on this host")

    def run(self, args: Args, context: Context) -> Result:
        fix = FIXES.get(args.name)
        if fix is None:
            raise Refused(f"unknown fix {args.name!r}.", fix=f"Known fixes: {', '.join(FIXES)}.")
        if context.machine.sandbox:
            raise Refused("fixes are not applied to a sandbox: its programs belong to this machine.")
        argv = fix.command(args.user)
        data = {"command": join(argv)}
        if context.check:
            return Result(changed=True, msg=fix.description, data=data)
        answer = context.machine.run(argv, timeout_s=COMMAND_S)
        if not answer.ok:
            last = (answer.err.strip() or answer.out.strip() or f"exit {answer.code}").splitlines()[-1]
            manual = f"On the host: `{fix.manual_command(args.user)}`."
            raise Failed(f"{args.name}: `{join(argv)}` failed: {last[-300:]}", fix=manual)
        return Result(changed=True, msg=fix.description, data=data)


SURVEY_FACTS = (
    *("user", "hostname", "architecture", "os", "memory_bytes", "memory_available_bytes", "disk_free_bytes", "gpu"),
    *("docker", "ollama", "sandbox"),
)


class Survey(Module["Survey.Args"]):
    """Report what is on a host before sparkwright serves there: hardware, Docker, Ollama, existing servers and models.

    Changes nothing, and needs no root. A container counts as a server if it lists its models as OpenAI's API does; a folder
    counts as a model by its name or place alone, because its bytes are verified in a deploy.

    Returns: user, hostname, architecture, os, memory_bytes, memory_available_bytes, disk_free_bytes, gpu, docker, ollama,
    sandbox (as in `facts`), servers (name, image, engine, port, models, model_dir, verified: it is the last verified server
    here), models (id, dir, place: "own" for the given dir, "folder" or "hub cache", size_bytes).
    """

    @dataclass(frozen=True)
    class Args:
        ids: list[str] = arg("models to look for, by their names on the hub", default_factory=list)
        dirs: list[str] = arg("the folder of each, as in its recipe; ~ is the user's home", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        if len(args.ids) != len(args.dirs):
            raise Failed("ids and dirs must have the same length.")
        facts = Facts().run(Facts.Args(), context).data
        servers = _list_servers(context) if facts["docker"]["reachable"] else []
        models = [asdict(on_disk) for on_disk in model_folders.find_on_disk(context.machine, args.ids, args.dirs)]
        data = {**{name: facts[name] for name in SURVEY_FACTS}, "servers": servers, "models": models}
        return Result(
            msg=f"{format_count(len(servers), 'server')}, {format_count(len(models), 'model')} on disk", data=data
        )


def _list_servers(context: Context) -> list[dict[str, Any]]:
    verified = verified_states.load_last(context.state).get("container_id")
    rows = [(server, asdict(server)) for server in running_server.list_servers(context)]
    return [
        {**{key: row[key] for key in row if key != "id"}, "verified": server.id == verified} for server, row in rows
    ]
