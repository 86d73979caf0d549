"""Settings that make coding agents, chat front ends and libraries use a server, each in the program's own format.

API keys are never written: the settings name an environment variable. The formats are those documented on 2026-11-26.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from packaging.version import Version

from sparkwright.engines import api_paths
from sparkwright.engines.engine import Engine
from sparkwright.engines.tasks import PROOF_TEXT
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import suggest_name
from sparkwright.shell import quote

#: name of the provider in settings that require one
PROVIDER_NAME = "spark"
#: key in settings that require one, if the server accepts requests without a key
PLACEHOLDER_KEY = "none"
#: minimum context for an agent, in tokens; the prompt and tools of Claude Code, Codex and similar agents take 15,000 of them
MIN_AGENT_CONTEXT = 65_536


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server or gateway that a client uses, and its model."""

    #: base URL without /v1
    url: str
    model: str
    #: context length in tokens; None if the server does not report it
    context_length: int | None
    #: largest `max_tokens` of a request; None if the context length is unknown
    max_answer_tokens: int | None
    #: environment variable with the key; empty if the server accepts requests without a key
    key_variable: str
    #: True if the model accepts pictures
    pictures: bool
    #: names of the model's LoRA adapters in requests
    adapters: tuple[str, ...] = ()
    #: where the user finds the key for the variable; empty if the variable itself is configured as the key's source
    key_source: str = ""
    #: the server's engine; None if unknown
    engine: Engine | None = None
    #: release of the engine; None if unknown
    engine_version: Version | None = None


@dataclass(frozen=True, slots=True)
class ClientFormat:
    """The settings of one client."""

    #: where the settings belong, for example a file
    destination: str
    #: returns the settings as text
    render: Callable[[Endpoint], str]
    #: page that documents the format
    documentation_url: str
    #: API path that the client uses
    path: str = "/v1/chat/completions"
    is_agent: bool = False


def _format_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2)


def _format_yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip()


def _format_key(endpoint: Endpoint, template: str) -> str:
    """Insert the name of the key's environment variable into a template."""
    return template.format(endpoint.key_variable) if endpoint.key_variable else PLACEHOLDER_KEY


def claude_variables(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment variables of Claude Code, except the one with the key."""
    names = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    variables = {"ANTHROPIC_BASE_URL": endpoint.url} | dict.fromkeys(names, endpoint.model)
    if endpoint.max_answer_tokens:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(endpoint.max_answer_tokens)
    if endpoint.context_length:
        # without it Claude Code assumes 200,000 tokens and compacts too late; models named `claude-...` need the second variable
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(endpoint.context_length)
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(endpoint.context_length)
    return variables


def _format_claude_code(endpoint: Endpoint) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in claude_variables(endpoint).items()]
    key = _format_key(endpoint, "${}")
    return "\n".join([*lines, f'export ANTHROPIC_AUTH_TOKEN="{key}"', "claude"])


def _format_codex(endpoint: Endpoint) -> str:
    settings: list[tuple[str, Any]] = [("model", endpoint.model), ("model_provider", PROVIDER_NAME)]
    if endpoint.context_length:
        settings.append(("model_context_window", endpoint.context_length))
    provider = [("name", PROVIDER_NAME), ("base_url", f"{endpoint.url}/v1"), ("wire_api", "responses")]
    if endpoint.key_variable:
        provider.append(("env_key", endpoint.key_variable))
    lines, provider_lines = (
        [f"{name} = {json.dumps(value)}" for name, value in table] for table in (settings, provider)
    )
    return "\n".join([*lines, "", f"[model_providers.{PROVIDER_NAME}]", *provider_lines])


def _format_opencode(endpoint: Endpoint) -> str:
    model: dict[str, Any] = {"name": endpoint.model}
    if endpoint.context_length and endpoint.max_answer_tokens:
        model["limit"] = {"context": endpoint.context_length, "output": endpoint.max_answer_tokens}
    if endpoint.pictures:
        model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    options = {"baseURL": f"{endpoint.url}/v1", "apiKey": _format_key(endpoint, "{{env:{}}}")}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": PROVIDER_NAME, "options": options}
    provider_settings = {**provider, "models": {endpoint.model: model}}
    return _format_json({"provider": {PROVIDER_NAME: provider_settings}, "model": f"{PROVIDER_NAME}/{endpoint.model}"})


def _format_continue(endpoint: Endpoint) -> str:
    model: dict[str, Any] = {
        "name": f"{endpoint.model} ({PROVIDER_NAME})",
        "provider": "openai",
        "model": endpoint.model,
        "apiBase": f"{endpoint.url}/v1",
        "apiKey": _format_key(endpoint, "${{{{ secrets.{} }}}}"),
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use", *(["image_input"] if endpoint.pictures else [])],
    }
    if endpoint.context_length:
        model["defaultCompletionOptions"] = {
            "contextLength": endpoint.context_length,
            "maxTokens": endpoint.max_answer_tokens,
        }
    return _format_yaml({"name": PROVIDER_NAME, "version": "1.0.0", "schema": "v1", "models": [model]})


def aider_metadata(endpoint: Endpoint) -> dict[str, Any]:
    """Return the model's limits in aider's format; empty if they are unknown."""
    if not endpoint.context_length or not endpoint.max_answer_tokens:
        return {}
    limits = {"max_input_tokens": endpoint.context_length, "max_output_tokens": endpoint.max_answer_tokens}
    return {f"openai/{endpoint.model}": {**limits, "litellm_provider": "openai", "mode": "chat"}}


def _format_aider(endpoint: Endpoint) -> str:
    key, limits = _format_key(endpoint, "${}"), aider_metadata(endpoint)
    lines = [f"export OPENAI_API_BASE={quote(f'{endpoint.url}/v1')}", f'export OPENAI_API_KEY="{key}"']
    command = f"aider --model {quote(f'openai/{endpoint.model}')}"
    if not limits:
        return "\n".join([*lines, command])
    file = f"~/.aider.{PROVIDER_NAME}.json"
    return "\n".join([*lines, f"echo {quote(json.dumps(limits))} > {file}", f"{command} --model-metadata-file {file}"])


def _format_openclaw(endpoint: Endpoint) -> str:
    model: dict[str, Any] = {
        "id": endpoint.model,
        "name": endpoint.model,
        "input": ["text", *(["image"] if endpoint.pictures else [])],
    }
    if endpoint.context_length and endpoint.max_answer_tokens:
        model |= {"contextWindow": endpoint.context_length, "maxTokens": endpoint.max_answer_tokens}
    provider = {
        "baseUrl": f"{endpoint.url}/v1",
        "apiKey": _format_key(endpoint, "${{{}}}"),
        "api": "openai-completions",
    }
    return _format_json(
        {
            "models": {"providers": {PROVIDER_NAME: {**provider, "models": [model]}}},
            "agents": {"defaults": {"model": {"primary": f"{PROVIDER_NAME}/{endpoint.model}"}}},
        }
    )


def _format_open_webui(endpoint: Endpoint) -> str:
    # without quotes, which `docker run --env-file` and the fields of its settings page take as part of the value
    return f"OPENAI_API_BASE_URL={endpoint.url}/v1\nOPENAI_API_KEY={_format_key(endpoint, '${}')}"


def _format_litellm(endpoint: Endpoint) -> str:
    params = {"model": f"openai/{endpoint.model}", "api_base": f"{endpoint.url}/v1"}
    entry = {
        "model_name": endpoint.model,
        "litellm_params": {**params, "api_key": _format_key(endpoint, "os.environ/{}")},
    }
    # LiteLLM 1.108 does not start without a master key
    return f"{_format_yaml({'model_list': [entry]})}\n# export LITELLM_MASTER_KEY, the key for its clients, before starting it"


def _format_cline(endpoint: Endpoint) -> str:
    fields = {
        "API Provider": "OpenAI Compatible",
        "Base URL": f"{endpoint.url}/v1",
        "API Key": _format_key(endpoint, "the value of ${}"),
        "Model ID": endpoint.model,
        "Context Window Size": str(endpoint.context_length or "unknown"),
        "Max Output Tokens": str(endpoint.max_answer_tokens or "unknown"),
        "Supports Images": "yes" if endpoint.pictures else "no",
    }
    return "\n".join(f"{name:<20} {value}" for name, value in fields.items())


def _format_curl(endpoint: Endpoint) -> str:
    body = json.dumps({"model": endpoint.model, "messages": [{"role": "user", "content": PROOF_TEXT}]})
    header = f' -H "Authorization: Bearer ${endpoint.key_variable}"' if endpoint.key_variable else ""
    return f"curl {quote(f'{endpoint.url}/v1/chat/completions')}{header} -H 'Content-Type: application/json' -d {quote(body)}"


def _format_python(endpoint: Endpoint) -> str:
    key = f"os.environ[{endpoint.key_variable!r}]" if endpoint.key_variable else repr(PLACEHOLDER_KEY)
    lines = [
        *(("import os", "") if endpoint.key_variable else ()),
        "from openai import OpenAI",
        "",
        f"client = OpenAI(base_url={f'{endpoint.url}/v1'!r}, api_key={key})",
        f"answer = client.chat.completions.create(model={endpoint.model!r}, messages=[{{'role': 'user', 'content': 'Say ok.'}}])",
        "print(answer.choices[0].message.content)",
    ]
    return "\n".join(lines)


FORMATS: Mapping[str, ClientFormat] = {
    "claude-code": ClientFormat(
        "the shell that starts it",
        _format_claude_code,
        "docs.vllm.ai/en/stable/serving/integrations/claude_code",
        api_paths.MESSAGES_PATH,
        is_agent=True,
    ),
    "codex": ClientFormat(
        "~/.codex/config.toml",
        _format_codex,
        "developers.openai.com/codex/config-reference",
        api_paths.RESPONSES_PATH,
        is_agent=True,
    ),
    "opencode": ClientFormat("opencode.json", _format_opencode, "opencode.ai/docs/providers", is_agent=True),
    "cline": ClientFormat(
        "Cline's settings", _format_cline, "docs.cline.bot/provider-config/openai-compatible", is_agent=True
    ),
    "continue": ClientFormat("~/.continue/config.yaml", _format_continue, "docs.continue.dev/reference", is_agent=True),
    "aider": ClientFormat(
        "the shell that starts it", _format_aider, "aider.chat/docs/llms/openai-compat.html", is_agent=True
    ),
    "openclaw": ClientFormat(
        "~/.openclaw/openclaw.json",
        _format_openclaw,
        "docs.openclaw.ai/gateway/config-tools/custom-providers",
        is_agent=True,
    ),
    "open-webui": ClientFormat("its environment", _format_open_webui, "docs.openwebui.com/reference/env-configuration"),
    "litellm": ClientFormat("config.yaml", _format_litellm, "docs.litellm.ai/docs/providers/openai_compatible"),
    "curl": ClientFormat("a shell", _format_curl, "platform.openai.com/docs/api-reference/chat"),
    "python": ClientFormat("a program, with the package openai", _format_python, "github.com/openai/openai-python"),
}


def get_format(name: str) -> ClientFormat:
    """Return the format of a client. Raises Refused, with a similar name, for an unknown client."""
    if name not in FORMATS:
        hint = suggest_name(name, FORMATS)
        raise Refused(f"no client named {name!r}.", where="--for", fix=hint or f"Clients: {', '.join(FORMATS)}.")
    return FORMATS[name]


def format_lines(client_format: ClientFormat, endpoint: Endpoint) -> list[str]:
    """Return the settings as lines, with comments about adapters, the key, and requirements that the server does not meet."""
    lines = [f"# for {client_format.destination} ({client_format.documentation_url})", client_format.render(endpoint)]
    if client_format.is_agent and endpoint.context_length is not None and endpoint.context_length < MIN_AGENT_CONTEXT:
        lines.append(
            f"# an agent needs a context of {MIN_AGENT_CONTEXT} tokens or more; "
            f"this server has {endpoint.context_length}"
        )
    if endpoint.adapters:
        lines.append(f"# LoRA adapters, as `model` in requests: {', '.join(endpoint.adapters)}")
    if endpoint.key_source:
        lines.append(f"# set {endpoint.key_variable} to {endpoint.key_source}")
    if endpoint.engine is not None:
        missing_paths = find_missing_paths(client_format, endpoint.engine, endpoint.engine_version)
        lines += [f"# this client calls {path}, {clause}" for path, clause in missing_paths.items()]
    return lines


def find_missing_paths(client_format: ClientFormat, engine: Engine, version: Version | None) -> dict[str, str]:
    """Return the paths that a client calls and a release of an engine does not serve, each with a clause that says so.

    If the release is unknown, only paths that no release serves are returned.
    """
    missing_paths = {}
    for path in api_paths.client_paths(client_format.path):
        release = api_paths.first_release(engine.http.paths, path)
        if path not in api_paths.list_paths(engine.http.paths):
            missing_paths[path] = f"which {engine.title} is not known to serve"
        elif release and version is not None and version.release < Version(release).release:
            missing_paths[path] = f"which {engine.title} serves from {release} on; this is {version}"
    return missing_paths
