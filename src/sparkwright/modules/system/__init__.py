"""Modules for the host itself: its programs, packages, units, groups and facts."""
