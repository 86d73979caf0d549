"""The log format of a custom server, which recognizes no line."""

from __future__ import annotations

import re

from sparkwright.engines.log.log_format import LogFormat
from sparkwright.engines.log.text import LinePattern

#: matches no line
UNMATCHABLE_LINE = LinePattern("\0", r"(?!)")

LOG = LogFormat(
    noise=(" HTTP/1.", "\0", "\0"),
    arguments_line=UNMATCHABLE_LINE,
    stages=(("ready", (UNMATCHABLE_LINE,)),),
    failures=(),
    harmless_pattern=re.compile(UNMATCHABLE_LINE.pattern),
    prefix_pattern=re.compile(UNMATCHABLE_LINE.pattern),
    clock_pattern=re.compile(UNMATCHABLE_LINE.pattern),
)
