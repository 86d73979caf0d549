"""The hosts, their groups, and the patterns that name them."""

from sparkwright.inventory.inventory import Host, Inventory

__all__ = ["Host", "Inventory"]
