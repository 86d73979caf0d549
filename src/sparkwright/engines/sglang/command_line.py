"""Command lines of SGLang: the parser of a running server's, those written elsewhere, and the flags that decide tasks and probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkwright.engines.flags import Command, Imports, grouped_words, plain_value
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.sglang import flags, http, options
from sparkwright.engines.tasks import TaskFlags

#: words before the flags in a command; older guides start the module
PROGRAM = frozenset(("sglang", "serve", "python", "python3", "-m", "sglang.launch_server"))


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, a number as a number, several words as a list.

    0.5.23 also takes the model as the first word.
    """
    found: dict[str, Any] = {}
    first = ""
    for written, values in grouped_words(words):
        if written:
            found |= flags.named({written: _value(flags.canonical(written), values)})
        else:
            first = next((word for word in values if word.rpartition("/")[2] not in PROGRAM), "")
    return Command(str(found.pop(flags.MODEL, "") or first), found)


def _value(name: str, words: list[str]) -> Any:
    kind = flags.kinds().get(name, "")
    if kind in flags.SWITCHES or not words:
        return True
    if kind == "list" or len(words) > 1:
        return [plain_value(word) for word in words]
    return words[0] if kind == "text" else plain_value(words[0])


# Other people's ways to start SGLang. Sources: spark-arena/recipe-registry@3075780, scitrera/oss-spark-run@3190eb7;
# server_args.py of 0.5.23.

#: prefixes of names that argparse completes, as guides write them
SHORT = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size"}


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words with long names, as `--tp-size 2` for `--tp 2`."""
    return [SHORT.get(word, word) for word in words]


IMPORTS = Imports(
    image=f"lmsysorg/sglang:v{options.SOURCE}",
    port_inside=http.PORT,
    names=("sglang", "sglang.launch_server"),
    program=("sglang", "serve"),
    host=flags.HOST,
    key=flags.KEYS,
    tensor="tp-size",
    pipeline="pp-size",
    backends=("nnodes", "node-rank", "dist-init-addr"),
    replicas=("dp-size",),
    revisions=("revision",),
    files=("chat-template", "config"),
    further_models={"speculative-draft-model-path": "", "tokenizer-path": ""},
    downloads=("download-dir",),
    spelled_out=spelled_out,
    served_name=flags.SERVED_NAME,
)


# Flags with which SGLang embeds and reranks: `is-embedding`. Source: 0.5.23's server_args.py; read, not run.

TASK_FLAGS = TaskFlags(
    needs={"embed": {"is-embedding": True}, "rerank": {"is-embedding": True}},
    excludes={"generate": {"is-embedding": (True,)}},
)


# Flags of SGLang that cause what a probe finds. Read in the source of 0.5.23, not tested with a real server.

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
