"""Command lines of llama-server: the parser of a running server's, those written elsewhere, and the flags that decide tasks and probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkwright.engines.flags import Command, Imports, plain_value
from sparkwright.engines.llama_cpp import flags, http
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, a number as a number. Other words are skipped."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, off = flags.by_word().get(word.lstrip("-").replace("_", "-"), (None, False))
        if not word.startswith("-"):
            continue
        if option is None:
            found[flags.canonical(word)] = _plain(rest.pop(0)) if rest and not rest[0].startswith("-") else True
        elif option.kind in ("switch", "bare"):
            found[option.name] = not off
        else:
            count = 2 if option.kind == "two" else 1
            given, rest = rest[:count], rest[count:]
            found[option.name] = _given(option, given)
    return Command(str(found.pop(flags.MODEL, "")), found)


def _given(option: flags.Option, words: Sequence[str]) -> Any:
    if option.kind == "two":
        return [_plain(word) for word in words]
    word = words[0] if words else ""
    return word if option.kind in ("text", "on") else _plain(word)


def _plain(word: str) -> Any:
    """Return a word as the number or the mapping that it holds, else as text."""
    found = plain_value(word)
    return word if isinstance(found, list) else found


# Other people's ways to start llama-server. Sources: scitrera/oss-spark-run@3190eb7; tools/server/README.md of b11434.

IMPORTS = Imports(
    image="ghcr.io/ggml-org/llama.cpp:server-cuda13",
    port_inside=http.PORT,
    names=("llama-server", "llama.cpp", "llama-cpp", "llama_cpp"),
    program=("llama-server",),
    host=flags.HOST,
    key=("api-key", "api-key-file"),
    repository="hf-repo",
    repository_file="hf-file",
    files=("chat-template-file", "grammar-file", "lora"),
    further_models={"hf-repo-draft": "", "spec-draft-hf": ""},
    downloads=("model-url", "docker-repo"),
    tokens=("hf-token",),
    one_dash=True,
)


# Flags with which llama-server embeds and reranks. Sources: b11549, real: without them 501, "Start it with `--embeddings`";
# with a pooling of none 400, "not OAI compatible".

TASK_FLAGS = TaskFlags(
    needs={"embed": {"embeddings": True}, "rerank": {"reranking": True}},
    excludes={"embed": {"pooling": ("none", "rank")}},
)


# Flags of llama-server that cause what a probe finds. Seen on b11549 (tests/real_llama/test_probes.py): any model returns JSON
# of a schema, tools are refused with --no-jinja, pictures without --mmproj. The rest is from its help text.

TEMPLATE = "--no-jinja, or --chat-template is not that of this model"
FORMAT = "--reasoning-format none leaves the thinking in the content, or --chat-template is not that of this model"
#: llama-server's error for a template that it can't render; its template engine is not Python's (b11549, minja)
UNRENDERED = (
    r"not callable|at row \d+, column \d+|[Tt]emplate|roles must alternate|[Uu]nknown (?:filter|function|test|method)"
)
PROBE_FLAGS = ProbeFlags(
    by_message=(
        (r"tools? param requires --jinja", "--no-jinja turns tools off"),
        (
            r"instead of `message_start`",
            "the build: b11549 leaves `message_start` out of some streams, see docs/llama-cpp.md",
        ),
        (r"hint: .{0,80}mmproj", "--mmproj is missing (`model.mmproj`)"),
        (
            UNRENDERED,
            "the chat template is not one that llama.cpp can render: --chat-template-file with a template made for it",
        ),
    ),
    causes={
        "tools refused": "--chat-template-file with a template made for llama.cpp: the model's own does not take tools here",
        "tool call as text": f"{TEMPLATE}; --skip-chat-parsing leaves calls in the text",
        "tool call in the thinking": FORMAT,
        "tool call with bad arguments": TEMPLATE,
        "no tool call": TEMPLATE,
        "tool choice ignored": "--chat-template writes the tools into the prompt whatever `tool_choice` says",
        "only without stream": "--chat-template is not that of this model, or --reasoning-format; its streaming is broken in this build",
        "content null": "--reasoning-budget or --chat-template is not that of this model: all of the text counted as thinking",
        "thinking in content": FORMAT,
        "no thinking apart": "--reasoning off, or --reasoning-format none",
        "not the schema": "--skip-chat-parsing, or a build without grammars",
        "picture refused": "--mmproj is missing (`model.mmproj`)",
        "picture not seen": "--mmproj is another model's (`model.mmproj`)",
        "another dimension": "another model, or --pooling none",
        "garbage": "another quantization than this file's, an uneven --cache-type-k and --cache-type-v, or --chat-template of another model",
        "another language": "--chat-template is another model's, or the weights are damaged",
    },
)
