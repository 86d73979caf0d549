"""A model's chat template, read from its syntax tree: request fields, thinking, system prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

MAX_SHOWN_CHARS = 120
MAX_FIELDS = 40
#: switches for thinking, the usual one first
THINKING_SWITCHES = ("enable_thinking", "thinking", "thinking_mode")
EFFORT_FIELD = "reasoning_effort"
Thinking = Literal["on", "off", "always", "none"]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The properties of a chat template, read from its syntax tree."""

    fields: tuple[str, ...]  # variables that a request may set with chat_template_kwargs, sorted
    tools: bool  # it renders the tools of a request
    switch: str  # the field that turns thinking on or off; "" for none
    thinking: Thinking | None  # by default; "always": no switch turns it off, "none": the template has no thinking
    system_prompt: str  # the beginning of a text that the template adds; "" for none
    dated: bool  # it adds today's date to the prompt
    keeps_thinking: bool | None  # thinking of earlier turns stays in the prompt

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, as the lock keeps it."""
        return {**asdict(self), "fields": list(self.fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChatTemplate | None:
        """Return a template from the lock; None for an invalid one."""
        try:
            fields = tuple(name for name in data["fields"] if isinstance(name, str) and name.isidentifier())
            switch, system = str(data["switch"]), to_printable(str(data["system_prompt"]))
            thinking, keeps = data["thinking"], data["keeps_thinking"]
        except (KeyError, TypeError):
            return None
        return cls(
            fields=tuple(name[:MAX_SHOWN_CHARS] for name in fields[:MAX_FIELDS]),
            tools=data.get("tools") is True,
            switch=switch if switch in THINKING_SWITCHES else "",
            thinking=thinking if thinking in get_args(Thinking) else None,
            system_prompt=system,
            dated=data.get("dated") is True,
            keeps_thinking=keeps if isinstance(keeps, bool) else None,
        )

    @property
    def thinking_sentence(self) -> str:
        """The template's default for thinking and how a request changes it; "" if the template has no thinking."""
        if self.thinking in ("on", "off"):
            other = "false" if self.thinking == "on" else "true"
            return f'{self.thinking} by default; per request: "chat_template_kwargs": {{"{self.switch}": {other}}}'
        if self.thinking == "always":
            effort = f"; its effort is set with {EFFORT_FIELD}" if EFFORT_FIELD in self.fields else ""
            return f"always on, no request turns it off{effort}"
        return ""


def to_printable(text: str) -> str:
    """Return the beginning of a text that may be shown."""
    words = "".join(sign for sign in text if sign.isprintable())
    return words if len(words) <= MAX_SHOWN_CHARS else f"{words[: MAX_SHOWN_CHARS - 4]} ..."


# -- the files of a model ----------------------------------------------------------------------------------------------

SAMPLING_FILE = "generation_config.json"
GGUF_SOURCE = "GGUF file"
NO_SAMPLING_TEXT = "nothing set: the engine's own defaults are in force"
#: keys of generation_config.json that vLLM and SGLang take as a request's defaults. source: vLLM 0.33.0, get_diff_sampling_param
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def parse_sampling(config: Any) -> dict[str, float]:
    """Return the sampling defaults in a generation_config.json."""
    settings = config if isinstance(config, Mapping) else {}
    numbers = {name: settings.get(name) for name in SAMPLING_KEYS}
    return {
        name: number
        for name, number in numbers.items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }


def validate_entry(data: Any) -> dict[str, Any] | None:
    """Return the lock's entry about a model's chat files, from data of a host or a file; None for invalid data.

    template: a ChatTemplate, None if there is none or it was not read. sampling: None if the model sets no defaults (it has no
    generation_config.json), so that the engine's own apply. read_from: only of a GGUF file, which holds both.
    """
    if not isinstance(data, Mapping):
        return None
    template, sampling = data.get("template"), data.get("sampling")
    read_template = ChatTemplate.from_json(template) if isinstance(template, Mapping) else None
    return {
        "template": read_template.to_json() if read_template else None,
        "sampling": parse_sampling(sampling) if isinstance(sampling, Mapping) else None,
        **({"read_from": GGUF_SOURCE} if data.get("read_from") == GGUF_SOURCE else {}),
    }


def select_server_chat(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lock's entries about a server's chats, with the template of the separate tokenizer if there is one.

    pinned: {"model": ..., "models": {role: ...}}.
    """
    chat = (pinned.get("model") or {}).get("chat") or {}
    tokenizer = ((pinned.get("models") or {}).get("tokenizer") or {}).get("chat") or {}
    return {**chat, "template": tokenizer["template"]} if tokenizer.get("template") else dict(chat)


def list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the differences between two revisions of a model, as (label, before, after). old, new: see `validate_entry`."""
    before, after = dict(fact_lines(old)), dict(fact_lines(new))
    for label in [*before, *(label for label in after if label not in before)]:
        pair = before.get(label, "nothing"), after.get(label, "nothing")
        if pair[0] != pair[1]:
            yield label, *pair


def fact_lines(chat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts about a model's chat files for users, as (label, sentence)."""
    template = ChatTemplate.from_json(chat.get("template") or {})
    if template is not None:
        yield (
            "template",
            f"reads {', '.join(template.fields) or 'no field of a request'}{'; renders tools' if template.tools else ''}",
        )
        if template.thinking_sentence:
            yield "thinking", template.thinking_sentence
        if template.keeps_thinking is not None and template.thinking != "none":
            yield "turns", f"thinking of earlier turns is {'kept' if template.keeps_thinking else 'dropped'}"
        if template.system_prompt:
            yield "system", f"the template puts in: {template.system_prompt}"
        if template.dated:
            yield "date", "the template puts in the date of today: a cached prefix ends with the day"
    else:
        yield (
            "template",
            "none was read in the model's files: code, or a flag, makes its prompts (`expect.probes` tries them)",
        )
    sampling, source = chat.get("sampling"), chat.get("read_from") or SAMPLING_FILE
    if sampling is None:
        missing = f"no {source}" if source == SAMPLING_FILE else f"nothing set in the {source}"
        yield "sampling", f"{missing}: the engine's own defaults are in force"
    else:
        values = ", ".join(f"{name} {value:g}" for name, value in sampling.items())
        yield "sampling", f"{source}: {values or NO_SAMPLING_TEXT}"
