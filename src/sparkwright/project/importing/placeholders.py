"""The `{placeholders}` of a command template, filled from the recipe's defaults or the user's answers.

Source: sparkrun 0.4.2 core/recipe.py: `{{` and `}}` are escapes only where the template has a `{{`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sparkwright.project.importing.report import Report

_PLAIN = re.compile(r"\{([A-Za-z_]\w{0,60})\}")
_ESCAPED = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w{0,60})\}")


def filled(template: str, values: Mapping[str, str], report: Report) -> str:
    """Return the template with its values; the user is asked for a missing one as `placeholder.NAME`."""

    def one(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name in values:
            return values[name]
        sentence = f"the command has a placeholder {{{name}}} that the recipe gives no value"
        return report.ask(f"placeholder.{name}", sentence) or "0"

    pattern = _ESCAPED if "{{" in template else _PLAIN
    replace: Callable[[re.Match[str]], str] = one
    return pattern.sub(replace, template)
