from __future__ import annotations

from dataclasses import dataclass

from sparkwright.errors import Refused
from sparkwright.host.module import Context, Module
from sparkwright.host.records import heal_tokens
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret


class KeepHealToken(Module["KeepHealToken.Args"]):
    """This member of a cluster keeps the secret with which its health check meets the other members' for a restart.

    It comes with the request, as the secret HEAL_TOKEN, and replaces the one before. Without one, none is kept.
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        token = context.secrets.get(heal_tokens.SECRET, Secret(""))
        if context.check:
            return Result(changed=True)
        if not token:
            context.state.remove(heal_tokens.NAME)
            return Result()
        if not heal_tokens.DIGITS.fullmatch(token.reveal()):
            raise Refused(f"invalid request: the secret {heal_tokens.SECRET} is not 64 hexadecimal digits.")
        heal_tokens.keep(context.state, token)
        return Result(changed=True, msg="renewed")
