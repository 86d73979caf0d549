"""A gateway on this host: its folders and files, and the state of its running HAProxy."""
