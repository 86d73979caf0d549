"""Rules about a recipe for any engine: its LoRA adapters, its chat template, and its age."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sparkwright.engines import budget, container_rules
from sparkwright.engines import engine as engines
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.flags import AdapterFlags
from sparkwright.engines.model import config_parts
from sparkwright.engines.model.chat_template import ChatTemplate
from sparkwright.engines.options import concept_flags
from sparkwright.visible import one_line

#: key of a recipe
ADAPTERS_KEY = "adapters"
#: modules whose inputs, and whose outputs, are as wide as the model's hidden states, in every architecture that has them
HIDDEN_INPUT_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj", "q_a_proj")
HIDDEN_OUTPUT_MODULES = ("o_proj", "down_proj")
#: architectures whose attention has heads times head_dim outputs, and nothing else in those matrices
PLAIN_ATTENTION_ARCHITECTURES = (
    *("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM"),
    *("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
)
#: families of models, as words of a name
FAMILIES = tuple(
    """
    bloom cohere command deepseek ernie falcon gemma glm gpt granite hunyuan internlm kimi lfm llama minimax
    mistral mixtral nemotron olmo phi qwen seed smollm yi
    """.split()
)
#: letters of a name of a family that other words may end in
MAX_SHORT_FAMILY_CHARS = 3
_SIZE = re.compile(r"(?<![0-9a-z.])a?[0-9]{1,4}(?:\.[0-9]{1,2})?[bm](?![0-9a-z])")
#: what makers of quantised copies put into a name
_QUANTISED_COPY = re.compile(
    r"(?<![a-z0-9])(?:fp8|fp4|nvfp4|mxfp4|int4|int8|awq|gptq|bnb|4bit|8bit|w[48]a[48]|w4a16|w8a16|dynamic|block|unsloth|"
    r"bf16|gguf|hf|quantized|modelopt|autoround)(?![a-z0-9])"
)


@dataclass(frozen=True)
class AdapterCase:
    """The input of the rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # under their own names
    model: str = "org/model"  # name of the pinned model on the hub
    config: Mapping[str, Any] = field(default_factory=dict)  # of the pinned model, as the lock keeps it
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the lock's `adapter` entries, by name
    engine: str = "vllm"

    @property
    def place(self) -> AdapterFlags:
        """The engine's flags for adapters."""
        place = engines.get_engine(self.engine).flags.ADAPTERS
        assert place is not None, "recipes of other engines cannot have adapters"
        return place


ADAPTER_RULES: Rules[AdapterCase, AdapterCase] = Rules()
adapter_rule = ADAPTER_RULES.rule

_LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32}


@adapter_rule(
    "adapter-base",
    sources=(
        "peft: matrix A of a module is [rank, inputs] and B [outputs, rank], with the sizes of the base model's own matrix",
        "vLLM 0.32.0, real starts: an adapter of a larger model ends the start, one of a smaller model is loaded without a word",
        "llama.cpp b11549, a real start: tensor has incorrect shape (hint: maybe wrong base model?)",
    ),
    example=AdapterCase(
        config=_LLAMA, adapters={"sql": {"base": "org/other", "sizes": {"q_proj": [2048, 2048]}, "layers": 16}}
    ),
)
def adapter_base(case: AdapterCase) -> Iterator[Finding]:
    """An adapter fits one base model.
    vLLM loads an adapter of a smaller model without a word, into a corner of its matrices, and answers by it. An adapter's matrices have the sizes of the model that it was trained on: another size, other heads or more layers are refused here, from
    the header of its weights and the model's config.json. Two models of one size cannot be told apart so: there its
    `base_model_name_or_path` speaks. It may name an older or a quantised copy of the model, so a name that is merely different is
    said and not refused; one of another family or size is.
    """
    for name, adapter in case.adapters.items():
        base = one_line(str(adapter.get("base") or ""), max_chars=120)
        why = _find_shape_mismatch(adapter, case.config) or _find_name_mismatch(base, case)
        if why:
            made_for = f" It was made for {base}." if base and base not in why else ""
            way = Way(f"take an adapter of {case.model}, or serve the model it was made for")
            sentence = f"the adapter {name} is not one of {case.model}: {why}.{made_for}"
            yield Finding("error", sentence, (way,), "the adapter's files and the model's config.json", ADAPTERS_KEY)
            continue
        if base and _base_name(base) != _base_name(case.model):
            fits = "the sizes of its matrices fit" if adapter.get("sizes") else "its sizes are not known"
            sentence = f"the adapter {name} was made for {base}, and the model is {case.model}; {fits}."
            way = Way("check that the two have the same weights, if not the same precision")
            yield Finding("warning", sentence, (way,), "the adapter's adapter_config.json", ADAPTERS_KEY)


@adapter_rule(
    "adapter-rank",
    sources=("vLLM 0.32.0, lora/peft_helper.py: LoRA rank 64 is greater than max_lora_rank 16",),
    example=AdapterCase(adapters={"sql": {"rank": 64}}),
)
def adapter_rank(case: AdapterCase) -> Iterator[Finding]:
    """The rank of an adapter is at most the engine's.
    The engine reserves room for that rank, in every layer and for every adapter of a batch. vLLM's default is 16, and an adapter
    with a larger one ends its start.
    """
    adapter_flags = case.place
    max_rank = _parse_number(case.flags.get(adapter_flags.max_rank)) or adapter_flags.usual_rank
    for name, adapter in case.adapters.items():
        rank = adapter.get("rank") or 0
        if not max_rank or rank <= max_rank:
            continue
        fits = next((allowed for allowed in adapter_flags.ranks if allowed >= rank), 0 if adapter_flags.ranks else rank)
        sentence = f"the adapter {name} has rank {rank}, and {adapter_flags.max_rank} is {max_rank}: the server does not start."
        ways = (Way(f"set {adapter_flags.max_rank} to {fits}", {adapter_flags.max_rank: fits}),) if fits else ()
        yield Finding(
            "error",
            sentence,
            ways,
            adapter_flags.source,
            adapter_flags.max_rank if adapter_flags.max_rank in case.flags else ADAPTERS_KEY,
        )


@adapter_rule(
    "adapters-at-once",
    sources=("vLLM 0.32.0, config/lora.py: max_loras, the number of LoRAs in a single batch, is 1 by default",),
    example=AdapterCase(adapters={"sql": {}, "law": {}}),
)
def adapters_at_once(case: AdapterCase) -> Iterator[Finding]:
    """Requests for more adapters than fit in a batch wait for one another.
    They are answered all the same, one adapter after the other; each further place costs the memory of an adapter of the largest
    rank. SGLang counts the model without an adapter as one of them.
    """
    adapter_flags = case.place
    if not adapter_flags.at_once:
        return
    places = _parse_number(case.flags.get(adapter_flags.at_once)) or adapter_flags.usual_at_once
    needed = len(case.adapters) + adapter_flags.base_counts
    if needed > places:
        sentence = f"{len(case.adapters)} adapters and {adapter_flags.at_once} {places}: requests for different ones wait for one another."
        way = Way(
            f"set {adapter_flags.at_once} to {needed}, which takes memory for each", {adapter_flags.at_once: needed}
        )
        yield Finding(
            "warning",
            sentence,
            (way,),
            adapter_flags.source,
            adapter_flags.at_once if adapter_flags.at_once in case.flags else ADAPTERS_KEY,
        )


@adapter_rule(
    "adapter-kind",
    sources=("vLLM 0.32.0, lora/peft_helper.py: `_validate_features`", "SGLang 0.5.23, lora/lora_manager.py"),
    example=AdapterCase(adapters={"sql": {"extras": ["use_dora"]}}),
)
def adapter_kind(case: AdapterCase) -> Iterator[Finding]:
    """Some adapters do more than a plain LoRA, and the engine refuses them.
    DoRA, biases, whole modules that were trained beside the matrices: an engine that does not compute them does not load the
    adapter, and one that ignored them would answer as another model.
    """
    title = engines.TITLES[case.engine]
    for name, adapter in case.adapters.items():
        refused = [extra for extra in adapter.get("extras") or () if extra in case.place.refused]
        if refused:
            sentence = (
                f"the adapter {name} has {', '.join(refused)} in its adapter_config.json, which {title} does not serve."
            )
            yield Finding(
                "error",
                sentence,
                (Way("merge it into the model, or train a plain LoRA"),),
                case.place.source,
                ADAPTERS_KEY,
            )


def _find_shape_mismatch(adapter: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return why an adapter's matrices do not fit a model; empty if nothing is known against it."""
    architecture = config.get("general.architecture")
    if adapter.get("architecture") and architecture and adapter["architecture"] != architecture:
        return f"its architecture is {one_line(adapter['architecture'], max_chars=40)}, and the model's {architecture}"
    part = config_parts.text_part(config)
    hidden, layers = part.number("hidden_size", "n_embd", "d_model"), part.layers
    last = adapter.get("layers")
    if last and layers and last > layers + config_parts.count_prediction_layers(config):
        return f"it changes layer {last}, and the model has {layers}"
    heads = _attention_shapes(part, config, hidden)
    for module, (inputs, outputs) in (adapter.get("sizes") or {}).items():
        head_sizes = heads.get(module, (0, 0))
        own_inputs = hidden if module in HIDDEN_INPUT_MODULES else head_sizes[0]
        own_outputs = hidden if module in HIDDEN_OUTPUT_MODULES else head_sizes[1]
        for size, own_size, word in ((inputs, own_inputs, "inputs"), (outputs, own_outputs, "outputs")):
            if size and own_size and size != own_size:
                return f"its {module} has {size} {word}, and the model's {own_size}"
    return ""


def _attention_shapes(
    part: config_parts.ConfigPart, config: Mapping[str, Any], hidden: int | None
) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of the matrices of attention, 0 for unknown ones; empty unless its attention is plain."""
    heads = part.number("num_attention_heads")
    if not heads or not hidden or (config.get("architectures") or [""])[0] not in PLAIN_ATTENTION_ARCHITECTURES:
        return {}
    size = part.number("head_dim") or hidden // heads
    kv = (part.number("num_key_value_heads") or heads) * size
    return {"q_proj": (0, heads * size), "k_proj": (0, kv), "v_proj": (0, kv), "o_proj": (heads * size, 0)}


def _find_name_mismatch(base: str, case: AdapterCase) -> str:
    """Return why a base model's name is one of another family or size than the model; empty if it may be the same."""
    model_text = (
        f"{case.model} {case.config.get('model_type', '')} {case.config.get('general.architecture', '')}".lower()
    )
    base_text = base.rpartition("/")[2].lower()
    families = [_find_families(text) for text in (base_text, model_text)]
    sizes = [set(_SIZE.findall(text)) for text in (base_text, case.model.rpartition("/")[2].lower())]
    if all(families) and not families[0] & families[1]:
        return f"it was made for {base}, a model of another family"
    if all(sizes) and not sizes[0] & sizes[1]:
        return f"it was made for {base}, a model of another size"
    return ""


def _find_families(text: str) -> set[str]:
    """Return the families of models that a text names: `codellama` is a llama, `philosophy` no phi."""
    words = re.findall(r"[a-z]+", text)
    return {
        family
        for family in FAMILIES
        for word in words
        if word == family or (len(family) > MAX_SHORT_FAMILY_CHARS and word.endswith(family))
    }


def _base_name(model: str) -> str:
    """Return a model's name without its owner and without what a quantised copy adds."""
    return re.sub(r"[^a-z0-9.]+", "", _QUANTISED_COPY.sub("", model.rpartition("/")[2].lower()))


def _parse_number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


#: the flag with the fields that a server sets in each request
TEMPLATE_DEFAULTS_CONCEPT = "the template's defaults"


@dataclass(frozen=True)
class TemplateCase:
    """The input of the rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # under their own names
    chat: Mapping[str, Any] = field(default_factory=dict)  # the lock's entry, see chat_template.kept
    engine: str = "vllm"

    @property
    def template(self) -> ChatTemplate | None:
        """The model's template; None if it is not known, or the recipe brings another one."""
        if any(name in self.flags for name in engines.get_engine(self.engine).flags.TEMPLATES):
            return None
        return ChatTemplate.from_json(self.chat.get("template") or {})


def _describe_example(case: TemplateCase) -> dict[str, Any]:
    return {"engine": case.engine, "flags": dict(case.flags)} if case.flags else {}


TEMPLATE_RULES: Rules[TemplateCase, TemplateCase] = Rules(describe_example=_describe_example)
template_rule = TEMPLATE_RULES.rule


@template_rule(
    "template-field-unread",
    sources=(
        "transformers: variables that a template does not use are ignored",
        "model-serving-minefield 7, 58: reasoning_effort is accepted and ignored",
    ),
    example=TemplateCase(
        {"default-chat-template-kwargs": {"reasoning_effort": "low"}},
        {"template": ChatTemplate(("enable_thinking",), True, "enable_thinking", "on", "", False, None).to_json()},
    ),
)
def template_field_unread(case: TemplateCase) -> Iterator[Finding]:
    """A field for the chat template that the pinned template does not read.
    The engine takes it without a word, and nothing changes: thinking stays as it is, or has no effort to be set. Which fields
    the template of the pinned commit reads stands in spark.lock, and `model.inspect` shows it.
    """
    flag, template = next(iter(concept_flags(case.engine, TEMPLATE_DEFAULTS_CONCEPT)), ""), case.template
    fields = case.flags.get(flag)
    if template is None or not isinstance(fields, Mapping):
        return
    for name in fields:
        if str(name) in template.fields:
            continue
        reads = f"it reads {', '.join(template.fields)}" if template.fields else "it reads no field of a request"
        rest = {key: value for key, value in fields.items() if key != name} or None
        instead = f"set {template.switch} instead" if template.switch else "remove it"
        sentence = f"{flag}.{name} is read by nothing: the model's chat template does not know it ({reads})."
        yield Finding("warning", sentence, (Way(instead, {flag: rest}),), "the template of the pinned commit", flag)


@template_rule(
    "sampling-of-the-engine",
    sources=(
        "vLLM 0.33.0: --generation-config auto takes the model's generation_config.json, else vLLM's own defaults",
        "model-serving-minefield 21: the server's built-ins became the model's settings",
    ),
    example=TemplateCase({}, {"template": None, "sampling": None}),
)
def sampling_of_the_engine(case: TemplateCase) -> Iterator[Finding]:
    """A model without generation_config.json is sampled with the engine's own defaults.
    A request that sets no temperature gets 1.0, no top_p and no top_k, whatever the model's makers recommend on their page.
    """
    flags = engines.get_engine(case.engine).flags.SAMPLING
    if (
        flags is None
        or not case.chat
        or case.chat.get("sampling") is not None
        or not case.flags.keys().isdisjoint(flags)
    ):
        return
    sentence = "the model has no generation_config.json: requests without a temperature get the engine's own defaults."
    change = {flag: {"temperature": 0.7, "top_p": 0.8} for flag in flags[:1]}
    way = Way("set what its makers recommend, as {temperature: 0.7, top_p: 0.8}, or set it in each request", change)
    yield Finding("info", sentence, (way,), "the files of the pinned commit", "model")


#: age in days from which a recipe is old: six months
MAX_FRESH_DAYS = 183
DATE_KEY = "date"


@dataclass(frozen=True)
class AgeCase:
    """The input of the rule."""

    written: str = ""  # the recipe's `date`, YYYY-MM-DD; empty for none
    today: str = ""  # YYYY-MM-DD


AGE_RULES: Rules[AgeCase, AgeCase] = Rules()


def age_months(written: str, today: str) -> int | None:
    """Return the age of a recipe in whole months, if it is old.

    Args:
        written: The recipe's `date`, YYYY-MM-DD; empty for none.
        today: YYYY-MM-DD.

    Returns:
        None for a recipe that is not old or has no date.
    """
    if not written:
        return None
    days = (date.fromisoformat(today) - date.fromisoformat(written)).days
    return days * 12 // 365 if days > MAX_FRESH_DAYS else None


def describe_age(written: str, today: str) -> str:
    """Return a clause about a recipe's date, as "of 2026-03-05, older than six months"; empty for a recipe without one."""
    if not written:
        return ""
    return f"of {written}" + (", older than six months" if age_months(written, today) is not None else "")


@AGE_RULES.rule(
    "old-recipe",
    sources=("the recipe's own `date`: the day of the newest source of its settings and figures",),
    example=AgeCase("2026-03-05", "2026-11-26"),
)
def old_recipe(case: AgeCase) -> Iterator[Finding]:
    """A recipe whose settings and figures are older than six months.
    It serves as before. Newer models of its size may answer better, and a newer engine may have faster kernels, other defaults or
    drafted tokens for this one. `date` is the day of the newest source of a recipe's settings and figures; whoever measures or
    compares them anew sets it to that day.
    """
    age = age_months(case.written, case.today)
    if age is not None:
        ways = (Way("compare it with newer ones (`sparkwright recommend`), or set `date` once it was measured again"),)
        yield Finding("info", f"its settings and figures are {age} months old (`date`).", ways, "", DATE_KEY)


#: the rules for every engine
RULES: tuple[Rules[Any, Any], ...] = (container_rules.RULES, budget.RULES, TEMPLATE_RULES, ADAPTER_RULES, AGE_RULES)
