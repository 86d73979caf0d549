"""What comes from a host, a hub, a registry, an image, a log or a file is matched, bounded and made visible here, before use.

docs/security.md says who is trusted with what. Standard library only: both sides import it.
"""
