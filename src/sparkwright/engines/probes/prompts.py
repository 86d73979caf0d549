"""The chat template in use: prompts that the server renders of marked conversations, and notes about them for clients.

A template is a program of the model's makers. In the model's files it is read without being run (engines/model/chat_template.py);
here the server is asked for the prompts that it renders, by whatever template. Nothing is generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.probes.content import URL
from sparkwright.engines.probes.fields import TOOL
from sparkwright.engines.probes.probe import quoted
from sparkwright.visible import one_line

#: greatest lengths of a searched prompt and of a shown refusal
SEARCHED_CHARS, SHOWN_CHARS = 1 << 16, 120
SYSTEM, LATE = "You are the keeper of a lighthouse.", "Speak of the harbour only."
FIRST, ANSWER, SECOND = "How tall is the tower?", "Forty metres.", "And how old is it?"
#: earlier thinking, by the name of its field
THOUGHTS = {"reasoning": "a quartz thought", "reasoning_content": "a marble thought"}
#: template fields that keep earlier thinking. sources: the templates of Qwen3.6 and 3.8, GLM-4.7, Nemotron 3
KEEPERS = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
TOGGLES = ("/think", "/no_think", "/nothink")
CITY, RESULT = "Reykjavik", "Rain, 11 degrees"
PARTS = ("leftpart", "rightpart")
TEXTS = tuple({"type": "text", "text": part} for part in PARTS)
#: length of the text before a message that identifies its role
OPENING_CHARS = 12
#: least length of a text that a template adds, beyond its marks
PROSE_CHARS = 40
MARKS = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,30}\]")
EMPTY_MARKS = re.compile(r"<think>\s*</think>|\[THINK\]\s*\[/THINK\]|<thinking>\s*</thinking>")
#: exception classes before an error's message
KIND_OF_ERROR = re.compile(r"^(?:[A-Z]\w{0,40}(?: [A-Z]\w{0,40})?: ){1,3}")
NOTATION = re.compile(r"\[?\{'(?:type|text)': ?'")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that a server renders of a conversation."""

    text: str = ""  # empty if it was refused, or is not known
    refusal: str = ""  # the server's error message

    def at(self, text: str) -> int:
        """Return the position of a text; -1 if it is not in the prompt."""
        return self.text.find(text)

    def between(self, start: str, end: str) -> str:
        """Return the text between two texts; empty if one of them is missing."""
        _, found, rest = self.text.partition(start)
        return rest.partition(end)[0] if found and end in rest else ""


Prompts = Mapping[str, Prompt]


def _user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _turns(*middle: Mapping[str, Any], **answer: Any) -> list[Mapping[str, Any]]:
    """Return a conversation of two questions."""
    return [_user(FIRST), {"role": "assistant", "content": ANSWER, **answer}, *middle, _user(SECOND)]


def _call(arguments: str) -> list[Mapping[str, Any]]:
    """Return a conversation with a tool call, with its arguments as the text that clients send."""
    function = {"name": TOOL["function"]["name"], "arguments": arguments}  # type: ignore[index]
    call = {"id": "call00001", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "call00001", "content": RESULT}
    return [_user(FIRST), {"role": "assistant", "content": "", "tool_calls": [call]}, result, _user(SECOND)]


#: requests by name; PLAIN comes first, and if the server renders no prompt for it, the others are skipped
PLAIN = "plain"
CONVERSATIONS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"messages": _turns()},
    "question": {"messages": [_user(FIRST)]},
    "system": {"messages": [{"role": "system", "content": SYSTEM}, *_turns()]},
    "empty system": {"messages": [{"role": "system", "content": ""}, *_turns()]},
    "late system": {"messages": _turns({"role": "system", "content": LATE})},
    "thinking": {"messages": _turns(**THOUGHTS)},
    **{
        name: {"messages": _turns(**THOUGHTS), "chat_template_kwargs": {name: keeps}} for name, keeps in KEEPERS.items()
    },
    "toggles": {"messages": [_user(f"{' '.join(f'src{toggle}/a.py' for toggle in TOGGLES)} {FIRST}")]},
    "tools": {"messages": _call(f'{{"city": "{CITY}"}}'), "tools": [TOOL]},
    "parts": {"messages": [_user(list(TEXTS))]},
    "picture": {"messages": [_user([TEXTS[0], {"type": "image_url", "image_url": {"url": URL}}, TEXTS[1]])]},
    "continued": {"messages": _turns()[:2], "continue_final_message": True, "add_generation_prompt": False},
}


def prompt_of(status: int, answer: Any, message: str) -> Prompt:
    """Return the prompt in a server's answer.

    Args:
        status: HTTP status.
        answer: its JSON, with the text under `prompt`.
        message: its error, if the status is not 200.
    """
    if status != 200:
        last = next((line for line in reversed(message.splitlines()) if line.strip()), f"status {status}")
        return Prompt(refusal=one_line(KIND_OF_ERROR.sub("", last.strip()), at_most=SHOWN_CHARS))
    text = answer.get("prompt") if isinstance(answer, Mapping) else None
    return Prompt(text[:SEARCHED_CHARS]) if isinstance(text, str) else Prompt()


def notes(prompts: Prompts, *, thinks: bool) -> list[str]:
    """Return notes for clients about the server's prompts, a clause each; empty if they are as clients expect.

    Args:
        prompts: by the name of their conversation; missing ones are not judged.
        thinks: the model is expected to think, so the thinking of earlier turns matters.
    """
    rules = (*OF_ALL, *(OF_THINKING if thinks else ()), *SMALLER)
    return [note for rule in rules for note in rule(prompts)]


def _system(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("system", Prompt())
    if not prompt.text:
        return
    if prompt.at(SYSTEM) < 0:
        yield "it drops the system prompt"
    elif prompt.at(SYSTEM) > prompt.at(ANSWER):
        yield "it puts the system prompt into the last question: no prefix is shared from turn to turn, whatever stands in it"


def _own_text(prompts: Prompts) -> Iterator[str]:
    """Yield a note if the template adds text before the conversation. A built-in system prompt gives way to a client's."""
    own, without = (_prose(prompts.get(name, Prompt()).text.partition(FIRST)[0]) for name in (PLAIN, "empty system"))
    if len(own) > PROSE_CHARS:
        always = len(own) - len(without) < PROSE_CHARS
        yield f"it puts a text of its own before {'each' if always else 'a'} conversation{'' if always else ' without a system prompt'}: {quoted(own)}"


def _late_system(prompts: Prompts) -> Iterator[str]:
    prompt, first = prompts.get("late system", Prompt()), prompts.get("system", Prompt())
    name = "a system message after the first turn"
    if prompt.refusal:
        yield f"{name} is refused: {prompt.refusal}"
    if not prompt.text:
        return
    place, opening = prompt.at(LATE), first.text[: max(first.at(SYSTEM), 0)].rstrip()[-OPENING_CHARS:]
    if place < 0:
        yield f"{name} is dropped"
    elif place < prompt.at(FIRST):
        yield f"{name} is moved to the head"
    elif opening and not prompt.text[:place].rstrip().endswith(opening):
        yield f"{name} becomes a part of another turn"


def _toggles(prompts: Prompts) -> Iterator[str]:
    prompt, plain = prompts.get("toggles", Prompt()), prompts.get("question", Prompt())
    if not prompt.text or not plain.text:
        return
    gone = [toggle for toggle in TOGGLES if f"src{toggle}/a.py" not in prompt.text]
    if gone:
        yield f"it deletes {' and '.join(gone)} from a user's text, paths too"
    if prompt.text.rpartition(FIRST)[2] != plain.text.rpartition(FIRST)[2]:
        yield f"a user's text with {', '.join(gone or TOGGLES)} in it switches thinking, whatever the request's fields say"


def _tools(prompts: Prompts) -> Iterator[str]:
    prompt = prompts.get("tools", Prompt())
    if prompt.refusal:
        yield f"a question after a tool's result is refused: {prompt.refusal}"
    if prompt.text and prompt.at(CITY) < 0:
        yield "it shows the model earlier calls of tools without their arguments, where those come as text"
    if prompt.text and prompt.at(RESULT) < 0:
        yield "it drops the results of tools"


def _notation(prompts: Prompts) -> Iterator[str]:
    if any(NOTATION.search(prompt.text) for prompt in prompts.values()):
        yield "its prompts hold the notation of a list of parts instead of their text"


def _parts(prompts: Prompts) -> Iterator[str]:
    """Yield notes about the parts of one message: of text alone, and around a picture, which only a vision model takes."""
    if "".join(PARTS) in prompts.get("parts", Prompt()).text:
        yield "it joins the text parts of a message without a space between them"
    prompt = prompts.get("picture", Prompt())
    if prompt.text and not prompt.between(*PARTS).strip():
        yield "it moves the pictures of a message: what stands before and after one comes together"


def _continued(prompts: Prompts) -> Iterator[str]:
    openings = [prompts.get(name, Prompt()).between(FIRST, ANSWER).strip() for name in (PLAIN, "continued")]
    if all(openings) and openings[0] != openings[1]:
        yield "an answer to be continued is opened otherwise than the same answer in an earlier turn: they share no prefix"


def _earlier_thinking(prompts: Prompts) -> Iterator[str]:
    if not prompts.get("thinking", Prompt()).text:
        return
    found = {name: _arrived(prompts.get(name, Prompt())) for name in ("thinking", *KEEPERS)}
    if len(found["thinking"]) == 1:
        yield f"earlier thinking reaches the model only under `{found['thinking'][0]}`"
    if found["thinking"]:
        return
    keeper = next((name for name in KEEPERS if found[name]), "")
    value = str(KEEPERS.get(keeper)).lower()
    kept = (
        f", unless a request sets {keeper}: {value} and sends it as `{'` or `'.join(found[keeper])}`" if keeper else ""
    )
    yield f"it drops the thinking of earlier turns{kept}"


def _arrived(prompt: Prompt) -> list[str]:
    """Return the field names whose earlier thinking appears in the prompt."""
    return [name for name, thought in THOUGHTS.items() if thought in prompt.text]


def _empty_marks(prompts: Prompts) -> Iterator[str]:
    if EMPTY_MARKS.search(prompts.get(PLAIN, Prompt()).between(FIRST, ANSWER)):
        yield "it puts empty marks of thinking before earlier answers: a history with thinking and one without share no prefix"


def _prose(text: str) -> str:
    """Return a text without template marks."""
    return " ".join(MARKS.sub(" ", text).split())


Rule = Callable[[Prompts], Iterator[str]]
#: the important ones first
OF_ALL: Sequence[Rule] = (_system, _tools, _notation, _toggles, _own_text)
OF_THINKING: Sequence[Rule] = (_earlier_thinking, _empty_marks)
SMALLER: Sequence[Rule] = (_late_system, _continued, _parts)
