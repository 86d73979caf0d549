"""The chat template in use: prompts that the server renders for test conversations, and notes about them for clients.

The server renders each conversation with the template that it uses, without generating tokens. The template in the model's files
is only parsed, never run (engines/model/chat_template_tree.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.probes.content import IMAGE_URL
from sparkwright.engines.probes.fields import TOOL
from sparkwright.engines.probes.probe import quote_text
from sparkwright.visible import one_line

#: maximum length of a prompt
MAX_SEARCHED_CHARS = 1 << 16
#: maximum length of an error message
MAX_SHOWN_CHARS = 120
SYSTEM_PROMPT, LATE_SYSTEM_PROMPT = "You are the keeper of a lighthouse.", "Speak of the harbour only."
FIRST_QUESTION, ANSWER, SECOND_QUESTION = "How tall is the tower?", "Forty metres.", "And how old is it?"
#: earlier thinking, by the name of its field
EARLIER_THINKING = {"reasoning": "a quartz thought", "reasoning_content": "a marble thought"}
#: template fields and their values that keep earlier thinking; sources: the templates of Qwen3.6 and 3.8, GLM-4.7, Nemotron 3
KEEP_THINKING_FIELDS = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
#: texts in a user's message that turn thinking on or off
TOGGLES = ("/think", "/no_think", "/nothink")
CITY, TOOL_RESULT = "Reykjavik", "Rain, 11 degrees"
PART_TEXTS = ("leftpart", "rightpart")
TEXT_PARTS = tuple({"type": "text", "text": part} for part in PART_TEXTS)
#: number of characters before a message that identify its role
OPENING_CHARS = 12
#: text that a template adds is reported from this length on, not counting marks
MIN_PROSE_CHARS = 40
TEMPLATE_MARK_PATTERN = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,30}\]")
EMPTY_THINKING_PATTERN = re.compile(r"<think>\s*</think>|\[THINK\]\s*\[/THINK\]|<thinking>\s*</thinking>")
#: exception classes before an error message
ERROR_CLASS_PATTERN = re.compile(r"^(?:[A-Z]\w{0,40}(?: [A-Z]\w{0,40})?: ){1,3}")
#: Python's representation of a list of content parts
PARTS_NOTATION_PATTERN = re.compile(r"\[?\{'(?:type|text)': ?'")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that a server renders for a conversation."""

    text: str = ""  # empty if unknown
    refusal: str = ""  # the error message of a server that refused the conversation

    def find(self, text: str) -> int:
        """Return the position of a text; -1 if it is not in the prompt."""
        return self.text.find(text)

    def text_between(self, start: str, end: str) -> str:
        """Return the text between two texts; empty if one of them is missing."""
        _, separator, remainder = self.text.partition(start)
        return remainder.partition(end)[0] if separator and end in remainder else ""


Prompts = Mapping[str, Prompt]


def _user_message(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _two_questions(*middle: Mapping[str, Any], **answer_fields: Any) -> list[Mapping[str, Any]]:
    """Return two questions, with an answer and further messages between them."""
    return [
        _user_message(FIRST_QUESTION),
        {"role": "assistant", "content": ANSWER, **answer_fields},
        *middle,
        _user_message(SECOND_QUESTION),
    ]


def _tool_conversation() -> list[Mapping[str, Any]]:
    """Return a conversation with a tool call, whose arguments are text, as clients send them."""
    function = {"name": TOOL["function"]["name"], "arguments": f'{{"city": "{CITY}"}}'}  # type: ignore[index]
    call = {"id": "call00001", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "call00001", "content": TOOL_RESULT}
    return [
        _user_message(FIRST_QUESTION),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        result,
        _user_message(SECOND_QUESTION),
    ]


#: name of the first request; if the server does not render a prompt for it, the others are skipped
PLAIN_CONVERSATION = "plain"
#: requests by name
CONVERSATIONS: Mapping[str, Mapping[str, Any]] = {
    PLAIN_CONVERSATION: {"messages": _two_questions()},
    "question": {"messages": [_user_message(FIRST_QUESTION)]},
    "system": {"messages": [{"role": "system", "content": SYSTEM_PROMPT}, *_two_questions()]},
    "empty system": {"messages": [{"role": "system", "content": ""}, *_two_questions()]},
    "late system": {"messages": _two_questions({"role": "system", "content": LATE_SYSTEM_PROMPT})},
    "thinking": {"messages": _two_questions(**EARLIER_THINKING)},
    **{
        name: {"messages": _two_questions(**EARLIER_THINKING), "chat_template_kwargs": {name: field_value}}
        for name, field_value in KEEP_THINKING_FIELDS.items()
    },
    "toggles": {"messages": [_user_message(f"{' '.join(f'src{toggle}/a.py' for toggle in TOGGLES)} {FIRST_QUESTION}")]},
    "tools": {"messages": _tool_conversation(), "tools": [TOOL]},
    "parts": {"messages": [_user_message(list(TEXT_PARTS))]},
    "picture": {
        "messages": [
            _user_message([TEXT_PARTS[0], {"type": "image_url", "image_url": {"url": IMAGE_URL}}, TEXT_PARTS[1]])
        ]
    },
    "continued": {"messages": _two_questions()[:2], "continue_final_message": True, "add_generation_prompt": False},
}


def parse_prompt(status: int, answer: Any, message: str) -> Prompt:
    """Return the prompt in a server's response.

    answer: the parsed JSON, with the text under `prompt`. message: the error message if the status is not 200.
    """
    if status != 200:
        last_line = next((line for line in reversed(message.splitlines()) if line.strip()), f"status {status}")
        return Prompt(refusal=one_line(ERROR_CLASS_PATTERN.sub("", last_line.strip()), max_chars=MAX_SHOWN_CHARS))
    text = answer.get("prompt") if isinstance(answer, Mapping) else None
    return Prompt(text[:MAX_SEARCHED_CHARS]) if isinstance(text, str) else Prompt()


def list_notes(prompts: Prompts, *, has_thinking: bool) -> list[str]:
    """Return a clause for each unexpected property of the prompts, the most important ones first.

    prompts: by name of the request; some may be missing. has_thinking: also check the thinking of earlier turns.
    """
    rules = (*GENERAL_RULES, *(THINKING_RULES if has_thinking else ()), *MINOR_RULES)
    return [note for rule in rules for note in rule(prompts)]


def _check_system(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("system", Prompt())
    if not prompt.text:
        return
    if prompt.find(SYSTEM_PROMPT) < 0:
        yield "it drops the system prompt"
    elif prompt.find(SYSTEM_PROMPT) > prompt.find(ANSWER):
        yield "it puts the system prompt into the last question: turns share no prefix"


def _check_template_text(prompts: Prompts) -> Iterator[str]:
    """Yield a note if the template adds text before the conversation, always or unless the client sends a system prompt."""
    template_text, text_after_system = (
        _strip_marks(prompts.get(name, Prompt()).text.partition(FIRST_QUESTION)[0])
        for name in (PLAIN_CONVERSATION, "empty system")
    )
    if len(template_text) > MIN_PROSE_CHARS:
        is_always_added = len(template_text) - len(text_after_system) < MIN_PROSE_CHARS
        conversation = "every conversation" if is_always_added else "a conversation without a system prompt"
        yield f"it adds text before {conversation}: {quote_text(template_text)}"


def _check_late_system(prompts: Prompts) -> Iterator[str]:
    prompt, first_prompt = prompts.get("late system", Prompt()), prompts.get("system", Prompt())
    subject = "a system message after the first turn"
    if prompt.refusal:
        yield f"{subject} is refused: {prompt.refusal}"
    if not prompt.text:
        return
    position = prompt.find(LATE_SYSTEM_PROMPT)
    opening = first_prompt.text[: max(first_prompt.find(SYSTEM_PROMPT), 0)].rstrip()[-OPENING_CHARS:]
    if position < 0:
        yield f"{subject} is dropped"
    elif position < prompt.find(FIRST_QUESTION):
        yield f"{subject} is moved to the beginning"
    elif opening and not prompt.text[:position].rstrip().endswith(opening):
        yield f"{subject} becomes part of another turn"


def _check_toggles(prompts: Prompts) -> Iterator[str]:
    prompt, plain_prompt = prompts.get("toggles", Prompt()), prompts.get("question", Prompt())
    if not prompt.text or not plain_prompt.text:
        return
    deleted = [toggle for toggle in TOGGLES if f"src{toggle}/a.py" not in prompt.text]
    if deleted:
        yield f"it deletes {' and '.join(deleted)} from a user's text, even in paths"
    if prompt.text.rpartition(FIRST_QUESTION)[2] != plain_prompt.text.rpartition(FIRST_QUESTION)[2]:
        yield f"{', '.join(deleted or TOGGLES)} in a user's text switches thinking, regardless of the request's fields"


def _check_tools(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("tools", Prompt())
    if prompt.refusal:
        yield f"a question after a tool's result is refused: {prompt.refusal}"
    if prompt.text and prompt.find(CITY) < 0:
        yield "it drops the arguments of earlier tool calls if they are sent as text"
    if prompt.text and prompt.find(TOOL_RESULT) < 0:
        yield "it drops the results of tools"


def _check_notation(prompts: Prompts) -> Iterator[str]:
    if any(PARTS_NOTATION_PATTERN.search(prompt.text) for prompt in prompts.values()):
        yield "its prompts contain a list of parts in Python notation instead of their text"


def _check_parts(prompts: Prompts) -> Iterator[str]:
    """Yield notes about a message with several parts: only text, or text around a picture, which only vision models accept."""
    if "".join(PART_TEXTS) in prompts.get("parts", Prompt()).text:
        yield "it joins the text parts of a message without a space between them"
    prompt = prompts.get("picture", Prompt())
    if prompt.text and not prompt.text_between(*PART_TEXTS).strip():
        yield "it moves the pictures of a message: the text before and after a picture is joined"


def _check_continuation(prompts: Prompts) -> Iterator[str]:
    openings = [
        prompts.get(name, Prompt()).text_between(FIRST_QUESTION, ANSWER).strip()
        for name in (PLAIN_CONVERSATION, "continued")
    ]
    if all(openings) and openings[0] != openings[1]:
        yield "an answer to continue begins with different marks from the same answer in an earlier turn: they share no prefix"


def _check_earlier_thinking(prompts: Prompts) -> Iterator[str]:
    if not prompts.get("thinking", Prompt()).text:
        return
    rendered_fields = {
        name: [field for field, thought in EARLIER_THINKING.items() if thought in prompts.get(name, Prompt()).text]
        for name in ("thinking", *KEEP_THINKING_FIELDS)
    }
    if len(rendered_fields["thinking"]) == 1:
        yield f"earlier thinking reaches the model only under `{rendered_fields['thinking'][0]}`"
    if rendered_fields["thinking"]:
        return
    switch = next((name for name in KEEP_THINKING_FIELDS if rendered_fields[name]), "")
    condition = ""
    if switch:
        value, fields = str(KEEP_THINKING_FIELDS[switch]).lower(), "` or `".join(rendered_fields[switch])
        condition = f", unless a request sets {switch}: {value} and sends the thinking as `{fields}`"
    yield f"it drops the thinking of earlier turns{condition}"


def _check_empty_marks(prompts: Prompts) -> Iterator[str]:
    if EMPTY_THINKING_PATTERN.search(prompts.get(PLAIN_CONVERSATION, Prompt()).text_between(FIRST_QUESTION, ANSWER)):
        yield "it puts empty thinking marks before earlier answers: histories with and without thinking share no prefix"


def _strip_marks(text: str) -> str:
    return " ".join(TEMPLATE_MARK_PATTERN.sub(" ", text).split())


Rule = Callable[[Prompts], Iterator[str]]
GENERAL_RULES: Sequence[Rule] = (_check_system, _check_tools, _check_notation, _check_toggles, _check_template_text)
THINKING_RULES: Sequence[Rule] = (_check_earlier_thinking, _check_empty_marks)
MINOR_RULES: Sequence[Rule] = (_check_late_system, _check_continuation, _check_parts)
