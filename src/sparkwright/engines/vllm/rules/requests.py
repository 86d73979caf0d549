"""Rules about problems that clients see: unparsed tool calls, reasoning that uses up max_tokens, the model's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.rules.rule import Case, Example, rule
from sparkwright.visible import one_line

THINKING_SWITCH = "default-chat-template-kwargs"
#: texts that are true in a Jinja template, though they mean no
NEGATIVE = ("false", "no", "off", "0")
#: a parser among a model's files, as nano_v3_reasoning_parser.py
PARSER_FILE = re.compile(r"(?:[\w.-]{0,80}[_-])?(reasoning|tool)[_-](?:call[_-])?parser[\w.-]{0,40}\.py", re.IGNORECASE)


@rule(
    "tool-calls",
    sources=(
        'vLLM: "Error: --enable-auto-tool-choice requires --tool-call-parser"; 0.32.0, a real start',
        "vLLM's documentation on tool calling: both are needed for tool_choice auto",
    ),
    example=Example({"tool-call-parser": "qwen3_coder"}),
)
def tool_calls(case: Case) -> Iterator[Finding]:
    """A tool-call parser and enable-auto-tool-choice need each other.
    The parser alone is accepted and never used: requests with tools are refused, or the call comes back as text. With the switch
    alone the engine refuses to start.
    """
    parser, auto = case.flag("tool-call-parser"), case.flag("enable-auto-tool-choice")
    if parser and not auto:
        way = Way("add enable-auto-tool-choice", {"enable-auto-tool-choice": True})
        why = "the parser is never used, tool calls come back as text."
        sentence = f"tool-call-parser without enable-auto-tool-choice: {why}"
        yield Finding("warning", sentence, (way,), "vLLM's documentation", "tool-call-parser")
    if auto and not parser:
        way = Way("set tool-call-parser to the model's parser, or remove the switch", {"enable-auto-tool-choice": None})
        sentence = f"enable-auto-tool-choice without tool-call-parser: {case.engine} refuses to start."
        yield Finding("error", sentence, (way,), "a real start of 0.32.0", "enable-auto-tool-choice")


@rule(
    "reasoning-truncates-answers",
    sources=(
        "#31343, #31581: --default-chat-template-kwargs since 0.14.0",
        "issue reports: content null with small max_tokens",
    ),
    example=Example({"reasoning-parser": "qwen3"}),
)
def thinking(case: Case) -> Iterator[Finding]:
    """A reasoning model spends max_tokens on reasoning first.
    With a small max_tokens the response ends during the reasoning: `content` is null and `reasoning` has all tokens. Clients can turn
    thinking off per request (chat_template_kwargs: {"enable_thinking": false}); from 0.14 on the server can do so by default.
    """
    kwargs = case.flag(THINKING_SWITCH)
    if not case.flag("reasoning-parser") or (isinstance(kwargs, Mapping) and "enable_thinking" in kwargs):
        return
    change = {THINKING_SWITCH: {"enable_thinking": False}}
    possible = case.within("0.14.0")
    ways = () if possible is False else (Way("turn thinking off by default; requests can still enable it", change),)
    sentence = "thinking is on: a request with a small max_tokens gets null content unless it turns thinking off."
    yield Finding("info", sentence, ways, "vLLM #31343", "reasoning-parser")


@rule(
    "parser-of-the-model",
    sources=(
        "nvidia/NVIDIA-Nemotron-3 model cards: the parser is a file of the model's own repository",
        "model-serving-minefield 65, 70: a parser that no engine ships, and fields of a request that only this parser reads",
    ),
    example=Example(
        {"reasoning-parser": "deepseek_r1"}, pinned={"/models/m": ["config.json", "nano_v3_reasoning_parser.py"]}
    ),
)
def parser_of_the_model(case: Case) -> Iterator[Finding]:
    """The model ships a parser of its own, and the server does not load it.
    No engine has such a parser. Without it thinking arrives in the content, or the answer in the thinking, and the fields of a request
    that only this parser reads do nothing: its source names them.
    """
    for mount, files in case.asked.pinned.items():
        for name in files:
            found = PARSER_FILE.fullmatch(name.rpartition("/")[2])
            flag = f"{found[1].lower()}-parser-plugin" if found else ""
            if found and case.flag(flag) is None:
                path = f"{mount}/{name}"
                sentence = f"the model ships {one_line(name, at_most=80)}, and {flag} does not load it."
                yield Finding(
                    "warning",
                    sentence,
                    (Way(f"set {flag} to {one_line(path, at_most=120)}", {flag: path}),),
                    "spark.lock",
                    flag,
                )


@rule(
    "template-value-as-text",
    sources=("Jinja: a text that is not empty is true", "model-serving-minefield 57, on a GB10"),
    example=Example({THINKING_SWITCH: {"enable_thinking": "false"}}),
)
def template_value_as_text(case: Case) -> Iterator[Finding]:
    """A chat template takes the text "false" for true.
    Its conditions are Jinja's, for which every text that is not empty is true. In a recipe, write false without quotes.
    """
    given = case.flag(THINKING_SWITCH)
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if isinstance(value, str) and value.strip().lower() in NEGATIVE:
            sentence = f'{THINKING_SWITCH}.{name} is the text "{value}", which the template takes for true.'
            way = Way(f"write {name}: false, without quotes", {THINKING_SWITCH: {**given, name: False}})
            yield Finding("error", sentence, (way,), "Jinja's documentation", THINKING_SWITCH)


@rule(
    "config-file-switches",
    sources=(
        "0.28.0 and 0.32.0, asked: a number in that file is heard, a false is not",
        "#51573 repaired it in 0.28, but not for `vllm serve`",
    ),
    example=Example({"config": "/etc/vllm.yaml"}),
)
def config_file(case: Case) -> Iterator[Finding]:
    """--config drops every switch that is false.
    `enable-chunked-prefill: false` in that file is silently ignored. Under `vllm:` in a recipe it becomes a flag and works.
    """
    if case.flag("config") is not None:
        sentence = "config: switches set to false in that file are silently ignored."
        way = Way("set the flags in the recipe", {"config": None})
        yield Finding("warning", sentence, (way,), "0.28.0 and 0.32.0, asked", "config")
