"""llama-server's API key in a file of keys, one per line, so that no argument and no environment variable holds it.

Seen on b11549 (tests/real_llama/test_http.py): 401 without the key, and the key is not in the log. /health needs no key.
"""

from __future__ import annotations

from sparkwright.engines.llama_cpp.flags import KEY
from sparkwright.engines.llama_cpp.http import KEY_VARIABLE
from sparkwright.engines.server_key import ServerKey, key_of_lines, line_of

OPTION = "api-key-file"
#: path of the file in the container
MOUNT = "/run/sparkwright/engine.key"
text, key_of = line_of, key_of_lines

SERVER_KEY = ServerKey(
    flag=KEY,
    variable=KEY_VARIABLE,
    option=OPTION,
    mount=MOUNT,
    alone="llama-server reads one file of keys, which holds this one",
)
