"""gateway-key.json: the key with which this host drains and returns its own servers at gateways, without a laptop.

It is random, created once, and sent to gateways only. `gateway.deploy` fetches its SHA-256, which the gateway compares.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from sparkwright.host.state import StateFolder

NAME = "gateway-key"
KEY_BYTES = 32
KEY = re.compile(r"[0-9a-f]{64}")


def kept(state: StateFolder) -> str:
    """Return the key; empty if there is none."""
    found = str((state.read(NAME) or {}).get("key", ""))
    return found if KEY.fullmatch(found) else ""


def made(state: StateFolder) -> str:
    """Return the key; create it if there is none."""
    if not kept(state):
        state.write(NAME, {"key": secrets.token_hex(KEY_BYTES)})
    return kept(state)


def hashed(key: str) -> str:
    """Return the hash that a gateway stores of a key; empty for an empty key."""
    return hashlib.sha256(key.encode()).hexdigest() if key else ""
