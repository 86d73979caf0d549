"""Modules about the host itself: programs, packages, units, groups, facts."""
