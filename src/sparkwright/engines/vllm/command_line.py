"""Command lines of vLLM: the parser of a running server's, those written elsewhere, and the flags that decide tasks and probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkwright.engines.flags import Command, Imports, grouped_words, plain_value
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags
from sparkwright.engines.vllm.flags import flag_types, flag_values, flags
from sparkwright.engines.vllm.parallel import member_flags as parallel

#: words before the model in a command
PROGRAM = frozenset(("vllm", "serve"))


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, several words as a list, JSON as its value."""
    grouped = list(grouped_words(words))
    found: dict[str, Any] = {}
    for written, values in grouped:
        for name, message in flags.named({written: _value(values)}).items() if written else ():
            before = found.get(name)
            again = before is not None and flag_values.repeats(name)
            found[name] = [*(before if isinstance(before, list) else [before]), message] if again else message
    leading = (word for name, values in grouped if not name for word in values)
    first = next((word for word in leading if word.rpartition("/")[2] not in PROGRAM), "")
    return Command(str(found.pop(flags.MODEL, None) or first), found)


def _value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    return plain_value(words[0]) if words else True


# Other people's ways to start vLLM. Sources: vllm-project/recipes@8959cf6, spark-arena/recipe-registry@3075780,
# spark-arena/eugr-recipes@0d81770.


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words with long names: `-tp 2` as `--tensor-parallel-size 2`, `-cc.x=1` as `--compilation-config.x=1`; `-O3` as
    two words."""
    found: list[str] = []
    for word in words:
        head = word.lstrip("-")
        name = next((end for end in (head.partition(".")[0].partition("=")[0],) if end in flag_types.SHORT), "")
        if word.startswith("-O") and word[2:].isdigit():
            found += [f"--{flag_types.SHORT['O']}", word[2:]]
        elif word.startswith("-") and not word.startswith("--") and name:
            found.append(f"--{flag_types.SHORT[name]}{head.removeprefix(name)}")
        else:
            found.append(word)
    return found


IMPORTS = Imports(
    image=f"vllm/vllm-openai:v{flag_types.VERSION}",
    port_inside=flags.DEFAULT_PORT,
    names=("vllm", "vllm.entrypoints.openai.api_server"),
    program=("vllm", "serve"),
    host="host",
    key=("api-key",),
    tensor=parallel.TENSOR,
    pipeline=parallel.PIPELINE,
    backends=(
        parallel.BACKEND,
        parallel.MEMBERS,
        parallel.RANK,
        parallel.HEAD,
        parallel.MASTER_PORT,
        parallel.HEADLESS,
    ),
    replicas=("data-parallel-size",),
    revisions=("revision",),
    files=("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "config"),
    further_models={
        "speculative-config": "model",
        "speculative-config.model": "",
        "tokenizer": "",
        "hf-config-path": "",
        "spec-model": "",
    },
    downloads=("download-dir",),
    tokens=("hf-token",),
    spelled_out=spelled_out,
    served_name=flags.SERVED_NAME,
)


# Flags that decide vLLM's task: the model does, unless `runner` is set. Sources: 0.32.0 on a CPU, where a pooling server has no
# chat (404) and a generating one no embeddings.

TASK_FLAGS = TaskFlags(
    excludes={
        "generate": {"runner": ("pooling", "draft"), "convert": ("embed", "classify")},
        "embed": {"runner": ("generate", "draft"), "convert": ("classify",)},
        "rerank": {"runner": ("generate", "draft")},
    }
)


# Flags of vLLM that cause what a probe finds.
#
# Sources: 0.32.0 on a CPU with a model that recites a good model's output (tests/real_engine/test_probes.py: 400 without both
# flags, a call as text, a call in the thinking, thinking in the content, content null); `--enable-auto-tool-choice requires
# --tool-call-parser`, vllm/entrypoints/openai; vllm issues 41902 and 41477 (a wrong parser: content null). The thinking is in
# `reasoning`, before 0.16 or so in `reasoning_content`.

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
