from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """A group and the user's membership."""

    #: whether the group exists
    exists: bool
    #: membership in the group database, which a new login reads
    member: bool


class UserGroup(StateModule["UserGroup.Args", Found]):
    """A user belongs to a group, or does not. It counts from the user's next login on.

    Returns: new_login_needed. Fails when the group is not there, or without root (says `become`).
    """

    @dataclass(frozen=True)
    class Args:
        user: str = arg("the user")
        group: str = arg("the group")
        state: Literal["present", "absent"] = arg("member or not", default="present")

    def read(self, args: Args, context: Context) -> Found:
        answer = context.machine.run(["getent", "group", args.group])
        members = answer.out.strip().rpartition(":")[2].split(",")
        own = context.machine.run(["id", "-gn", args.user]).out.strip()
        return Found(answer.ok, args.user in members or own == args.group)

    def differences(self, args: Args, found: Found) -> list[Change]:
        wanted = args.state == "present"
        if found.member == wanted:
            return []
        words, why = {True: "member", False: None}, "takes effect at next login"
        return [Change(f"{args.user} in {args.group}", words[found.member], words[wanted], why)]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"new_login_needed": found.member != (args.state == "present")}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        if not found.exists:
            fix = "Install the package that creates it (docker: docker.io)."
            raise Failed(f"there is no group {args.group}.", fix=fix)
        add = ["usermod", "-aG", args.group, args.user]
        answer = context.machine.run(add if args.state == "present" else ["gpasswd", "-d", args.user, args.group])
        if not answer.ok:
            fix = "Add `become: true` to the task." if "ermission denied" in answer.err else ""
            raise Failed(f"{args.user} and {args.group}: {answer.err.strip()}", fix=fix)
        return {"msg": "log in again for it to take effect"}
