"""Facts about a model's chat template and sampling defaults, as stored in the lock and shown to users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

MAX_SHOWN_CHARS = 120
MAX_FIELDS = 40
#: names of the field that turns thinking on or off, the most common first
THINKING_SWITCHES = ("enable_thinking", "thinking", "thinking_mode")
EFFORT_FIELD = "reasoning_effort"
SAMPLING_FILE = "generation_config.json"
GGUF_SOURCE = "GGUF file"
#: keys of generation_config.json that vLLM and SGLang use as defaults for requests; source: vLLM 0.33.0, get_diff_sampling_param
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
#: default for thinking; "always": it cannot be turned off; "none": the template does not support it
Thinking = Literal["on", "off", "always", "none"]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The properties of a chat template."""

    fields: tuple[str, ...]  # variables that a request may set with chat_template_kwargs, sorted
    tools: bool  # the template renders a request's tools
    switch: str  # the field that turns thinking on or off; "" if there is none
    thinking: Thinking | None  # None if unknown
    system_prompt: str  # beginning of the default system prompt; "" if there is none
    dated: bool  # the template adds today's date to the prompt
    keeps_thinking: bool | None  # the prompt includes the thinking of earlier turns; None if unknown

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for the lock."""
        return {**asdict(self), "fields": list(self.fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChatTemplate | None:
        """Return a template from untrusted data in the format of `to_json`; None if keys are missing."""
        try:
            fields = tuple(name for name in data["fields"] if isinstance(name, str) and name.isidentifier())
            switch, system_prompt = str(data["switch"]), to_printable(str(data["system_prompt"]))
            thinking, keeps_thinking = data["thinking"], data["keeps_thinking"]
        except (KeyError, TypeError):
            return None
        return cls(
            fields=tuple(name[:MAX_SHOWN_CHARS] for name in fields[:MAX_FIELDS]),
            tools=data.get("tools") is True,
            switch=switch if switch in THINKING_SWITCHES else "",
            thinking=thinking if thinking in get_args(Thinking) else None,
            system_prompt=system_prompt,
            dated=data.get("dated") is True,
            keeps_thinking=keeps_thinking if isinstance(keeps_thinking, bool) else None,
        )

    @property
    def thinking_sentence(self) -> str:
        """The default for thinking, and how a request changes it; "" if unknown or not supported."""
        if self.thinking in ("on", "off"):
            opposite = "false" if self.thinking == "on" else "true"
            return f'{self.thinking} by default; per request: "chat_template_kwargs": {{"{self.switch}": {opposite}}}'
        if self.thinking == "always":
            effort = f"; {EFFORT_FIELD} sets its effort" if EFFORT_FIELD in self.fields else ""
            return f"always on, requests cannot turn it off{effort}"
        return ""


def to_printable(text: str) -> str:
    """Return text without unprintable characters, truncated."""
    printable = "".join(character for character in text if character.isprintable())
    return printable if len(printable) <= MAX_SHOWN_CHARS else f"{printable[: MAX_SHOWN_CHARS - 4]} ..."


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
    """Return the lock's `chat` entry for a model from untrusted data; None for invalid data.

    template: a ChatTemplate; None if there is none or it was not read. sampling: None if the model has no generation_config.json,
    so that the engine's defaults apply. read_from: only for a GGUF file, which contains both.
    """
    if not isinstance(data, Mapping):
        return None
    template, sampling = data.get("template"), data.get("sampling")
    valid_template = ChatTemplate.from_json(template) if isinstance(template, Mapping) else None
    return {
        "template": valid_template.to_json() if valid_template else None,
        "sampling": parse_sampling(sampling) if isinstance(sampling, Mapping) else None,
        **({"read_from": GGUF_SOURCE} if data.get("read_from") == GGUF_SOURCE else {}),
    }


def select_server_chat(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `chat` entry of a server's model, with the chat template of a separate tokenizer if there is one.

    pinned: the lock's entries, {"model": ..., "models": {role: ...}}.
    """
    chat = (pinned.get("model") or {}).get("chat") or {}
    tokenizer_chat = ((pinned.get("models") or {}).get("tokenizer") or {}).get("chat") or {}
    return {**chat, "template": tokenizer_chat["template"]} if tokenizer_chat.get("template") else dict(chat)


def list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the differences between the `chat` entries of two revisions of a model, as (label, old text, new text)."""
    old_facts, new_facts = dict(fact_lines(old)), dict(fact_lines(new))
    for label in {**old_facts, **new_facts}:
        old_text, new_text = old_facts.get(label, "nothing"), new_facts.get(label, "nothing")
        if old_text != new_text:
            yield label, old_text, new_text


def fact_lines(chat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts in a `chat` entry as text for users: (label, text)."""
    template = ChatTemplate.from_json(chat.get("template") or {})
    if template is not None:
        fields = ", ".join(template.fields) or "no request fields"
        yield "template", f"reads {fields}{'; renders tools' if template.tools else ''}"
        if template.thinking_sentence:
            yield "thinking", template.thinking_sentence
        if template.keeps_thinking is not None and template.thinking != "none":
            yield "turns", f"thinking of earlier turns is {'kept' if template.keeps_thinking else 'dropped'}"
        if template.system_prompt:
            yield "system", f"the template adds: {template.system_prompt}"
        if template.dated:
            yield "date", "the template adds today's date: cached prefixes are invalid the next day"
    else:
        yield "template", "not in the model's files: code or a flag builds its prompts (`expect.probes` tests them)"
    sampling, source = chat.get("sampling"), chat.get("read_from") or SAMPLING_FILE
    values = ", ".join(f"{name} {value:g}" for name, value in (sampling or {}).items())
    if values:
        yield "sampling", f"{source}: {values}"
    else:
        missing = (
            f"no {source}" if sampling is None and source == SAMPLING_FILE else f"{source}: no sampling parameters"
        )
        yield "sampling", f"{missing}; the engine's own defaults apply"
