from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.containers import model_servers
from sparkwright.host.models import on_disk
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states
from sparkwright.modules.system.facts import Facts
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import count

FACTS = (
    *("user", "hostname", "architecture", "os", "memory_bytes", "memory_available_bytes", "disk_free_bytes", "gpu"),
    *("docker", "ollama", "sandbox"),
)


class Survey(Module["Survey.Args"]):
    """Report what is on a host before sparkwright serves there: hardware, Docker, Ollama, servers and models that others brought.

    Changes nothing, and needs no root. A container counts as a server when it lists its models as OpenAI's API does; a folder as
    a model by its name or place alone, for its bytes are proved in a deploy.

    Returns: user, hostname, architecture, os, memory_bytes, memory_available_bytes, disk_free_bytes, gpu, docker, ollama, sandbox
    (as `facts` has them), servers (name, image, engine, port, models, model_dir, verified: it is the last verified server here),
    models (id, dir, place: "own" for the given dir, "folder" or "hub cache", size_bytes).
    """

    @dataclass(frozen=True)
    class Args:
        ids: list[str] = arg("models to look for, as the hub names them", default_factory=list)
        dirs: list[str] = arg("the folder of each, as its recipe has it; ~ is the user's home", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        if len(args.ids) != len(args.dirs):
            raise Failed("ids and dirs must have the same length.")
        facts = Facts().run(Facts.Args(), context).data
        servers = _servers(context) if facts["docker"]["reachable"] else []
        models = [asdict(on_disk) for on_disk in on_disk.find(context.machine, args.ids, args.dirs)]
        data = {**{name: facts[name] for name in FACTS}, "servers": servers, "models": models}
        return Result(msg=f"{count(len(servers), 'server')}, {count(len(models), 'model')} on disk", data=data)


def _servers(context: Context) -> list[dict[str, Any]]:
    verified = good_states.last(context.state).get("container_id")
    rows = [(server, asdict(server)) for server in model_servers.find(context)]
    return [
        {**{key: row[key] for key in row if key != "id"}, "verified": server.id == verified} for server, row in rows
    ]
