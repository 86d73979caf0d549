from __future__ import annotations

import time
from dataclasses import dataclass

from sparkwright.errors import Failed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg

POLL_S = 0.25


class DockerReady(Module["DockerReady.Args"]):
    """The Docker Engine answers. One that is being restarted, by an update say, is waited for.

    Returns: waited_s. Fails after timeout_s.
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("how long it may take to answer, seconds", default=120.0)

    def run(self, args: Args, context: Context) -> Result:
        started_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - started_s
            if _answers(context):
                msg = f"after {waited_s:.1f} s" if waited_s > POLL_S else ""
                return Result(msg=msg, data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s or context.check:
                fix = "On the host: `sudo systemctl start docker` (and `systemctl status docker` for why it is down)."
                raise Failed(f"no answer from the Docker Engine for {waited_s:.0f} s.", fix=fix)
            context.progress(0, text=f"waiting for the Docker Engine, {waited_s:.0f} s")
            time.sleep(POLL_S)


def _answers(context: Context) -> bool:
    try:
        return bool(context.docker().ping())
    except Exception:  # the client raises various errors while the engine stops or starts
        return False
