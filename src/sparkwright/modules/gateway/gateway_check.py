from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.containers import containers
from sparkwright.host.gateway import container, good, place
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class GatewayCheck(Module["GatewayCheck.Args"]):
    """The pinned HAProxy takes the gateway's configuration (`haproxy -c`), and its ports are free. Touches nothing.

    The files stand in a folder of their own meanwhile, which only this user and the checking container read. In check mode
    without the image it says that it is known after the pull.

    Returns: digest (of the files). Fails with HAProxy's own words, refused when another program has the port, or a container that
    is no gateway of ours its name.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the gateway's container")
        port: int = arg("where it listens")
        files: dict[str, str] = arg("its files without secrets, by name", default_factory=dict)
        client_key: str = arg("the name of the secret that clients send; empty for none", default="")
        server_keys: dict[str, str] = arg("names of the servers' keys, by backend", default_factory=dict)
        certificate: str = arg("the name of the secret with certificate and key; empty: no TLS", default="")
        operators: dict[str, str] = arg(
            "the SHA-256 of the key with which each host drains its own servers; empty: not known now",
            default_factory=dict,
        )
        clients: dict[str, str] = arg(
            "names of the secrets that clients with keys of their own send", default_factory=dict
        )
        kept: str = arg("the digest of a verified gateway whose files are on the host, instead of `files`", default="")

    def run(self, args: Args, context: Context) -> Result:
        composed = (args.files, args.client_key, args.server_keys, args.certificate, args.operators, args.clients)
        files = good.kept(context, args.kept) if args.kept else place.composed(*composed, context)
        client = context.docker()
        found = container.current(args.spec["name"], context)
        container.previous(args.spec["name"], context)
        for port in _ports(args):
            ours = bool(found) and found["State"]["Running"] and containers.publishes(found, port)
            if not ours and (holder := containers.who_listens(client, port)):
                fix = "Choose another `port` or `control_port` in `gateway:`, or stop that."
                raise Refused(f"port {port} is in use by {holder}.", fix=fix)
        spec = container.resolved(args.spec, context)
        if context.check and not image_names.find(
            client.api, spec.image, spec.image_ids, machine_platform(context.machine)
        ):
            return Result(msg="known after the image is pulled", data={"digest": ""})
        container.check(args.spec, files, context)
        return Result(msg="valid", data={"digest": args.kept or place.digest_of(files)})


def _ports(args: GatewayCheck.Args) -> list[int]:
    """Return the ports that the gateway needs: its own, and the one for its hosts."""
    published = (str(text).rpartition(":")[2] for text in args.spec.get("ports") or ())
    return list(dict.fromkeys([args.port, *(int(port) for port in published if port.isdecimal())]))
