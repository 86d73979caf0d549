"""How llama-server is given its API key without it standing in an argument or in the environment: by a file of keys, one a line.

Seen on b11549 (tests/real_llama/test_http.py): 401 without the key, and the key is not in the log. /health asks for none.
"""

from __future__ import annotations

from sparkwright.engines.llama_cpp.flags import KEY
from sparkwright.engines.llama_cpp.http import KEY_VARIABLE
from sparkwright.engines.server_key import ServerKey

OPTION = "api-key-file"
#: where the container sees the file
MOUNT = "/run/sparkwright/engine.key"
MARK = "#"


def text(key: str) -> str:
    """The file with this key."""
    return f"{key}\n"


def key_of(written: str) -> str:
    """The first key of such a file; empty when it holds none."""
    lines = (line.strip() for line in written.splitlines())
    return next((line for line in lines if line and not line.startswith(MARK)), "")


SERVER_KEY = ServerKey(
    flag=KEY,
    variable=KEY_VARIABLE,
    option=OPTION,
    mount=MOUNT,
    alone="llama-server reads one file of keys, which holds this one",
    text=text,
    key_of=key_of,
)
