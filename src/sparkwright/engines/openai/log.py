"""The log format of a custom server, which recognizes no line."""

from __future__ import annotations

import re

from sparkwright.engines.log.log_format import LogFormat
from sparkwright.engines.log.text import Line

#: matches no line
NEVER = Line("\0", r"(?!)")

LOG = LogFormat(
    noise=(" HTTP/1.", "\0", "\0"),
    arguments=NEVER,
    stages=(("ready", (NEVER,)),),
    failures=(),
    harmless=re.compile(NEVER.pattern),
    prefix=re.compile(NEVER.pattern),
    clock=re.compile(NEVER.pattern),
)
