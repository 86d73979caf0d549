"""How a command ends: a sentence on stderr, a recap for programs, and the documented exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from invoke.exceptions import Exit as InvokeExit

from sparkwright.errors import Exit, Inconclusive, SparkwrightError
from sparkwright.program import typed
from sparkwright.protocol import recap

WORST_FIRST = (Exit.FAILED, Exit.UNREACHABLE, Exit.REFUSED, Exit.INCONCLUSIVE, Exit.CHANGES, Exit.OK)


def worst(codes: Sequence[int]) -> Exit:
    """The exit code of a command over many hosts: the worst of theirs. A code that is none of them is a failure."""
    known = {code if code in WORST_FIRST else Exit.FAILED for code in codes}
    return next((code for code in WORST_FIRST if code in known), Exit.OK)


def reporting(command: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a task: a SparkwrightError becomes its sentence and exit code, a returned number the exit code."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            code = command(*args, **options) or 0
        except SparkwrightError as error:
            if options.get("debug") or os.environ.get("SPARKWRIGHT_DEBUG"):
                raise
            _say(error, options)
            code = int(error.exit)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read is gone: nothing more to say
            code = 0
        except KeyboardInterrupt:
            _say(Inconclusive("interrupted by Ctrl-C."), options)
            code = int(Exit.INCONCLUSIVE)
        except Exception as error:
            if options.get("debug") or os.environ.get("SPARKWRIGHT_DEBUG"):
                raise
            _say(_as_error(error), options)
            code = int(Exit.FAILED)
        if code:
            raise InvokeExit(code=code)

    return run


def _as_error(error: Exception) -> SparkwrightError:
    """What nobody foresaw; what the operating system refused says where."""
    from sparkwright.trust import system_errors

    if sentence := system_errors.sentence(error):
        return SparkwrightError(sentence)
    message = f"internal error: {type(error).__name__}: {error}."
    return SparkwrightError(message, fix="`--debug` shows the traceback; please report it.")


def _say(error: SparkwrightError, options: dict[str, Any]) -> None:
    answer = typed(str(error))
    print(answer, file=sys.stderr)
    if options.get("json"):
        row = {**recap.of_error(options.get("host", ""), error, msg=answer), "error": answer}
        print(json.dumps(row, ensure_ascii=False))
