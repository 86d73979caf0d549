"""What clients will meet: tool calls that are not parsed, thinking that eats the answer, how the model is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.rules.rule import Case, Example, Finding, Way, graded, rule

THINKING_SWITCH = "default-chat-template-kwargs"


@rule(
    "tool-calls",
    sources=(
        'vLLM: "Error: --enable-auto-tool-choice requires --tool-call-parser"; 0.32.0, a real start',
        "vLLM's documentation on tool calling: both are needed for tool_choice auto",
    ),
    example=Example({"tool-call-parser": "qwen3_coder"}),
)
def tool_calls(case: Case) -> Iterator[Finding]:
    """A tool-call parser works only with enable-auto-tool-choice, and the other way round.
    The parser alone is accepted and never used: a request with tools is refused, or the call comes back as text. The switch alone is
    refused at the start.
    """
    parser, auto = case.flag("tool-call-parser"), case.flag("enable-auto-tool-choice")
    if parser and not auto:
        way = Way("add enable-auto-tool-choice", {"enable-auto-tool-choice": True})
        said = (
            "tool-call-parser without enable-auto-tool-choice: the parser is never used, tool calls come back as text."
        )
        yield Finding("warning", "tool-calls", said, (way,), "vLLM's documentation", "tool-call-parser")
    if auto and not parser:
        way = Way("name the model's parser, or drop the switch", {"enable-auto-tool-choice": None})
        said = f"enable-auto-tool-choice without tool-call-parser: {case.engine} refuses to start."
        yield Finding("error", "tool-calls", said, (way,), "a real start of 0.32.0", "enable-auto-tool-choice")


@rule(
    "model-comes-first",
    sources=('source of 0.33.0: "model should be provided as the first positional argument"',),
    example=Example({"served-model-name": "m"}, version="0.33.0", model_by_flag=True),
)
def model_comes_first(case: Case) -> Iterator[Finding]:
    """From 0.33 on the model is the first word of the command, not --model.
    --served-model-name beside --model is refused then. sparkwright writes the command for the version that spark.lock holds; only a
    first deploy, before the image was asked, can get it wrong.
    """
    if (
        not case.asked.model_by_flag
        or case.flag("served-model-name") is None
        or not case.within(flags.MODEL_FIRST_SINCE)
    ):
        return
    said = f"{case.engine} wants the model as the first word, and the command was written before its version was known"
    way = Way("deploy again: spark.lock knows the version now")
    yield Finding("error", "model-comes-first", f"{said}.", (way,), "source of 0.33.0", "served-model-name")


@rule(
    "thinking-eats-answers",
    sources=(
        "#31343, #31581: --default-chat-template-kwargs since 0.14.0",
        "issue reports: content null with small max_tokens",
    ),
    example=Example({"reasoning-parser": "qwen3"}),
)
def thinking(case: Case) -> Iterator[Finding]:
    """A model that thinks spends max_tokens on thinking first.
    With a small max_tokens the answer ends inside the thinking: `content` is null, `reasoning` holds it all. Clients can turn it off in
    each request (chat_template_kwargs: {"enable_thinking": false}); from 0.14 on the server can do it for all of them.
    """
    if not case.flag("reasoning-parser"):
        return
    chosen = case.flag(THINKING_SWITCH)
    if isinstance(chosen, Mapping) and "enable_thinking" in chosen:
        return
    change = {THINKING_SWITCH: {"enable_thinking": False}}
    possible = case.within("0.14.0")
    ways = () if possible is False else (Way("turn it off for every request that does not ask for it", change),)
    yield Finding(
        "info",
        "thinking-eats-answers",
        "thinking is on: a request with a small max_tokens gets null content unless it turns thinking off.",
        ways,
        "vLLM #31343",
        "reasoning-parser",
    )


@rule(
    "config-file-switches",
    sources=("#51573: a false in the file of --config is dropped before 0.28",),
    example=Example({"config": "/etc/vllm.yaml"}, version="0.20.0"),
)
def config_file(case: Case) -> Iterator[Finding]:
    """Before 0.28, --config drops every switch that is false.
    `enable-chunked-prefill: false` in that file does nothing, without a word. In a recipe's `vllm:` it is a flag and works.
    """
    if case.flag("config") is not None and graded(case.within("", "0.28.0")) is not None:
        said = "config: switches set to false in that file are silently dropped before 0.28."
        way = Way("write the flags in the recipe", {"config": None})
        yield Finding("warning", "config-file-switches", said, (way,), "vLLM #51573", "config")
