"""Generate HAProxy's configuration from the servers and their models. Pure: data in, text out."""
