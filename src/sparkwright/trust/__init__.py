"""Validation of untrusted input: everything from a host, hub, registry, image, log or file.

It is matched, bounded and made visible here, before use. docs/security.md documents the trust model. Standard library only: both
sides import it.
"""
