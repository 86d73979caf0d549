"""Generation of HAProxy's configuration for a gateway, and parsing of its output, without side effects."""
