"""Tokens made of another: what members of a cluster share is never used itself where it could be heard."""

from __future__ import annotations

import hmac

from sparkwright.secret import Secret


def derived(token: Secret, purpose: str) -> Secret:
    """A token of 64 hexadecimal digits, for one purpose, that only those who have this one can make."""
    return Secret(hmac.digest(token.reveal().encode(), purpose.encode(), "sha256").hex())
