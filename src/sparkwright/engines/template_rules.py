"""Rules about a model's chat template, for any engine: the template is the model's, the flags are the recipe's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.advice import Explained
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.model.chat_template import ChatTemplate

#: flags with the fields that a server sets in each request, by engine
KWARGS: Mapping[str, str] = {"vllm": "default-chat-template-kwargs", "llama_cpp": "chat-template-kwargs"}
#: flags that set another template
OWN_TEMPLATE = ("chat-template", "chat-template-file")


@dataclass(frozen=True)
class Case:
    """The input of the rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # under their own names
    chat: Mapping[str, Any] = field(default_factory=dict)  # the lock's entry, see chat_template.kept
    engine: str = "vllm"

    @property
    def template(self) -> ChatTemplate | None:
        """The model's template; None if it is not known, or the recipe brings another one."""
        if any(name in self.flags for name in OWN_TEMPLATE):
            return None
        return ChatTemplate.from_json(self.chat.get("template") or {})


RULES: Rules[Case, Case] = Rules()
rule = RULES.rule


@rule(
    "template-field-unread",
    sources=(
        "transformers: variables that a template does not use are ignored",
        "model-serving-minefield 7, 58: reasoning_effort is accepted and ignored",
    ),
    example=Case(
        {"default-chat-template-kwargs": {"reasoning_effort": "low"}},
        {"template": ChatTemplate(("enable_thinking",), True, "enable_thinking", "on", "", False, None).to_json()},
    ),
)
def template_field_unread(case: Case) -> Iterator[Finding]:
    """A field for the chat template that the pinned template does not read.
    The engine takes it without a word, and nothing changes: thinking stays as it is, or has no effort to be set. Which fields
    the template of the pinned commit reads stands in spark.lock, and `model.inspect` shows it.
    """
    flag, template = KWARGS.get(case.engine, ""), case.template
    given = case.flags.get(flag)
    if template is None or not isinstance(given, Mapping):
        return
    for name in given:
        if str(name) in template.fields:
            continue
        reads = f"it reads {', '.join(template.fields)}" if template.fields else "it reads no field of a request"
        rest = {key: value for key, value in given.items() if key != name} or None
        instead = f"set {template.switch} instead" if template.switch else "remove it"
        sentence = f"{flag}.{name} is read by nothing: the model's chat template does not know it ({reads})."
        yield Finding("warning", sentence, (Way(instead, {flag: rest}),), "the template of the pinned commit", flag)


@rule(
    "sampling-of-the-engine",
    sources=(
        "vLLM 0.33.0: --generation-config auto takes the model's generation_config.json, else vLLM's own defaults",
        "model-serving-minefield 21: the server's built-ins became the model's settings",
    ),
    example=Case({}, {"template": None, "sampling": None}),
)
def sampling_of_the_engine(case: Case) -> Iterator[Finding]:
    """A model without generation_config.json is sampled with the engine's own defaults.
    A request that sets no temperature gets 1.0, no top_p and no top_k, whatever the model's makers recommend on their page.
    """
    named = any(name in case.flags for name in ("generation-config", "override-generation-config"))
    if case.engine == "llama_cpp" or not case.chat or case.chat.get("sampling") is not None or named:
        return
    sentence = "the model has no generation_config.json: requests without a temperature get the engine's own defaults."
    change = {"override-generation-config": {"temperature": 0.7, "top_p": 0.8}} if case.engine == "vllm" else {}
    way = Way("set what its makers recommend, as {temperature: 0.7, top_p: 0.8}, or set it in each request", change)
    yield Finding("info", sentence, (way,), "the files of the pinned commit", "model")


def explained(name: str) -> Explained | None:
    """Return a rule by name; None if there is none."""
    found = RULES.get(name)
    if found is None:
        return None
    finding = next(iter(found.findings(found.example)))
    flags = dict(found.example.flags)
    engine = found.example.engine if flags else ""
    return Explained(engine, found.name, found.title, found.reason, found.sources, flags, "", None, finding)
