"""Derived tokens: a cluster's own token is never sent where it could be intercepted."""

from __future__ import annotations

import hmac

from sparkwright.secret import Secret


def derived(token: Secret, purpose: str) -> Secret:
    """Derive a token of 64 hexadecimal digits for one purpose; only holders of the original can do so."""
    return Secret(hmac.digest(token.reveal().encode(), purpose.encode(), "sha256").hex())
