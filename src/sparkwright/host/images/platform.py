"""A host's platform in the form that images use."""

from __future__ import annotations

from sparkwright.host.machine import Machine

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


def platform_of(machine: Machine) -> str:
    """Return the platform of images for this host, such as linux/arm64."""
    return f"linux/{ARCHITECTURES.get(machine.architecture, machine.architecture)}"
