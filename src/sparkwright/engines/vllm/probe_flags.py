"""Flags of vLLM that cause what a probe finds.

Sources: 0.32.0 on a CPU with a model that recites a good model's output (tests/real_engine/test_probes.py: 400 without both
flags, a call as text, a call in the thinking, thinking in the content, content null); `--enable-auto-tool-choice requires
--tool-call-parser`, vllm/entrypoints/openai; vllm issues 41902 and 41477 (a wrong parser: content null). The thinking is in
`reasoning`, before 0.16 or so in `reasoning_content`.
"""

from __future__ import annotations

from sparkwright.engines.probes.probe import ProbeFlags

TOOL_PARSER = "--tool-call-parser is not that of this model"
REASONING_PARSER = "--reasoning-parser is missing, or not that of this model"
TEMPLATE = "--chat-template, or the model's own template, leaves the tools out"
#: error messages of Jinja and of templates' raise_exception about a conversation that they refuse
UNRENDERED = r"roles must alternate|[Tt]emplate|jinja|can only get item pairs|only .{0,40}roles? .{0,40}supported"
PROBE_FLAGS = ProbeFlags(
    by_message=(
        (
            r"requires --enable-auto-tool-choice|requires --tool-call-parser",
            "--enable-auto-tool-choice and --tool-call-parser are needed",
        ),
        (UNRENDERED, "the model's chat template does not take this conversation: --chat-template with another one"),
    ),
    promises={"tool_call": "tool-call-parser", "reasoning": "reasoning-parser"},
    needs=dict.fromkeys(("tool_call", "messages", "responses"), ("enable-auto-tool-choice", "tool-call-parser")),
    causes={
        "tools refused": "--chat-template or the model's own template does not take tools; see the server's words",
        "tool call as text": TOOL_PARSER,
        "tool call in the thinking": f"{REASONING_PARSER}: it takes the call for thinking",
        "tool call with bad arguments": TOOL_PARSER,
        "no tool call": TEMPLATE,
        "tool choice ignored": "--chat-template writes the tools into the prompt whatever `tool_choice` says (--exclude-tools-when-tool-choice-none)",
        "only without stream": "--tool-call-parser or --reasoning-parser is not that of this model, or its streaming is broken in this release",
        "content null": "--reasoning-parser or --tool-call-parser is not that of this model: it took all of the text",
        "thinking in content": REASONING_PARSER,
        "no thinking apart": f"{REASONING_PARSER}, or --default-chat-template-kwargs turns thinking off",
        "not the schema": "--structured-outputs-config chooses a backend that does not hold the schema, or --reasoning-parser is missing",
        "picture refused": "--language-model-only or --limit-mm-per-prompt leaves pictures out, or the model reads none",
        "picture not seen": "--mm-processor-kwargs, --chat-template, or the weights of the vision part",
        "another dimension": "another model, or --hf-overrides and --pooler-config cut its vectors",
        "garbage": "a kernel for FP4 weights or experts that fails on this GPU: try --moe-backend marlin and --linear-backend marlin, "
        "another quantization of the model, or see --chat-template",
        "another language": "--chat-template is another model's, or the weights are damaged",
    },
)
