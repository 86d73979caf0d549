"""Runs of playbooks: from the options of a command to a fleet, its screen and its rolling record."""
