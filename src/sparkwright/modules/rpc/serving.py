from __future__ import annotations

from dataclasses import dataclass

from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states
from sparkwright.modules.proof.verify_health import VerifyHealth
from sparkwright.protocol.result import Result, arg


class Serving(Module["Serving.Args"]):
    """Check that this host serves now: its container runs and generates one token. Changes nothing and never fails.

    What the last verified state calls the container counts before `name`. A server that only answers /health does not serve.

    Returns: serving, verified (it is the container of the last verified state), why (what is missing, or the proof).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name, for a host where nothing was verified yet", default="")
        timeout_s: float = arg("how long the token may take, seconds", default=10.0)

    def run(self, args: Args, context: Context) -> Result:
        good = good_states.last(context.state)
        name = str((good.get("spec") or {}).get("name") or args.name)
        if not name:
            return _message(False, False, "nothing was ever deployed here")
        try:
            found = containers.inspect(context.docker(), name)
            if found is None or not found["State"]["Running"]:
                return _message(False, False, f"{name} is not running" if found else f"there is no container {name}")
            url = containers.url_of(found)
            if not url:
                return _message(False, False, f"{name} publishes no port")
            health = VerifyHealth.Args(base_url=url, tokens=1, timeout_s=args.timeout_s)
            answer = VerifyHealth().run(health, context)
        except SparkwrightError as error:
            return _message(False, False, str(error))
        return _message(not answer.failed, found["Id"] == good.get("container_id"), answer.msg)


def _message(serving: bool, verified: bool, why: str) -> Result:
    return Result(msg=why, data={"serving": serving, "verified": verified, "why": why})
