from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparkwright.doctor.diagnosis import answer
from sparkwright.doctor.diagnosis.recipe_facts import RecipeFacts
from sparkwright.errors import Exit
from sparkwright.host.containers import server_key
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class Diagnose(Module["Diagnose.Args"]):
    """Diagnose a server: what is wrong, in one sentence, and the causes ranked, each with its evidence and fix.

    It goes by what runs: the container, how it ended and its last line, the engine's own log, /health, the counters, one
    generated token, then a measured stream beside the GPU's clock and power, memory, swap, disk, Ollama, and the flags of the
    running command against the rules of `invoke lint`. It needs neither spark.lock nor a registry and changes nothing. A server
    that others use, or a host where a run is in progress, is not measured, and that is said.

    Returns: state, summary, fix, exit, causes (cause, verdict: found, possible, unknown, noted or excluded, evidence, fix),
    tok_per_s, expected_tok_per_s, expected_by, container, gpu.

    Fails when something is wrong; inconclusive when that is unknown.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        container: str = arg("the container's name, for a host where nothing was verified", default="")
        base_url: str = arg("where the server answers, if its container publishes no port", default="")
        model: str = arg("the served name, if neither the host nor the server knows it", default="")
        model_id: str = arg("the model's name on the hub", default="")
        tok_per_s: float | None = arg(
            "what one stream should give where there is no baseline; null: nothing", default=None
        )
        platform: Literal["gb10", "ascend"] = arg("whose rules the flags must keep", default="gb10")
        token_s: float = arg("how long a token may take, seconds; 0: as the health checks have it", default=0.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        secret = context.secrets.get(args.api_key_secret)
        given = {name: getattr(args, name) for name in ("container", "base_url", "model", "model_id", "tok_per_s")}
        facts = RecipeFacts(
            **given, platform=args.platform, token_s=args.token_s, key=secret.reveal() if secret else ""
        )
        found = answer.diagnose(context, facts)
        code = Exit(found["exit"])
        return Result(failed=code is not Exit.OK, exit=code, msg=found["summary"], fix=found["fix"], data=found)
