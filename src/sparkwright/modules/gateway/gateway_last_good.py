from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.errors import Refused
from sparkwright.gateway.render import CLIENT_KEYS
from sparkwright.host.containers import containers
from sparkwright.host.gateway import admin, good, place
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

EARLIER = (
    "the verified gateway before this one was made by an earlier sparkwright, and its container could write to its own files: it "
    "is not started again."
)


class GatewayLastGood(Module["GatewayLastGood.Args"]):
    """Find the gateway that a rollback goes to: the last verified one; when that is what runs, the one before it.

    Its files are on the host, the clients' key as a hash only: proving it takes the key that it asked for.

    Returns: spec, digest (of its files), models, proof (what `gateway_proof` asked of it). Refuses when there is none, its files
    are gone, or it asked for another key.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the gateway's container", default="gateway")
        client_key: str = arg("the name of the secret that clients send; empty for none", default="")

    def run(self, args: Args, context: Context) -> Result:
        found = _before(args.name, context)
        if place.is_earlier(found["spec"]):
            raise Refused(EARLIER, fix="Deploy what the files say: `gateway.deploy`.")
        files = good.files(context, found["digest"])
        if not found.get("proof") or not files:
            raise Refused(
                "of the verified gateway before this one the files are gone.", fix="Deploy it: `gateway.deploy`."
            )
        since = units.moment(found.get("since", 0), units.MINUTE)
        _refuse_other_key(files.get(CLIENT_KEYS, "").strip(), since, args, context)
        data = {key: found[key] for key in ("spec", "digest", "models", "proof")}
        return Result(msg=f"verified {since}: routes {', '.join(found['models'])}", data=data)


def _before(name: str, context: Context) -> dict[str, Any]:
    """Return the state to go back to. Raises Refused if there is none."""
    last = good.last(context)
    if not last:
        raise Refused(f"no {name} was ever verified here.", fix="`invoke gateway.deploy` deploys one.")
    if not _runs(name, last, context):
        return last
    found = next(iter(good.before(context)), {})
    if not found:
        raise Refused(
            f"no verified gateway is older than the running {name}.", fix="`invoke history` shows what was verified."
        )
    return found


def _runs(name: str, state: dict[str, Any], context: Context) -> bool:
    """Return True if the running gateway has this verified state."""
    found = containers.inspect(context.docker(), name) or {}
    reads = admin.running_digest(place.current(place.state(context)).sockets)
    return bool(found) and (found["Id"], reads) == (state.get("container_id"), state["digest"])


def _refuse_other_key(hashed: str, since: str, args: GatewayLastGood.Args, context: Context) -> None:
    secret = context.secrets.get(args.client_key) if args.client_key else None
    ours = hashlib.sha256(secret.reveal().encode()).hexdigest() if secret else ""
    if hashed and not ours:
        fix = "Write it as `key` into `gateway:`, then roll back."
        raise Refused(f"the gateway verified {since} asks for an API key.", fix=fix)
    if hashed and hashed != ours:
        fix = "Give that key as `key` of `gateway:`, or deploy with the one of today."
        raise Refused(f"the gateway verified {since} asks for another API key than `key` gives now.", fix=fix)
