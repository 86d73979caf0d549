from __future__ import annotations

from dataclasses import dataclass

from sparkwright.doctor.fixes import FIXES
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
        fix = FIXES.get(args.name)
        if fix is None:
            raise Refused(f"unknown fix {args.name!r}.", fix=f"Known fixes: {', '.join(FIXES)}.")
        if context.machine.sandbox:
            raise Refused("fixes are not applied to a sandbox: its programs belong to this machine.")
        argv = fix.command(args.user)
        data = {"command": join(argv)}
        if context.check:
            return Result(changed=True, msg=fix.says, data=data)
        answer = context.machine.run(argv, timeout_s=COMMAND_S)
        if not answer.ok:
            last = (answer.err.strip() or answer.out.strip() or f"exit {answer.code}").splitlines()[-1]
            manual = f"On the host: `{fix.manual_command(args.user)}`."
            raise Failed(f"{args.name}: `{join(argv)}` failed: {last[-300:]}", fix=manual)
        return Result(changed=True, msg=fix.says, data=data)
