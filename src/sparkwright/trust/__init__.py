"""Validation of untrusted input: data from a host, hub, registry, image, log or file is matched, bounded and made visible before
use.

docs/security.md documents the trust model. Standard library only: both sides import it.
"""
