"""The `vllm` command: `serve`, and output that needs no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.sandbox.vllm.command_line import flags
from sparkwright.sandbox.vllm.command_line.arguments import OUTER_USAGE

MODULE = "vllm.entrypoints.openai.api_server"
ASK_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Printed:
    """Output without an engine: text and exit code."""

    text: str
    code: int


@dataclass(frozen=True)
class Serve:
    """A server to start with these arguments."""

    argv: tuple[str, ...]


def command(words: Sequence[str], version: str) -> Printed | Serve:
    """Return the outcome of `vllm WORDS`: printed text, or a server to start."""
    match list(words):
        case [("-v" | "--version"), *_]:
            return Printed(version, 0)
        case [("-h" | "--help"), *_]:
            return Printed(OUTER_USAGE, 0)
        case ["serve", *rest]:
            asks = any(word in ASK_HELP or word.startswith("--help=") for word in rest)
            return Printed(flags.help_text(version), 0) if asks else Serve(tuple(rest))
        case [other, *_]:
            message = f"argument {{chat,complete,serve,launch,bench,collect-env}}: invalid choice: {other!r}"
            return Printed(f"{OUTER_USAGE}\nvllm: error: {message}", 2)
        case _:
            return Printed(OUTER_USAGE, 0)


def program(argv: Sequence[str], version: str) -> Printed | Serve | None:
    """Return the outcome of a container's whole command line, or None if the image has no such program."""
    match list(argv):
        case ["vllm", *words]:
            return command(words, version)
        case [("python" | "python3"), "-m", name, *words] if name == MODULE:
            return command(["serve", *words], version)
        case [("python" | "python3"), "-c", code] if "vllm" in code and "__version__" in code:
            return Printed(version, 0)
        case _:
            return None
