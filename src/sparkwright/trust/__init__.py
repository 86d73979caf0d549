"""Validation of untrusted input, which is everything from hosts, hubs, registries, images, logs and files.

It is matched against patterns, limited in size and made visible here before it is used. The trust model is documented in
docs/security.md. The package uses only the standard library, because both sides import it.
"""
