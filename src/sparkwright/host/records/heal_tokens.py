"""heal-token.json: the token with which the health checks of a cluster's members authenticate to restart it without a laptop.

`health.install` generates it on the laptop, the same for all members, and anew each time; it is sent as a secret, and stored in
this file only, which this user alone can read. The checks never send it: keys are derived from it, one per purpose.
"""

from __future__ import annotations

import re

from sparkwright.host.state import StateFolder
from sparkwright.secret import Secret

NAME = "heal-token"
#: the name of the secret: 32 random bytes, in hexadecimal digits
SECRET = "HEAL_TOKEN"
DIGITS = re.compile(r"[0-9a-f]{64}")


def keep(state: StateFolder, token: Secret) -> None:
    """Store the token, replacing the previous one."""
    state.write(NAME, {"token": token.reveal()})


def kept(state: StateFolder) -> Secret:
    """Return the stored token; empty if there is none."""
    found = (state.read(NAME) or {}).get("token", "")
    return Secret(found if DIGITS.fullmatch(found) else "")
