"""A playbook that goes over its hosts batch after batch: how fast, what stops it, who must go on serving, what is left."""
