"""Reaching a host: one link each, one request an exec."""

from sparkwright.remote.link import FORKS, Link, Need, open_link

__all__ = ["FORKS", "Link", "Need", "open_link"]
