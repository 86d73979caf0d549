"""vLLM's API key in its own configuration file, so that no argument and no environment variable holds it.

`vllm serve MODEL --config FILE` reads FILE (it must end in .yaml or .yml) as if its keys stood before the other flags, so a flag
of the command line outranks it, and takes one such file only. Seen on 0.32.0: 401 without the key, the log says `***`, and the
key is in no process's command line or environment. /health, /metrics and /version need no key.
"""

from __future__ import annotations

import json

from sparkwright.engines.server_key import ServerKey

OPTION = "config"
KEY = "api-key"
VARIABLE = "VLLM_API_KEY"
#: path of the file in the container
MOUNT = "/run/sparkwright/engine.yaml"


def text(key: str) -> str:
    """Return the configuration file with this key; a JSON string is valid YAML."""
    return f"{KEY}: {json.dumps(key)}\n"


def key_of(written: str) -> str:
    """Return the key in a file that `text` made; empty if it holds none."""
    name, _, value = written.partition(":")
    try:
        found = json.loads(value) if name == KEY else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


SERVER_KEY = ServerKey(
    flag=KEY,
    variable=VARIABLE,
    option=OPTION,
    mount=MOUNT,
    alone="vLLM reads one configuration file, which holds the key",
    text=text,
    key_of=key_of,
)
