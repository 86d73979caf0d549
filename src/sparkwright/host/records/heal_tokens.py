"""heal-token.json: what the health checks of a cluster's members prove to each other before they restart it without a laptop.

`health.install` makes it on the laptop, the same for all members, and anew each time; it comes down as a secret, and stands in
this file only, which is the user's alone. It is never sent: keys are derived from it, for one purpose each.
"""

from __future__ import annotations

import re

from sparkwright.host.state import StateFolder
from sparkwright.secret import Secret

NAME = "heal-token"
#: the secret that brings it: 32 random bytes, as hexadecimal digits
SECRET = "HEAL_TOKEN"
DIGITS = re.compile(r"[0-9a-f]{64}")


def keep(state: StateFolder, token: Secret) -> None:
    """Keep it, instead of the one before."""
    state.write(NAME, {"token": token.reveal()})


def kept(state: StateFolder) -> Secret:
    """The one that is kept; empty when there is none."""
    found = (state.read(NAME) or {}).get("token", "")
    return Secret(found if DIGITS.fullmatch(found) else "")
