"""Texts that say that anyone may use a server: in lint, in a plan and at the end of a deploy."""

OPEN_SENTENCE = "anyone on the network can use this server"
OPEN_WAY_OF_HOST = "set `server_key` in the recipe, or the engine's flag `host: 127.0.0.1`; or remove `network: host`"
OPEN_WAY = "set `server_key` or `publish: loopback` in the recipe"
