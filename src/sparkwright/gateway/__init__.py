"""HAProxy's configuration from what serves where. Pure: data in, text out."""
