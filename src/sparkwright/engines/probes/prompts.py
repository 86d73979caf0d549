"""The chat template in use: prompts that the server renders of marked conversations, and notes about them for clients.

A template is a program of the model's makers. In the model's files it is read without being run (engines/model/chat_template.py);
here the server is asked for the prompts that it renders, by whatever template. Nothing is generated.
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

#: greatest lengths of a searched prompt and of a shown refusal
MAX_SEARCHED_CHARS, MAX_SHOWN_CHARS = 1 << 16, 120
SYSTEM, LATE_SYSTEM = "You are the keeper of a lighthouse.", "Speak of the harbour only."
FIRST_QUESTION, ANSWER, SECOND_QUESTION = "How tall is the tower?", "Forty metres.", "And how old is it?"
#: earlier thinking, by the name of its field
EARLIER_THINKING = {"reasoning": "a quartz thought", "reasoning_content": "a marble thought"}
#: template fields that keep earlier thinking. sources: the templates of Qwen3.6 and 3.8, GLM-4.7, Nemotron 3
KEEP_THINKING_FIELDS = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
TOGGLES = ("/think", "/no_think", "/nothink")
CITY, RESULT = "Reykjavik", "Rain, 11 degrees"
PART_TEXTS = ("leftpart", "rightpart")
TEXT_PARTS = tuple({"type": "text", "text": part} for part in PART_TEXTS)
#: length of the text before a message that identifies its role
OPENING_CHARS = 12
#: least length of a text that a template adds, beyond its marks
MIN_PROSE_CHARS = 40
TEMPLATE_MARKS = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,30}\]")
EMPTY_THINKING_MARKS = re.compile(r"<think>\s*</think>|\[THINK\]\s*\[/THINK\]|<thinking>\s*</thinking>")
#: exception classes before an error's message
ERROR_CLASSES = re.compile(r"^(?:[A-Z]\w{0,40}(?: [A-Z]\w{0,40})?: ){1,3}")
PARTS_NOTATION = re.compile(r"\[?\{'(?:type|text)': ?'")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that a server renders of a conversation."""

    text: str = ""  # empty if it was refused, or is not known
    refusal: str = ""  # the server's error message

    def find(self, text: str) -> int:
        """Return the position of a text; -1 if it is not in the prompt."""
        return self.text.find(text)

    def between(self, start: str, end: str) -> str:
        """Return the text between two texts; empty if one of them is missing."""
        _, separator, remainder = self.text.partition(start)
        return remainder.partition(end)[0] if separator and end in remainder else ""


Prompts = Mapping[str, Prompt]


def _user_message(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _two_questions(*middle: Mapping[str, Any], **answer: Any) -> list[Mapping[str, Any]]:
    """Return a conversation of two questions."""
    return [
        _user_message(FIRST_QUESTION),
        {"role": "assistant", "content": ANSWER, **answer},
        *middle,
        _user_message(SECOND_QUESTION),
    ]


def _tool_conversation(arguments: str) -> list[Mapping[str, Any]]:
    """Return a conversation with a tool call, with its arguments as the text that clients send."""
    function = {"name": TOOL["function"]["name"], "arguments": arguments}  # type: ignore[index]
    call = {"id": "call00001", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "call00001", "content": RESULT}
    return [
        _user_message(FIRST_QUESTION),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        result,
        _user_message(SECOND_QUESTION),
    ]


#: requests by name; PLAIN comes first, and if the server renders no prompt for it, the others are skipped
PLAIN = "plain"
CONVERSATIONS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"messages": _two_questions()},
    "question": {"messages": [_user_message(FIRST_QUESTION)]},
    "system": {"messages": [{"role": "system", "content": SYSTEM}, *_two_questions()]},
    "empty system": {"messages": [{"role": "system", "content": ""}, *_two_questions()]},
    "late system": {"messages": _two_questions({"role": "system", "content": LATE_SYSTEM})},
    "thinking": {"messages": _two_questions(**EARLIER_THINKING)},
    **{
        name: {"messages": _two_questions(**EARLIER_THINKING), "chat_template_kwargs": {name: keeps}}
        for name, keeps in KEEP_THINKING_FIELDS.items()
    },
    "toggles": {"messages": [_user_message(f"{' '.join(f'src{toggle}/a.py' for toggle in TOGGLES)} {FIRST_QUESTION}")]},
    "tools": {"messages": _tool_conversation(f'{{"city": "{CITY}"}}'), "tools": [TOOL]},
    "parts": {"messages": [_user_message(list(TEXT_PARTS))]},
    "picture": {
        "messages": [
            _user_message([TEXT_PARTS[0], {"type": "image_url", "image_url": {"url": IMAGE_URL}}, TEXT_PARTS[1]])
        ]
    },
    "continued": {"messages": _two_questions()[:2], "continue_final_message": True, "add_generation_prompt": False},
}


def parse_prompt(status: int, answer: Any, message: str) -> Prompt:
    """Return the prompt in a server's answer.

    Args:
        status: HTTP status.
        answer: its JSON, with the text under `prompt`.
        message: its error, if the status is not 200.
    """
    if status != 200:
        last = next((line for line in reversed(message.splitlines()) if line.strip()), f"status {status}")
        return Prompt(refusal=one_line(ERROR_CLASSES.sub("", last.strip()), max_chars=MAX_SHOWN_CHARS))
    text = answer.get("prompt") if isinstance(answer, Mapping) else None
    return Prompt(text[:MAX_SEARCHED_CHARS]) if isinstance(text, str) else Prompt()


def notes(prompts: Prompts, *, thinks: bool) -> list[str]:
    """Return notes for clients about the server's prompts, a clause each; empty if they are as clients expect.

    Args:
        prompts: by the name of their conversation; missing ones are not judged.
        thinks: the model is expected to think, so the thinking of earlier turns matters.
    """
    rules = (*GENERAL_RULES, *(THINKING_RULES if thinks else ()), *MINOR_RULES)
    return [note for rule in rules for note in rule(prompts)]


def _check_system(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("system", Prompt())
    if not prompt.text:
        return
    if prompt.find(SYSTEM) < 0:
        yield "it drops the system prompt"
    elif prompt.find(SYSTEM) > prompt.find(ANSWER):
        yield "it puts the system prompt into the last question: no prefix is shared from turn to turn, whatever stands in it"


def _check_own_text(prompts: Prompts) -> Iterator[str]:
    """Yield a note if the template adds text before the conversation. A built-in system prompt gives way to a client's."""
    template_text, text_after_system = (
        _strip_marks(prompts.get(name, Prompt()).text.partition(FIRST_QUESTION)[0]) for name in (PLAIN, "empty system")
    )
    if len(template_text) > MIN_PROSE_CHARS:
        always = len(template_text) - len(text_after_system) < MIN_PROSE_CHARS
        yield f"it puts a text of its own before {'each' if always else 'a'} conversation{'' if always else ' without a system prompt'}: {quote_text(template_text)}"


def _check_late_system(prompts: Prompts) -> Iterator[str]:
    prompt, first = prompts.get("late system", Prompt()), prompts.get("system", Prompt())
    name = "a system message after the first turn"
    if prompt.refusal:
        yield f"{name} is refused: {prompt.refusal}"
    if not prompt.text:
        return
    place, opening = prompt.find(LATE_SYSTEM), first.text[: max(first.find(SYSTEM), 0)].rstrip()[-OPENING_CHARS:]
    if place < 0:
        yield f"{name} is dropped"
    elif place < prompt.find(FIRST_QUESTION):
        yield f"{name} is moved to the head"
    elif opening and not prompt.text[:place].rstrip().endswith(opening):
        yield f"{name} becomes a part of another turn"


def _check_toggles(prompts: Prompts) -> Iterator[str]:
    prompt, plain = prompts.get("toggles", Prompt()), prompts.get("question", Prompt())
    if not prompt.text or not plain.text:
        return
    deleted = [toggle for toggle in TOGGLES if f"src{toggle}/a.py" not in prompt.text]
    if deleted:
        yield f"it deletes {' and '.join(deleted)} from a user's text, paths too"
    if prompt.text.rpartition(FIRST_QUESTION)[2] != plain.text.rpartition(FIRST_QUESTION)[2]:
        yield f"a user's text with {', '.join(deleted or TOGGLES)} in it switches thinking, whatever the request's fields say"


def _check_tools(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("tools", Prompt())
    if prompt.refusal:
        yield f"a question after a tool's result is refused: {prompt.refusal}"
    if prompt.text and prompt.find(CITY) < 0:
        yield "it shows the model earlier calls of tools without their arguments, where those come as text"
    if prompt.text and prompt.find(RESULT) < 0:
        yield "it drops the results of tools"


def _check_notation(prompts: Prompts) -> Iterator[str]:
    if any(PARTS_NOTATION.search(prompt.text) for prompt in prompts.values()):
        yield "its prompts hold the notation of a list of parts instead of their text"


def _check_parts(prompts: Prompts) -> Iterator[str]:
    """Yield notes about the parts of one message: of text alone, and around a picture, which only a vision model takes."""
    if "".join(PART_TEXTS) in prompts.get("parts", Prompt()).text:
        yield "it joins the text parts of a message without a space between them"
    prompt = prompts.get("picture", Prompt())
    if prompt.text and not prompt.between(*PART_TEXTS).strip():
        yield "it moves the pictures of a message: what stands before and after one comes together"


def _check_continuation(prompts: Prompts) -> Iterator[str]:
    openings = [prompts.get(name, Prompt()).between(FIRST_QUESTION, ANSWER).strip() for name in (PLAIN, "continued")]
    if all(openings) and openings[0] != openings[1]:
        yield "an answer to be continued is opened otherwise than the same answer in an earlier turn: they share no prefix"


def _check_earlier_thinking(prompts: Prompts) -> Iterator[str]:
    if not prompts.get("thinking", Prompt()).text:
        return
    fields = {
        name: _rendered_thinking_fields(prompts.get(name, Prompt())) for name in ("thinking", *KEEP_THINKING_FIELDS)
    }
    if len(fields["thinking"]) == 1:
        yield f"earlier thinking reaches the model only under `{fields['thinking'][0]}`"
    if fields["thinking"]:
        return
    switch = next((name for name in KEEP_THINKING_FIELDS if fields[name]), "")
    value = str(KEEP_THINKING_FIELDS.get(switch)).lower()
    condition = (
        f", unless a request sets {switch}: {value} and sends it as `{'` or `'.join(fields[switch])}`" if switch else ""
    )
    yield f"it drops the thinking of earlier turns{condition}"


def _rendered_thinking_fields(prompt: Prompt) -> list[str]:
    """Return the field names whose earlier thinking appears in the prompt."""
    return [name for name, thought in EARLIER_THINKING.items() if thought in prompt.text]


def _check_empty_marks(prompts: Prompts) -> Iterator[str]:
    if EMPTY_THINKING_MARKS.search(prompts.get(PLAIN, Prompt()).between(FIRST_QUESTION, ANSWER)):
        yield "it puts empty marks of thinking before earlier answers: a history with thinking and one without share no prefix"


def _strip_marks(text: str) -> str:
    """Return a text without template marks."""
    return " ".join(TEMPLATE_MARKS.sub(" ", text).split())


Rule = Callable[[Prompts], Iterator[str]]
#: the important ones first
GENERAL_RULES: Sequence[Rule] = (_check_system, _check_tools, _check_notation, _check_toggles, _check_own_text)
THINKING_RULES: Sequence[Rule] = (_check_earlier_thinking, _check_empty_marks)
MINOR_RULES: Sequence[Rule] = (_check_late_system, _check_continuation, _check_parts)
