"""Generating HAProxy's configuration from the servers and their models, without side effects."""
