"""How llama-server is given its API key without it standing in an argument or in the environment: in a file, a key a line.

Source: `--api-key-file FNAME`, "path to file containing API keys", of its --help (tests/data/llama.cpp). /health asks for no key.
"""

from __future__ import annotations

from sparkwright.engines.llama_cpp.http import KEY_VARIABLE
from sparkwright.engines.server_key import ServerKey


def text(key: str) -> str:
    """The file with this key."""
    return f"{key}\n"


def key_of(written: str) -> str:
    """The key in a file that `text` made; empty when it holds none."""
    return written.strip()


SERVER_KEY = ServerKey(
    flag="api-key",
    variable=KEY_VARIABLE,
    option="api-key-file",
    mount="/run/sparkwright/api.key",
    alone="that file holds the key",
    text=text,
    key_of=key_of,
)
