"""The gateways of groups.yml, and the checks that need only the inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.gateway_models import GatewayFile
from sparkwright.project.inventory.glance import GROUPS_FILE
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.name_rules import Groups, Mistake

KEYS = tuple(GatewayFile.model_fields)


def found(groups: Groups, members: Mapping[str, tuple[str, ...]]) -> dict[str, Gateway]:
    """Return the gateways by group. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    gateways = {
        name: Gateway(name, group.gateway.host, members[name], group.gateway, _places(groups, name, group.gateway))
        for name, group in groups.checked.items()
        if group.gateway is not None
    }
    for message, where, fix in _mistakes(gateways, members):
        raise Refused(message, where=where, fix=fix)
    return gateways


def refuse_unasked(hosts: Iterable[Host], gateways: Mapping[str, Gateway]) -> None:
    """Raise Refused, with file and line, for a server that requests may wake and that no gateway routes to."""
    for host in hosts:
        if host.wake.on_request and not any(host.machine in gateway.members for gateway in gateways.values()):
            message = (
                f"`wake: on_request` of {host.recipe}: no gateway routes to {host.machine}, so nobody can ask for it."
            )
            fix = f"In hosts/{GROUPS_FILE}: a group with {host.machine} and a `gateway`; or remove `wake`."
            raise Refused(message, where=host.set_at["recipe"], fix=fix)


def _places(groups: Groups, name: str, file: GatewayFile) -> dict[str, str]:
    at = (name, "gateway")
    written = [key for key in KEYS if key in file.model_fields_set]
    return {"": groups.source.where(*at)} | {key: groups.source.where(*at, key) for key in written}


def _mistakes(gateways: Mapping[str, Gateway], members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    hosts, taken = {host for group in members.values() for host in group}, dict[str, str]()
    for name, gateway in gateways.items():
        shown, key = visible.name(gateway.host), visible.name(name)
        if gateway.host not in hosts:
            yield (
                f"`{key}.gateway.host`: no host named '{shown}'.",
                gateway.where("host"),
                nearest(gateway.host, gateway.members),
            )
        if gateway.host not in gateway.members:
            message = f"`{key}.gateway.host`: {shown} is not in the group."
            yield message, gateway.where("host"), f"Add it to `{key}.hosts`; without a recipe it serves no model."
        if gateway.host in taken:
            message = f"{shown} is the gateway of two groups, {visible.name(taken[gateway.host])} and {key}."
            yield message, gateway.where("host"), f"A host has one. Edit hosts/{GROUPS_FILE}."
        taken[gateway.host] = name
        for stranger in sorted(gateway.file.addresses.keys() - {*gateway.members}):
            message = f"`{key}.gateway.addresses`: {visible.name(stranger)} is not in the group."
            yield message, gateway.where("addresses"), nearest(stranger, gateway.members)
