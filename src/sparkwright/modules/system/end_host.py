from __future__ import annotations

from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class EndHost(Module["EndHost.Args"]):
    """The play is over for this host, and nothing failed: what follows is not run. Ansible's `meta: end_host`.

    With `inconclusive` the run ends with 4: what it was asked to prove was not proved.
    """

    @dataclass(frozen=True)
    class Args:
        msg: str = arg("why it ends here, a sentence")
        inconclusive: bool = arg("exit with 4", default=False)

    def run(self, args: Args, context: Context) -> Result:
        del context
        return Result(msg=args.msg, exit=Exit.INCONCLUSIVE if args.inconclusive else None)
