"""Report a command's errors: a message on stderr, a JSON recap for scripts, and the documented exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from invoke.exceptions import Exit as InvokeExit

from sparkwright.console.command_output import print_prose
from sparkwright.errors import Exit, Inconclusive, SparkwrightError
from sparkwright.program import rewrite_commands
from sparkwright.protocol import events
from sparkwright.trust import bounds

#: exit codes for several hosts, worst first; for the states of one host see health/record.py
EXIT_CODES_WORST_FIRST = (Exit.FAILED, Exit.UNREACHABLE, Exit.REFUSED, Exit.INCONCLUSIVE, Exit.CHANGES, Exit.OK)


def worst_exit_code(codes: Sequence[int]) -> Exit:
    """Return the worst exit code of several hosts. An unknown code counts as a failure."""
    exit_codes = {code if code in EXIT_CODES_WORST_FIRST else Exit.FAILED for code in codes}
    return next((code for code in EXIT_CODES_WORST_FIRST if code in exit_codes), Exit.OK)


def handle_errors(command: Callable[..., int | Sequence[int] | None]) -> Callable[..., None]:
    """Wrap a command for Invoke: print errors as messages and exit with the exit code, or raise them with `debug`.

    The command returns an exit code, None for success, or a list of codes, of which the worst is used.
    """

    @functools.wraps(command)
    def run_and_exit(context: object, *, debug: bool = False, **options: Any) -> None:
        code: int = Exit.OK
        try:
            with _tolerate_closed_pipe():
                outcome = command(**options)
            code = worst_exit_code(outcome) if isinstance(outcome, Sequence) else outcome or Exit.OK
        except BrokenPipeError:  # output that bypassed sys.stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.INCONCLUSIVE
        except KeyboardInterrupt:
            code = _print_error(Inconclusive("interrupted by Ctrl-C."), options)
        except Exception as error:
            if debug or os.environ.get("SPARKWRIGHT_DEBUG"):
                raise
            code = _print_error(error if isinstance(error, SparkwrightError) else _convert_error(error), options)
        if code:
            raise InvokeExit(code=int(code))

    return run_and_exit


class PipeSafeOutput:
    """Standard output whose reader may close the pipe, as `head` does.

    The rest of the output is discarded, and the command ends with its own exit code.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.reader_gone = False

    def write(self, text: str) -> int:
        """Write the text, or discard it if the reader is gone."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._handle_error(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream unless the reader is gone."""
        try:
            self._stream.flush()
        except OSError as error:
            self._handle_error(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _handle_error(self, error: OSError) -> None:
        """Discard the output if the reader is gone. Raises the error otherwise, with the name of the stream."""
        if not isinstance(error, BrokenPipeError):
            error.filename = error.filename or "standard output"
            raise error
        self.reader_gone = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def is_reader_gone() -> bool:
    """Return True if the reader of standard output closed the pipe; a command that runs until interrupted should then stop."""
    return isinstance(sys.stdout, PipeSafeOutput) and sys.stdout.reader_gone


@contextlib.contextmanager
def _tolerate_closed_pipe() -> Iterator[None]:
    """Replace standard output with a `PipeSafeOutput` unless it is a terminal."""
    original_stdout = sys.stdout
    if original_stdout is None or isinstance(original_stdout, PipeSafeOutput) or original_stdout.isatty():
        yield
        return
    sys.stdout = PipeSafeOutput(original_stdout)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stdout = original_stdout


def _convert_error(error: Exception) -> SparkwrightError:
    """Convert an unexpected exception to an error with a message for the user."""
    if description := bounds.describe_os_error(error):
        return SparkwrightError(description)
    message = f"internal error: {type(error).__name__}: {error}."
    return SparkwrightError(message, fix="`--debug` shows the traceback; please report it.")


def _print_error(error: SparkwrightError, options: dict[str, Any]) -> Exit:
    message = rewrite_commands(str(error))
    print_prose(message, file=sys.stderr)
    if options.get("json"):
        recap = {**events.build_error_recap(options.get("host", ""), error, msg=message), "error": message}
        print(json.dumps(recap, ensure_ascii=False))
    return error.exit
