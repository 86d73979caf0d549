"""A chat template is read from its syntax tree, and never rendered."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.queries import client_settings
from sparkwright.app.stores import lock_update
from sparkwright.console.events.summary import ServerSummary
from sparkwright.engines import recipe_rules
from sparkwright.engines.findings import Finding
from sparkwright.engines.model import chat_template, chat_template_tree
from sparkwright.engines.model.chat_template import ChatTemplate
from sparkwright.project.folder import Project

ON = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages %}{%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}{%- endif %}
{%- if loop.index0 > ns.last_query_index %}{{- '<think>' + reasoning + '</think>' }}{%- endif %}{{- message.content }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""
OFF = """{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% for m in messages %}
{%- generation %}{{ m['content'].split('</think>')[-1] }}{% endgeneration %}{% endfor %}
{%- if add_generation_prompt %}{{ '<think>' if thinking else '</think>' }}{% endif %}"""
EFFORT = """{%- if model_identity is not defined %}{%- set model_identity = "You are ChatGPT, a large language model." %}{%- endif %}
{{- model_identity + "\\nKnowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") }}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}{{- "Reasoning: " + reasoning_effort }}
{%- for m in messages %}{{ m.thinking }}{{ "<|channel|>analysis<|message|>" }}{%- endfor %}"""
ALWAYS = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<s>system\\nYou are Qwen, created by Alibaba Cloud.\\n' }}{% endif %}"
    + PLAIN
)


def read_chat(text: str) -> dict[str, Any]:
    """Return the lock's entry of a model whose only file is this template."""
    return chat_template_tree.read_chat_files({"chat_template.jinja": text}.get)


def find_template_problems(flags: dict[str, Any], chat: dict[str, Any]) -> list[Finding]:
    return recipe_rules.TEMPLATE_RULES.check(recipe_rules.TemplateCase(flags, chat))


def parse_template(text: str) -> ChatTemplate:
    template = chat_template_tree.parse_template(text)
    assert template is not None
    return template


@pytest.mark.parametrize(
    ("text", "thinking", "switch", "fields"),
    [
        (ON, "on", "enable_thinking", ("enable_thinking",)),
        (OFF, "off", "thinking", ("thinking",)),
        (EFFORT, "always", "", ("model_identity", "reasoning_effort")),
        (ALWAYS, "always", "", ()),
        (PLAIN, "none", "", ()),
        ("{% set enable_thinking = enable_thinking | default(true) %}{% if enable_thinking %}<think>{% endif %}",
         "on", "enable_thinking", ("enable_thinking",)),
        ("{% if enable_thinking %}<think>{% endif %}", "off", "enable_thinking", ("enable_thinking",)),
        ("{% if not enable_thinking %}</think>{% endif %}", "off", "enable_thinking", ("enable_thinking",)),
        ("{% if enable_thinking | default(true) %}<think>{% endif %}", "on", "enable_thinking", ("enable_thinking",)),
        ("{% if enable_thinking == false and tools %}x{% endif %}{% if documents %}{{ documents }}{% endif %}",
         None, "enable_thinking", ("documents", "enable_thinking")),
    ],
)  # fmt: skip
def test_thinking_and_fields_are_read(text: str, thinking: str | None, switch: str, fields: tuple[str, ...]) -> None:
    template = parse_template(text)
    assert (template.thinking, template.switch, template.fields) == (thinking, switch, fields)


def test_earlier_thinking_system_prompt_date_and_tools_are_read() -> None:
    on, effort, plain = parse_template(ON), parse_template(EFFORT), parse_template(PLAIN)
    assert [template.keeps_thinking for template in (on, parse_template(OFF), effort)] == [False, False, True]
    assert (on.tools, plain.tools) == (True, False)
    assert parse_template(SYSTEM).system_prompt == "You are Qwen, created by Alibaba Cloud."
    assert effort.system_prompt.startswith("You are ChatGPT") and effort.dated
    assert plain.system_prompt == "" and not plain.dated


@pytest.mark.parametrize("text", [ON, OFF, EFFORT, PLAIN], ids=["on", "off", "effort", "plain"])
def test_the_lock_entry_is_read_back(text: str) -> None:
    assert ChatTemplate.from_json(parse_template(text).to_json()) == parse_template(text)


def test_a_malformed_lock_entry_is_unknown() -> None:
    assert ChatTemplate.from_json({"fields": 3}) is None


@pytest.mark.parametrize(
    "text", ["{% if %}", "{{" * 9000, "{% if a %}" * 3000, "(" * 300_000, "{{ " + "(" * 20_000, "{% for a in b %}"]
)
def test_an_invalid_template_is_unknown(text: str) -> None:
    assert chat_template_tree.parse_template(text) is None


def test_a_template_is_not_run() -> None:
    introspection = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    assert (
        parse_template(introspection + "{{ 10 ** 10 ** 10 }}{% for a in range(10 ** 12) %}{% endfor %}").thinking
        == "none"
    )


FILES = {
    "tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": ON}, {"name": "rag", "template": PLAIN}]}),
    "generation_config.json": '{"temperature": 0.6, "top_p": 0.95, "do_sample": true, "top_k": "20"}',
}  # fmt: skip


def test_sampling_defaults_are_read_from_the_model_files() -> None:
    chat = chat_template_tree.read_chat_files(FILES.get)
    assert (chat["template"]["thinking"], chat["sampling"]) == ("on", {"temperature": 0.6, "top_p": 0.95})
    facts = dict(chat_template.fact_lines(chat))
    assert facts["sampling"] == "generation_config.json: temperature 0.6, top_p 0.95"
    assert facts["thinking"] == 'on by default; per request: "chat_template_kwargs": {"enable_thinking": false}'
    assert dict(chat_template.fact_lines(read_chat(PLAIN))) == {
        "template": "reads no request fields",
        "sampling": "no generation_config.json; the engine's own defaults apply",
    }


def test_a_template_whose_name_is_not_text_is_skipped() -> None:
    rows = [{"name": "default", "template": ON}, {"name": ["default"], "template": PLAIN}, {"name": {}}, 3]
    assert chat_template_tree.find_tokenizer_template({"chat_template": rows}) == ON
    assert chat_template_tree.find_tokenizer_template({"chat_template": rows[1:]}) == ""


def test_a_model_without_a_template_file_is_reported() -> None:
    facts = dict(chat_template.fact_lines({"template": None, "sampling": {}}))
    assert facts["template"].startswith("not in the model's files: code or a flag builds its prompts")


def test_hostile_lock_entries_are_sanitized() -> None:
    text = "a\x1b[2Jb" * 99
    hostile = {"fields": ["a b", "x" * 900, 3, "ok"], "switch": "rm -rf", "thinking": "maybe", "system_prompt": text}
    sampling = {"temperature": "hot", "evil": 1}
    chat = chat_template.validate_entry({"template": {**hostile, "keeps_thinking": 7}, "sampling": sampling})
    assert chat is not None and chat["sampling"] == {}
    template = chat["template"]
    assert (template["switch"], template["thinking"], template["keeps_thinking"]) == ("", None, None)
    assert "\x1b" not in template["system_prompt"] and len(template["system_prompt"]) <= chat_template.MAX_SHOWN_CHARS
    assert [len(name) <= 120 for name in template["fields"]] == [True, True]
    assert chat_template.validate_entry("no") is None


def test_a_field_that_the_template_does_not_read_is_named() -> None:
    chat = chat_template_tree.read_chat_files(FILES.get)
    flags = {"default-chat-template-kwargs": {"reasoning_effort": "low", "enable_thinking": False}}
    (finding,) = find_template_problems(flags, chat)
    assert "default-chat-template-kwargs.reasoning_effort has no effect" in finding.sentence
    assert "(it reads enable_thinking)" in finding.sentence
    assert finding.ways_out[0].changes == {"default-chat-template-kwargs": {"enable_thinking": False}}
    assert find_template_problems({**flags, "chat-template": "/mine.jinja"}, chat) == []
    assert find_template_problems(flags, {}) == [], "an unread template proves nothing"


def test_a_model_without_sampling_defaults_is_reported() -> None:
    chat = read_chat(PLAIN)
    (finding,) = find_template_problems({}, chat)
    assert (finding.severity, "no generation_config.json" in finding.sentence) == ("info", True)
    assert find_template_problems({"override-generation-config": {"temperature": 1}}, chat) == []


def test_a_revision_that_changes_the_template_behaviour_is_shown() -> None:
    old, new = (
        {"commit": letter * 40, "files": [], "chat": read_chat(text)} for letter, text in (("a", ON), ("b", OFF))
    )
    rows = {row.what: (row.before, row.after) for row in lock_update.compare_models(old, new)}
    before, after = rows["thinking"]
    assert before is not None and before.startswith("on by default")
    assert after is not None and after.startswith("off by default")
    assert rows["template"] == ("reads enable_thinking; renders tools", "reads thinking")
    assert "thinking" not in [row.what for row in lock_update.compare_models({**old, "chat": None}, new)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ON, 'thinking   on by default; per request: "chat_template_kwargs": {"enable_thinking": false}'),
        (EFFORT, "thinking   always on, requests cannot turn it off; reasoning_effort sets its effort"),
        (PLAIN, ""),
        ("", "thinking   unknown: spark.lock has no record"),
    ],
)
def test_client_describes_thinking_as_the_template_does(text: str, line: str) -> None:
    chat = read_chat(text) if text else {}
    server = ServerSummary("spark1", "r", "i", "m", "c", "served", "http://127.0.0.1:8000", chat=chat)
    output = client_settings.render_text(Project(Path(__file__).parents[3]), server)
    assert line in output if line else "thinking  " not in output
