"""Flags of SGLang that cause what a probe finds. Read in the source of 0.5.23, not tested with a real server."""

from __future__ import annotations

from sparkwright.engines.probes.probe import ProbeFlags

TOOL_PARSER = "--tool-call-parser is missing, or not that of this model"
REASONING_PARSER = "--reasoning-parser is missing, or not that of this model"
#: error messages of Jinja and of templates' raise_exception about a conversation that they refuse
UNRENDERED = r"roles must alternate|[Tt]emplate|jinja|can only get item pairs|only .{0,40}roles? .{0,40}supported"
PROBE_FLAGS = ProbeFlags(
    by_message=(
        (UNRENDERED, "the model's chat template does not take this conversation: --chat-template with another one"),
    ),
    promises={"tool_call": "tool-call-parser", "reasoning": "reasoning-parser"},
    needs={"tool_call": ("tool-call-parser",)},
    causes={
        "tools refused": TOOL_PARSER,
        "tool call as text": TOOL_PARSER,
        "tool call in the thinking": f"{REASONING_PARSER}: it takes the call for thinking",
        "tool call with bad arguments": TOOL_PARSER,
        "no tool call": "--chat-template, or the model's own template, leaves the tools out",
        "tool choice ignored": "--chat-template writes the tools into the prompt whatever `tool_choice` says",
        "only without stream": "--tool-call-parser or --reasoning-parser is not that of this model, or its streaming is broken in this release",
        "content null": "--reasoning-parser is not that of this model: it took all of the text",
        "thinking in content": REASONING_PARSER,
        "no thinking apart": f"{REASONING_PARSER}, or --default-chat-template-kwargs turns thinking off",
        "not the schema": "--grammar-backend is none, or --reasoning-parser is missing",
        "picture refused": "--enable-multimodal is missing, or the model reads no pictures",
        "picture not seen": "--chat-template, or the weights of the vision part",
        "another dimension": "another model, or --json-model-override-args cuts its vectors",
        "garbage": "a kernel for FP4 weights or experts that fails on this GPU: try another --moe-runner-backend and --attention-backend, "
        "another quantization of the model, or see --chat-template",
        "another language": "--chat-template is another model's, or the weights are damaged",
    },
)
