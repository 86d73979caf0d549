"""The `fix` module."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.doctor.fixes import MENDS
from sparkwright.errors import Failed, Refused
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.shell import join

COMMAND_S = 120.0


class Fix(Module["Fix.Args"]):
    """Does one of the few things that `doctor` may set right by itself, by its name. Needs root (`become`).

    It never installs or upgrades a package, and restarts no engine; each can be done twice.

    Returns: command (what was run). Fails with the command's own words, and refuses a name it does not know.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("its name in a finding of `doctor`")
        user: str = arg("the ssh user on this host")

    def run(self, args: Args, context: Context) -> Result:
        mend = MENDS.get(args.name)
        if mend is None:
            raise Refused(f"unknown fix {args.name!r}.", fix=f"Known fixes: {', '.join(MENDS)}.")
        if context.machine.sandbox:
            raise Refused("fixes are not applied to a sandbox: its programs belong to this machine.")
        argv = mend.command(args.user)
        data = {"command": join(argv)}
        if context.check:
            return Result(changed=True, msg=mend.says, data=data)
        said = context.machine.run(argv, timeout_s=COMMAND_S)
        if not said.ok:
            last = (said.err.strip() or said.out.strip() or f"exit {said.code}").splitlines()[-1]
            raise Failed(
                f"{args.name}: `{join(argv)}` failed: {last[-300:]}", fix=f"On the host: `{mend.by_hand(args.user)}`."
            )
        return Result(changed=True, msg=mend.says, data=data)
