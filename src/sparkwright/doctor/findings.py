"""The findings of the doctor's checks, and the fixes that sparkwright may apply by itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sparkwright.doctor import known
from sparkwright.shell import join

Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a host."""

    check: str
    verdict: Verdict
    #: what was seen, or what could not be seen
    evidence: str
    #: the one command that fixes it; empty if none does
    fix: str = ""
    #: where it is documented that it matters
    source: str = ""
    #: a name in `fixes.FIXES`, if sparkwright may do it itself
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# The fixes that sparkwright may apply by itself.
#
# Each is one idempotent command as root that restarts no engine and installs nothing; packages are left to the DGX Dashboard.

USER = "{user}"


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix of a host."""

    #: what it changes
    says: str
    #: the command; {user} stands for the login user
    argv: tuple[str, ...]

    def command(self, user: str) -> list[str]:
        return [user if word == USER else word for word in self.argv]

    def manual_command(self, user: str) -> str:
        """Return the command as a user would type it."""
        return f"sudo {join(self.command(user))}"


FIXES: dict[str, Fix] = {
    "docker group": Fix("adds the user to the docker group", ("usermod", "-aG", "docker", USER)),
    "docker at boot": Fix("starts Docker now and at boot", ("systemctl", "enable", "--now", "docker.service")),
    "linger": Fix("keeps the user's services and shared memory after logout", ("loginctl", "enable-linger", USER)),
    "CDI": Fix(
        "writes the CDI specification for this driver",
        ("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
    ),
    "CDI service": Fix("writes the CDI specification for this driver", ("systemctl", "restart", known.CDI_REFRESH)),
    "clock": Fix("enables NTP (systemd-timesyncd)", ("timedatectl", "set-ntp", "true")),
    "locale": Fix("sets C.UTF-8 as the login locale", ("update-locale", "LANG=C.UTF-8")),
}
