"""The API key of a described server: through a flag that names a file, or a variable that a shell in its container sets from the
file, so that neither `docker inspect` nor a list of processes shows it."""

from __future__ import annotations

from sparkwright.engines.openai import description
from sparkwright.engines.server_key import ServerKey

#: path of the file in the container
MOUNT = "/run/sparkwright/engine.key"


def described(label: str) -> ServerKey | None:
    """Return the key file of a description; None if the description has none."""
    given = description.read(label).get("key")
    if not given:
        return None
    return ServerKey(
        flag="api-key",
        variable=given.get("env", ""),
        option=given.get("file_flag", ""),
        mount=MOUNT,
        alone="this file holds the key",
    )
