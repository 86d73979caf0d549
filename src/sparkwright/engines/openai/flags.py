"""The recipe section of a custom server, with its command and its API (description.py) instead of an engine's flags.

Nothing is added to the arguments under `command`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engines.flags import AdapterFlags, Command, ModelFlag, ModelRole, option_value
from sparkwright.engines.openai import description
from sparkwright.engines.openai.http import PORT as DEFAULT_PORT

#: None stands for the image's entrypoint, or the recipe's `container.entrypoint`
ENTRYPOINT: tuple[str, ...] | None = None
PORT = "port"
HOST = "host"
MEMORY = "memory_gib"
BUDGET_FLAG = ""
COMMAND = "command"
CONTEXT = "context"
SERVED_NAME = "served_name"
RESERVED_FLAGS: Mapping[str, str] = {}
TEMPLATE_FLAGS: tuple[str, ...] = ()
SAMPLING_FLAGS: tuple[str, ...] | None = ()
MODEL_FLAGS: Mapping[ModelRole, ModelFlag] = {}
ADAPTER_FLAGS: AdapterFlags | None = None

_PATH_SCHEMA = {"type": "string", "pattern": "^/"}
_LIST_SCHEMA = {"type": "array", "items": {"type": "string"}}


def normalize(written_flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section unchanged: its keys have no aliases."""
    return dict(written_flags)


def canonical(spelling: str) -> str:
    """Return the key unchanged."""
    return spelling


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key; None if it is not set. An address that is not set is taken from the command's `--host`."""
    setting = flags.get(name)
    if setting is None and name == HOST:
        return option_value(command_words(flags), "--host") or None
    return setting


def find_value_problem(flags: Mapping[str, Any], name: str) -> str:
    """Return why a key's value is invalid; "" if no problem is known."""
    return next((reason for path, reason in description.find_mistakes(flags) if path == (name,)), "")


def command_words(flags: Mapping[str, Any]) -> tuple[str, ...]:
    arguments = flags.get(COMMAND)
    return tuple(map(str, arguments)) if isinstance(arguments, Sequence) and not isinstance(arguments, str) else ()


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of the command."""
    return command_words(flags)


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of the command, which include the model."""
    return command_words(flags)


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the only model name for requests."""
    return (str(flags.get(SERVED_NAME) or model),)


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens in its container; the default for an invalid value, which rules report."""
    setting = None if find_value_problem(flags, PORT) else flags.get(PORT)
    return DEFAULT_PORT if setting is None else int(setting)


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the context length in tokens; None if it is not set or invalid."""
    setting = flags.get(CONTEXT)
    return setting if isinstance(setting, int) and not find_value_problem(flags, CONTEXT) else None


def properties() -> dict[str, Any]:
    """Return the keys of the section as the properties of a JSON Schema."""
    name_mapping = {"type": "object", "additionalProperties": {"type": "string"}, "required": ["path"]}
    return {
        "served_name": {"type": "string", "description": "the model's name in requests to the server"},
        "command": {
            **_LIST_SCHEMA,
            "description": "the arguments after the image, passed unchanged; if empty, the image's own command runs",
        },
        "port": {
            "type": "integer",
            "description": f"port on which the server listens in its container (default {DEFAULT_PORT})",
        },
        "host": {
            "type": "string",
            "description": "address on which the server listens, if `command` does not contain it",
        },
        "health": {**_PATH_SCHEMA, "description": "path that answers 200 once the server is ready (default /health)"},
        "loading": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "HTTP statuses of `health` while the server is loading (default 503)",
        },
        "models": {**_PATH_SCHEMA, "description": "path that lists the served models (default /v1/models)"},
        "version": {
            "type": "string",
            "description": "path whose JSON response has the engine's version under `version`; empty if there is none",
        },
        "settings": {
            **name_mapping,
            "description": "`path` of a JSON response with the server's settings, and for each setting its key in the response",
        },
        "metrics": {
            **name_mapping,
            "description": "`path` of the Prometheus metrics, and for each role the name of its metric",
        },
        "public": {**_LIST_SCHEMA, "description": "paths that need no API key, in addition to `health`"},
        "paths": {
            "type": "array",
            "items": {
                "anyOf": [
                    _PATH_SCHEMA,
                    {
                        "type": "object",
                        "properties": {"path": _PATH_SCHEMA, "model": {"enum": ["json", "form"]}},
                        "required": ["path"],
                        "additionalProperties": False,
                    },
                ]
            },
            "description": "additional API paths for clients, which a gateway routes",
        },
        "key": {
            "type": "object",
            "description": "how `server_key` is passed to the server: {env: NAME} or {file_flag: NAME}",
        },
        "context": {"type": "integer", "description": "context length in tokens, for client settings"},
        "memory_gib": {"type": "number", "description": "the server's memory use in GiB; unknown if not set"},
    }


def parse_command(words: Sequence[str]) -> Command:
    """Return an empty command: a custom server's arguments are not parsed."""
    return Command()
