"""How vLLM is given its API key without it standing in an argument or in the environment: by its own configuration file.

`vllm serve MODEL --config FILE` reads FILE (it must end in .yaml or .yml) as if its keys stood before the other flags, so a flag
of the command line outranks it, and takes one such file only. Seen on 0.32.0: 401 without the key, the log says `***`, and the
key is in no process's command line or environment. /health, /metrics and /version ask for none.
"""

from __future__ import annotations

import json
import re

OPTION = "config"
KEY = "api-key"
VARIABLE = "VLLM_API_KEY"
#: where the container sees the file
MOUNT = "/run/sparkwright/engine.yaml"
WORDS = (f"--{OPTION}", MOUNT)

#: what an Authorization header carries and argparse takes for a value; the length is ours: a short one is guessed
_KEY = re.compile(r"[A-Za-z0-9._~+/=][A-Za-z0-9._~+/=-]{15,511}")
VALID = "16 to 512 letters, digits or . _ ~ + / = -, the first not a dash"
#: what helps when a server asks for a key that is not known
SET = "Set `server_key` in the recipe and deploy; the checks then use that key."
MAKE = "`openssl rand -hex 24` makes one."


def valid(key: str) -> bool:
    """Whether a text can be a server's key; VALID says what can."""
    return _KEY.fullmatch(key) is not None


def text(key: str) -> str:
    """The configuration file with this key; a JSON string is a YAML one."""
    return f"{KEY}: {json.dumps(key)}\n"


def key_of(written: str) -> str:
    """The key in a file that `text` made; empty when it holds none."""
    name, _, value = written.partition(":")
    try:
        found = json.loads(value) if name == KEY else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
