"""Generate a gateway's HAProxy configuration and parse HAProxy's output, without side effects."""
