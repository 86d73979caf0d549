"""Modules that run a command, or end a host's play."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class Command(Module["Command.Args"]):
    """Run a program, without a shell. Always reports a change, unless `creates` or `removes` skips it.

    Returns: code, out, err. Fails if the exit code is not 0. Not run in check mode.
    """

    @dataclass(frozen=True)
    class Args:
        cmd: str = arg("the command line, split as by a shell", default="")
        argv: list[str] = arg("the program and its arguments, instead of cmd", default_factory=list)
        creates: str = arg("skip if this path exists", default="")
        removes: str = arg("skip if this path does not exist", default="")
        stdin: str = arg("standard input", default="")
        timeout_s: float = arg("time limit, seconds", default=300.0)

    def run(self, args: Args, context: Context) -> Result:
        try:
            words = args.argv or shlex.split(args.cmd)
        except ValueError as error:  # an open quote
            return Result(failed=True, msg=f"`cmd` can't be split into words: {str(error).lower()}.")
        if not words:
            return Result(failed=True, msg="no command: set `cmd` or `argv`.")
        if args.creates and context.machine.expand(args.creates).exists():
            return Result(msg=f"{args.creates} exists")
        if args.removes and not context.machine.expand(args.removes).exists():
            return Result(msg=f"{args.removes} does not exist")
        if context.check:
            return Result(changed=True, msg="would run")
        completed = context.machine.run(words, timeout_s=args.timeout_s, stdin=args.stdin)
        data = {"code": completed.code, "out": completed.out.rstrip("\n"), "err": completed.err.rstrip("\n")}
        if completed.ok:
            return Result(changed=True, data=data)
        lines = (completed.err or completed.out).strip().splitlines()
        msg = f"{words[0]} exited with code {completed.code}: {lines[-1] if lines else 'no output'}"
        return Result(failed=True, msg=msg, data={**data, "evidence": lines[-5:]})


class EndHost(Module["EndHost.Args"]):
    """End the play for this host without a failure, like Ansible's `meta: end_host`.

    With `inconclusive` the run exits with code 4, because a check could not be completed.
    """

    @dataclass(frozen=True)
    class Args:
        msg: str = arg("why the play ends, in one sentence")
        inconclusive: bool = arg("exit with code 4", default=False)

    def run(self, args: Args, context: Context) -> Result:
        del context
        return Result(msg=args.msg, exit=Exit.INCONCLUSIVE if args.inconclusive else None)


class Fail(Module["Fail.Args"]):
    """Fail with a message, for example at the end of a rescue that repaired the host after a failure.

    With `refused` the run exits with code 5, or with code 1 if it has changed something.
    """

    @dataclass(frozen=True)
    class Args:
        msg: str = arg("the error message of the run")
        refused: bool = arg("exit with code 5 (refused) if the run has changed nothing", default=False)

    def run(self, args: Args, context: Context) -> Result:
        del context
        return Result(failed=True, msg=args.msg, exit=Exit.REFUSED if args.refused else None)
