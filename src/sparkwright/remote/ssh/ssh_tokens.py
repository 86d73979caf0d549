"""The %-tokens and ${VARIABLES} of ssh_config(5): `ssh -G` prints most values as they were written."""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Mapping

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.visible import one_line

_TOKEN = re.compile(r"%(.?)", re.DOTALL)
_EITHER = re.compile(r"%(.?)|\$\{(\w+)\}", re.DOTALL)


def of(hostname: str, address: str, port: int, user: str, alias: str, jump: str) -> dict[str, str]:
    """Return the value of each token.

    Args:
        address: as the user wrote it.
        alias: HostKeyAlias or empty.
    """
    here, me = socket.gethostname(), pwd.getpwuid(os.getuid())
    return {
        "%": "%",
        "d": me.pw_dir,
        "h": hostname,
        "i": str(me.pw_uid),
        "j": jump,
        "k": alias or address,
        "L": here.partition(".")[0],
        "l": here,
        "n": address,
        "p": str(port),
        "r": user,
        "u": me.pw_name,
    }


def fill(option: str, text: str, tokens: Mapping[str, str], *, environment: bool = True) -> str:
    """Return the text with its tokens filled in. Raises Refused for an unknown token, or an unset variable."""

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("$"):
            if found[2] in os.environ:
                return os.environ[found[2]]
            raise Refused(f"{option} of ssh names {one_line(found[0], at_most=80)}, which is not set.")
        if found[1] in tokens:
            return tokens[found[1]]
        message = f"{option} of ssh has the token '{visible.name(found[0])}', which is not supported."
        raise Refused(message, fix="Write out what it stands for.")

    return (_EITHER if environment else _TOKEN).sub(value, text)
