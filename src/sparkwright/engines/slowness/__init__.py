"""Why a server is slow: what is so with every engine. What only one of them knows stands in its folder, as causes.py."""
