"""Validation, size limits and redaction for untrusted input: everything from hosts, hubs, registries, images, logs and files.

The trust model is documented in docs/security.md. The package uses only the standard library, because both sides import it.
"""
