"""Notes on a server's rendered prompts, from templates like real ones with one unexpected behaviour each."""

from typing import Any

import jinja2
import pytest

from sparkwright.engines.probes import prompts
from sparkwright.engines.probes.prompts import CONVERSATIONS, Prompt

#: parts of ChatML, the most common template; it keeps earlier thinking under either name
PARTS = "{%% macro text(c) %%}{%% if c is string %%}{{ c }}{%% else %%}{%% for p in c %%}%s{%% endfor %%}{%% endif %%}{%% endmacro %%}"
TEXT = PARTS % "{% if not loop.first %}\n{% endif %}{{ p.text or '<image>' }}"
THOUGHT = "{% set t = m.reasoning or m.reasoning_content %}{% if t %}<think>{{ t }}</think>{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments }}</call>{% endfor %}"
TURN = "<|im_start|>{{ m.role }}\n%s{{ text(m.content) }}%s<|im_end|>\n"
END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LAST = "{% set m = messages[-1] %}"
SYSTEM_MOVES = (
    "{% set s = messages[0].content if messages[0].role == 'system' else '' %}{% for m in messages if m.role != 'system' %}"
    "[{{ m.role }}]{% if loop.last and s %}{{ s }}\n{% endif %}{{ text(m.content) }}{% endfor %}"
)
OWN_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Nova, made by nobody, and you are always polite.<|im_end|>\n{% endif %}"


def build_template(
    start: str = "", turn: str = TURN % (THOUGHT, CALLS), loop: str = "for m in messages", end: str = END
) -> str:
    return start + "{% " + loop + " %}" + turn + "{% endfor %}" + end


def render_prompts(source: str) -> dict[str, Prompt]:
    """Return the prompts of a server with this template, as transformers renders them."""
    environment = jinja2.Environment()
    environment.globals["raise_exception"] = raise_exception
    prompts_by_name = {}
    for name, body in CONVERSATIONS.items():
        fields: dict[str, Any] = {"add_generation_prompt": True, **body, **body.get("chat_template_kwargs", {})}
        try:
            prompts_by_name[name] = Prompt(environment.from_string(TEXT + source).render(fields))
        except jinja2.TemplateError as error:
            prompts_by_name[name] = Prompt(refusal=str(error))
    return prompts_by_name


def raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


REFUSES_SYSTEM = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first.') }}{% endif %}"
ALTERNATES = "{% for m in messages if m.role != 'tool' and not m.tool_calls %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) and m.role != 'system' and messages[0].role != 'system' %}{{ raise_exception('Roles must alternate.') }}{% endif %}{% endfor %}"
KEEPS_IF = "{% set t = m.reasoning_content %}{% if t and preserve_thinking %}<think>{{ t }}</think>{% endif %}"
EMPTY = "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
PLAIN = TURN % ("", "")
SWITCHED = "{% if '/no_think' in text(messages[-1].content) %}<think></think>{% endif %}"


@pytest.mark.parametrize(
    ("source", "note"),
    [
        (SYSTEM_MOVES, "it puts the system prompt into the last question"),
        ("{% for m in messages if m.role != 'system' %}" + PLAIN + "{% endfor %}", "it drops the system prompt"),
        (build_template(OWN_SYSTEM), "it adds text before a conversation without a system prompt: 'system You are Nova"),
        (build_template("Answer in one hundred words, and never say why you do.\n"), "before every conversation: 'Answer in"),
        (build_template(turn=REFUSES_SYSTEM + PLAIN), "a system message after the first turn is refused: System first."),
        (build_template(loop="for m in messages if m.role != 'system' or m == messages[0]"), "a system message after the first turn is dropped"),
        (build_template(turn=PLAIN.replace("{{ text(m.content) }}", "{{ text(m.content).replace('/no_think', '') }}")), "it deletes /no_think from a user's text, even in paths"),
        (build_template(end=END + SWITCHED), "in a user's text switches thinking, regardless of the request's fields"),
        (build_template(turn=TURN % (THOUGHT, "{% for c in m.tool_calls or [] %}<call>{% if c.function.arguments is mapping %}{{ c.function.arguments }}{% endif %}</call>{% endfor %}")), "it drops the arguments of earlier tool calls"),
        (build_template(loop="for m in messages if m.role != 'tool'"), "it drops the results of tools"),
        (build_template(ALTERNATES), "a question after a tool's result is refused: Roles must alternate."),
        (build_template(turn=PLAIN.replace("text(m.content)", "m.content")), "a list of parts in Python notation instead of their text"),
        (build_template(turn=PLAIN), "it drops the thinking of earlier turns"),
        (build_template(turn=TURN % (KEEPS_IF, CALLS)), "unless a request sets preserve_thinking: true and sends the thinking as `reasoning_content`"),
        (build_template(turn=TURN % (THOUGHT.replace("m.reasoning or ", ""), CALLS)), "reaches the model only under `reasoning_content`"),
        (build_template(turn=TURN % (EMPTY, CALLS)), "it puts empty thinking marks before earlier answers"),
        (build_template(turn=TURN % ("{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}", CALLS)), "an answer to continue begins with different marks"),
    ],
)  # fmt: skip
def test_unexpected_template_behaviour_is_a_note(source: str, note: str) -> None:
    notes = prompts.list_notes(render_prompts(source), has_thinking=True)
    assert any(note in item for item in notes), notes


def test_an_ordinary_template_has_no_notes() -> None:
    thinking = "{% for t in [m.reasoning, m.reasoning_content] if t %}<think>{{ t }}</think>{% endfor %}"
    assert prompts.list_notes(render_prompts(build_template(turn=TURN % (thinking, CALLS))), has_thinking=True) == []


@pytest.mark.parametrize(
    ("part", "notes"),
    [
        ("{{ p.text or '<image>' }}", ["it joins the text parts of a message without a space between them"]),
        ("{% if loop.first %}{% for p in c if not p.text %}<image>{% endfor %}{% endif %}{{ p.text }} ",
         ["it moves the pictures of a message: the text before and after a picture is joined"]),
        ("{{ p.text or '<image>' }} ", []),
    ],
)  # fmt: skip
def test_parts_of_a_message_stay_separate_and_in_place(part: str, notes: list[str]) -> None:
    source = build_template(PARTS % part, turn=TURN % ("", CALLS))
    assert prompts.list_notes(render_prompts(source), has_thinking=False) == notes


def test_a_server_without_prompts_has_no_notes_and_a_refusal_is_its_last_line() -> None:
    assert prompts.list_notes({}, has_thinking=True) == []
    assert prompts.parse_prompt(200, {"tokens": [1]}, "") == Prompt()
    error = "\n----\nWhile executing\n   ^\nError: Jinja Exception: System first."
    assert prompts.parse_prompt(500, None, error) == Prompt(refusal="System first.")
    assert prompts.parse_prompt(400, None, "") == Prompt(refusal="status 400")
