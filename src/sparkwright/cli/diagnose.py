"""The command `diagnose`: what is wrong with a server, and why."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst


@task(
    help={
        "host": "which hosts: spark1, spark1,spark2, a group, all",
        "token-s": "how long a token may take, seconds; 0: as the health checks have it, or 30",
        "json": "one object a host: state, summary, exit, causes, tok_per_s (docs/diagnose.md)",
        "debug": "show the traceback of an error",
    }
)
@reporting
def diagnose(context: object, host: str = "", token_s: float = 0.0, json: bool = False, debug: bool = False) -> int:
    """What is wrong with a server, in one sentence, and why: each cause with its evidence and fix; changes nothing.

    Needs no spark.lock, no registry and no run on the host. Exits with 0: nothing is wrong; 1: something is; 3: a host is
    unreachable; 4: not known: it is starting, others use it, or nothing says how fast it should be.
    """
    from sparkwright.app.questions import diagnosis

    return worst(diagnosis.run(host, token_s=token_s, json=json))


TASKS = [diagnose]
