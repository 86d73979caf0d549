"""Modules about packages and groups of the host."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed, Refused
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg

#: on a Spark driver, firmware, kernel and CUDA come in pairs from the Dashboard's updates; apt can split them.
#: Source: NVIDIA's DGX OS update notes, NVCheckup.
PROTECTED = ("nvidia-*", "libnvidia-*", "linux-image-*", "linux-modules-*", "cuda*", "dgx-*")


class Package(StateModule["Package.Args", dict[str, bool]]):
    """Debian packages are installed, or are not. Nothing is ever upgraded.

    Driver, kernel and CUDA packages are refused: on a Spark they come in pairs with the firmware, from the Dashboard.

    Fails without root (says `become`), for an unknown package, when apt is locked for longer than a minute.
    """

    @dataclass(frozen=True)
    class Args:
        name: list[str] | str = arg("one package or several")
        state: Literal["present", "absent"] = arg("present or absent", default="present")
        allow_driver_packages: bool = arg("allow driver, kernel and CUDA packages", default=False)

    def read(self, args: Args, context: Context) -> dict[str, bool]:
        names = [args.name] if isinstance(args.name, str) else args.name
        for name in names:
            if not args.allow_driver_packages and any(fnmatch.fnmatch(name, pattern) for pattern in PROTECTED):
                fix = "Update it through the DGX Dashboard, or set `allow_driver_packages: true`."
                why = "apt can leave it mismatched with the firmware"
                raise Refused(f"{name} is a driver, kernel or CUDA package; {why}.", fix=fix)
        answer = context.machine.run(["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names])
        installed = {row.split()[0] for row in answer.out.splitlines() if row.endswith(" installed")}
        return {name: name in installed for name in names}

    def differences(self, args: Args, found: dict[str, bool]) -> list[Change]:
        wanted = args.state == "present"
        words = {True: "installed", False: None}
        return [Change(name, words[there], words[wanted]) for name, there in found.items() if there != wanted]

    def act(self, args: Args, found: dict[str, bool], changes: list[Change], context: Context) -> dict[str, Any]:
        names = [change.field for change in changes]
        if args.state == "absent":
            self._apt(context, ["remove", *names])
            return {}
        install = ["install", "--no-install-recommends", "--no-upgrade", *names]
        try:
            self._apt(context, install)
        except Failed:
            context.note("not found or not reachable: refreshing the package lists")
            self._apt(context, ["update"])
            self._apt(context, install)
        return {}

    @staticmethod
    def _apt(context: Context, words: list[str]) -> None:
        base = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=60"]
        answer = context.machine.run([*base, *words], timeout_s=900)
        if answer.ok:
            return
        last = [line for line in answer.err.splitlines() if line.startswith("E:")] or answer.err.splitlines()
        if "are you root" in answer.err or "Permission denied" in answer.err:
            raise Failed(f"apt-get {words[0]} needs root.", fix="Add `become: true` to the task.")
        raise Failed(f"apt-get {words[0]}: {last[-1] if last else answer.code}")


@dataclass(frozen=True, slots=True)
class UserGroupFound:
    """A group and the user's membership."""

    #: whether the group exists
    exists: bool
    #: membership in the group database, which a new login reads
    member: bool


class UserGroup(StateModule["UserGroup.Args", UserGroupFound]):
    """A user belongs to a group, or does not. It counts from the user's next login on.

    Returns: new_login_needed. Fails when the group is not there, or without root (says `become`).
    """

    @dataclass(frozen=True)
    class Args:
        user: str = arg("the user")
        group: str = arg("the group")
        state: Literal["present", "absent"] = arg("member or not", default="present")

    def read(self, args: Args, context: Context) -> UserGroupFound:
        answer = context.machine.run(["getent", "group", args.group])
        members = answer.out.strip().rpartition(":")[2].split(",")
        own = context.machine.run(["id", "-gn", args.user]).out.strip()
        return UserGroupFound(answer.ok, args.user in members or own == args.group)

    def differences(self, args: Args, found: UserGroupFound) -> list[Change]:
        wanted = args.state == "present"
        if found.member == wanted:
            return []
        words, why = {True: "member", False: None}, "takes effect at next login"
        return [Change(f"{args.user} in {args.group}", words[found.member], words[wanted], why)]

    def describe(self, args: Args, found: UserGroupFound) -> dict[str, Any]:
        return {"new_login_needed": found.member != (args.state == "present")}

    def act(self, args: Args, found: UserGroupFound, changes: list[Change], context: Context) -> dict[str, Any]:
        if not found.exists:
            fix = "Install the package that creates it (docker: docker.io)."
            raise Failed(f"there is no group {args.group}.", fix=fix)
        add = ["usermod", "-aG", args.group, args.user]
        answer = context.machine.run(add if args.state == "present" else ["gpasswd", "-d", args.user, args.group])
        if not answer.ok:
            fix = "Add `become: true` to the task." if "ermission denied" in answer.err else ""
            raise Failed(f"{args.user} and {args.group}: {answer.err.strip()}", fix=fix)
        return {"msg": "log in again for it to take effect"}
