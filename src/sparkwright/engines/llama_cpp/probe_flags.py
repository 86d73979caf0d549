"""Flags of llama-server that cause what a probe finds. Seen on b11549 (tests/real_llama/test_probes.py): any model returns JSON
of a schema, tools are refused with --no-jinja, pictures without --mmproj. The rest is from its help text."""

from __future__ import annotations

from sparkwright.engines.probes.probe import ProbeFlags

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
