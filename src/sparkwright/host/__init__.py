"""The host as modules see and change it: what more than one module needs."""
