"""Rules for recipes of every engine: LoRA adapters, chat template, expectations, flags without a value, and age."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sparkwright.engines import budget, container_rules
from sparkwright.engines import engine as engines
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.flags import AdapterFlags
from sparkwright.engines.model import config_parts
from sparkwright.engines.model.chat_template import ChatTemplate
from sparkwright.engines.options import concept_flags
from sparkwright.visible import one_line

#: recipe keys of the adapters and of the date
ADAPTERS_KEY, DATE_KEY = "adapters", "date"
#: recipe keys of the expected rate and load
RATE_KEY, LOAD_KEY = "expect.tok_per_s", "expect.load"
#: concept of the flag that limits the number of requests at a time
REQUESTS_CONCEPT = "requests at a time"
#: concept of the flag with default values for the fields of the chat template
TEMPLATE_DEFAULTS_CONCEPT = "the template's defaults"
#: six months, after which a recipe is reported as old
MAX_RECENT_DAYS = 183
#: modules whose number of inputs is the model's hidden size in every architecture that has them
HIDDEN_INPUT_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj", "q_a_proj")
#: modules whose number of outputs is the model's hidden size
HIDDEN_OUTPUT_MODULES = ("o_proj", "down_proj")
#: architectures whose attention matrices have exactly heads times head_dim rows or columns
PLAIN_ATTENTION_ARCHITECTURES = (
    *("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM"),
    *("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
)
#: model families, as words in model names
FAMILIES = tuple(
    """
    bloom cohere command deepseek ernie falcon gemma glm gpt granite hunyuan internlm kimi lfm llama minimax
    mistral mixtral nemotron olmo phi qwen seed smollm yi
    """.split()
)
#: a family name of up to this length must be a whole word; a longer one may end a word, as in "codellama"
MAX_SHORT_FAMILY_CHARS = 3
#: parameter counts in model names, such as 8b, 0.6b or a3b
_SIZE_PATTERN = re.compile(r"(?<![0-9a-z.])a?[0-9]{1,4}(?:\.[0-9]{1,2})?[bm](?![0-9a-z])")
#: words in the names of quantised or converted copies
_COPY_WORD_PATTERN = re.compile(
    r"(?<![a-z0-9])(?:fp8|fp4|nvfp4|mxfp4|int4|int8|awq|gptq|bnb|4bit|8bit|w[48]a[48]|w4a16|w8a16|dynamic|block|unsloth|"
    r"bf16|gguf|hf|quantized|modelopt|autoround)(?![a-z0-9])"
)


@dataclass(frozen=True)
class AdapterCase:
    """Input of the adapter rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # by canonical name
    model: str = "org/model"  # id of the pinned model on the hub
    config: Mapping[str, Any] = field(default_factory=dict)  # the pinned model's config in spark.lock
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the lock's `adapter` entries, by name
    engine: str = "vllm"

    @property
    def adapter_flags(self) -> AdapterFlags:
        adapter_flags = engines.get_engine(self.engine).flags.ADAPTER_FLAGS
        assert adapter_flags is not None, "recipes of other engines cannot have adapters"
        return adapter_flags

    def locate(self, flag: str) -> str:
        """Return the key that a finding about a flag refers to: the flag if the recipe sets it, else `adapters`."""
        return flag if flag in self.flags else ADAPTERS_KEY


ADAPTER_RULES: Rules[AdapterCase, AdapterCase] = Rules()
adapter_rule = ADAPTER_RULES.rule

_LLAMA_CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32}


@adapter_rule(
    "adapter-base",
    sources=(
        "peft: matrix A of a module is [rank, inputs] and B [outputs, rank], with the sizes of the base model's matrix",
        "vLLM 0.32.0, measured: it exits with an adapter of a larger model, and loads one of a smaller model without a warning",
        "llama.cpp b11549, measured: tensor has incorrect shape (hint: maybe wrong base model?)",
    ),
    example=AdapterCase(
        config=_LLAMA_CONFIG, adapters={"sql": {"base": "org/other", "sizes": {"q_proj": [2048, 2048]}, "layers": 16}}
    ),
)
def adapter_base(case: AdapterCase) -> Iterator[Finding]:
    """An adapter must match the recipe's model.
    vLLM loads an adapter of a smaller model without a warning, applies it to a corner of the larger matrices, and its answers are
    wrong. An adapter's matrices have the sizes of the model that it was trained on. Another size, other heads or more layers
    are errors; they are read from the header of the adapter's weights and the model's config.json. For models of equal size, the
    adapter's `base_model_name_or_path` decides. A name of another family or size is an error; any other difference is only a
    warning, because the name may refer to an older or a quantised copy of the model.
    """
    for name, adapter in case.adapters.items():
        base = one_line(str(adapter.get("base") or ""), max_chars=120)
        mismatch = _find_shape_mismatch(adapter, case.config) or _find_name_mismatch(base, case)
        if mismatch:
            base_sentence = f" It was made for {base}." if base and base not in mismatch else ""
            fix = Fix(f"use an adapter for {case.model}, or serve the model that the adapter was made for")
            message = f"adapter {name} does not fit {case.model}: {mismatch}.{base_sentence}"
            yield Finding("error", message, (fix,), "the adapter's files and the model's config.json", ADAPTERS_KEY)
        elif base and _normalize_model_name(base) != _normalize_model_name(case.model):
            sizes = (
                "its matrices have the right sizes" if adapter.get("sizes") else "the sizes of its matrices are unknown"
            )
            message = f"adapter {name} was made for {base}, but the model is {case.model}; {sizes}."
            fix = Fix("check that both models have the same weights; the precision may differ")
            yield Finding("warning", message, (fix,), "the adapter's adapter_config.json", ADAPTERS_KEY)


@adapter_rule(
    "adapter-rank",
    sources=("vLLM 0.32.0, lora/peft_helper.py: LoRA rank 64 is greater than max_lora_rank 16",),
    example=AdapterCase(adapters={"sql": {"rank": 64}}),
)
def adapter_rank(case: AdapterCase) -> Iterator[Finding]:
    """The rank of an adapter must not exceed the engine's maximum rank.
    The engine reserves memory for the maximum rank in every layer, for every adapter in a batch. vLLM's default is 16; it exits
    at start if an adapter has a higher rank.
    """
    adapter_flags = case.adapter_flags
    max_rank = _parse_number(case.flags.get(adapter_flags.max_rank_flag)) or adapter_flags.default_max_rank
    for name, adapter in case.adapters.items():
        rank = adapter.get("rank") or 0
        if not max_rank or rank <= max_rank:
            continue
        flag, allowed_ranks = adapter_flags.max_rank_flag, adapter_flags.allowed_ranks
        needed_rank = next((allowed for allowed in allowed_ranks if allowed >= rank), 0 if allowed_ranks else rank)
        message = f"adapter {name} has rank {rank}, but {flag} is {max_rank}: the server does not start."
        fixes = (Fix(f"set {flag} to {needed_rank}", {flag: needed_rank}),) if needed_rank else ()
        yield Finding("error", message, fixes, adapter_flags.source, case.locate(flag))


@adapter_rule(
    "adapters-at-once",
    sources=("vLLM 0.32.0, config/lora.py: max_loras, the number of LoRAs in a single batch, is 1 by default",),
    example=AdapterCase(adapters={"sql": {}, "law": {}}),
)
def adapters_at_once(case: AdapterCase) -> Iterator[Finding]:
    """A batch should have room for all adapters.
    If it does not, requests for different adapters wait for each other, but are still answered. Each slot in the batch takes the
    memory of an adapter of the maximum rank. In SGLang, requests without an adapter also take a slot.
    """
    adapter_flags = case.adapter_flags
    flag = adapter_flags.max_in_batch_flag
    if not flag:
        return
    slots = _parse_number(case.flags.get(flag)) or adapter_flags.default_max_in_batch
    needed_slots = len(case.adapters) + adapter_flags.base_takes_slot
    if needed_slots > slots:
        message = f"{len(case.adapters)} adapters, but {flag} is {slots}: requests for different adapters wait for each other."
        fix = Fix(f"set {flag} to {needed_slots}; each adapter takes memory", {flag: needed_slots})
        yield Finding("warning", message, (fix,), adapter_flags.source, case.locate(flag))


@adapter_rule(
    "adapter-kind",
    sources=("vLLM 0.32.0, lora/peft_helper.py: `_validate_features`", "SGLang 0.5.23, lora/lora_manager.py"),
    example=AdapterCase(adapters={"sql": {"extras": ["use_dora"]}}),
)
def adapter_kind(case: AdapterCase) -> Iterator[Finding]:
    """An adapter must not use LoRA extensions that the engine does not support.
    Examples are DoRA, biases, and modules that were trained in full. An engine without support for them does not load the
    adapter; ignoring them would change its answers.
    """
    title = engines.TITLES[case.engine]
    for name, adapter in case.adapters.items():
        unsupported_extensions = [
            extra for extra in adapter.get("extras") or () if extra in case.adapter_flags.unsupported_keys
        ]
        if unsupported_extensions:
            message = f"adapter {name} sets {', '.join(unsupported_extensions)} in adapter_config.json, which {title} does not support."
            fix = Fix("merge the adapter into the model, or train a plain LoRA")
            yield Finding("error", message, (fix,), case.adapter_flags.source, ADAPTERS_KEY)


def _find_shape_mismatch(adapter: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return why an adapter's matrices do not fit a model; empty if no mismatch is known."""
    architecture = config.get("general.architecture")
    if adapter.get("architecture") and architecture and adapter["architecture"] != architecture:
        adapter_architecture = one_line(adapter["architecture"], max_chars=40)
        return f"its architecture is {adapter_architecture}, the model's is {architecture}"
    part = config_parts.text_part(config)
    hidden_size, layers = part.get_number("hidden_size", "n_embd", "d_model"), part.layer_count
    last_layer = adapter.get("layers")
    if last_layer and layers and last_layer > layers + config_parts.count_prediction_layers(config):
        return f"it changes layer {last_layer}, but the model has {layers}"
    attention_sizes = _list_attention_sizes(part, config, hidden_size)
    for module, (inputs, outputs) in (adapter.get("sizes") or {}).items():
        attention_inputs, attention_outputs = attention_sizes.get(module, (0, 0))
        model_inputs = hidden_size if module in HIDDEN_INPUT_MODULES else attention_inputs
        model_outputs = hidden_size if module in HIDDEN_OUTPUT_MODULES else attention_outputs
        for size, model_size, noun in ((inputs, model_inputs, "inputs"), (outputs, model_outputs, "outputs")):
            if size and model_size and size != model_size:
                return f"its {module} has {size} {noun}, the model's has {model_size}"
    return ""


def _list_attention_sizes(
    part: config_parts.ConfigPart, config: Mapping[str, Any], hidden_size: int | None
) -> dict[str, tuple[int, int]]:
    """Return (inputs, outputs) of the attention matrices, 0 for an unknown size; empty unless the attention is plain."""
    heads = part.get_number("num_attention_heads")
    if not heads or not hidden_size or config_parts.architecture_name(config) not in PLAIN_ATTENTION_ARCHITECTURES:
        return {}
    head_size = part.get_number("head_dim") or hidden_size // heads
    kv_size = (part.get_number("num_key_value_heads") or heads) * head_size
    return {
        "q_proj": (0, heads * head_size),
        "k_proj": (0, kv_size),
        "v_proj": (0, kv_size),
        "o_proj": (heads * head_size, 0),
    }


def _find_name_mismatch(base: str, case: AdapterCase) -> str:
    """Return why a base model must differ from the recipe's model, judging by its name; empty if it may be the same."""
    model_text = (
        f"{case.model} {case.config.get('model_type', '')} {case.config.get('general.architecture', '')}".lower()
    )
    base_text = base.rpartition("/")[2].lower()
    families = [_find_families(text) for text in (base_text, model_text)]
    sizes = [set(_SIZE_PATTERN.findall(text)) for text in (base_text, case.model.rpartition("/")[2].lower())]
    if all(families) and not families[0] & families[1]:
        return f"it was made for {base}, a model of another family"
    if all(sizes) and not sizes[0] & sizes[1]:
        return f"it was made for {base}, a model of another size"
    return ""


def _find_families(text: str) -> set[str]:
    words = re.findall(r"[a-z]+", text)
    return {
        family
        for family in FAMILIES
        for word in words
        if word == family or (len(family) > MAX_SHORT_FAMILY_CHARS and word.endswith(family))
    }


def _normalize_model_name(model: str) -> str:
    """Return a model's name without owner, punctuation and the words of quantised copies."""
    return re.sub(r"[^a-z0-9.]+", "", _COPY_WORD_PATTERN.sub("", model.rpartition("/")[2].lower()))


def _parse_number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


@dataclass(frozen=True)
class TemplateCase:
    """Input of the chat template rules."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # by canonical name
    chat: Mapping[str, Any] = field(default_factory=dict)  # the lock's `chat` entry; empty if unknown
    engine: str = "vllm"

    @property
    def template(self) -> ChatTemplate | None:
        """The model's template; None if it is unknown or a flag replaces it."""
        if any(name in self.flags for name in engines.get_engine(self.engine).flags.TEMPLATE_FLAGS):
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
    """Every field for the chat template must be read by the pinned template.
    The engine ignores other fields without a warning: a field to set the thinking effort, say, has no effect. spark.lock contains
    the fields that the template of the pinned commit reads, and `model.inspect` shows them.
    """
    flag, template = next(iter(concept_flags(case.engine, TEMPLATE_DEFAULTS_CONCEPT)), ""), case.template
    fields = case.flags.get(flag)
    if template is None or not isinstance(fields, Mapping):
        return
    for name in fields:
        if str(name) in template.fields:
            continue
        read_fields = f"it reads {', '.join(template.fields)}" if template.fields else "it reads no fields"
        remaining = {key: value for key, value in fields.items() if key != name} or None
        fix_text = f"set {template.switch} instead" if template.switch else "remove it"
        message = f"{flag}.{name} has no effect: the model's chat template does not read it ({read_fields})."
        yield Finding(
            "warning", message, (Fix(fix_text, {flag: remaining}),), "the template of the pinned commit", flag
        )


@template_rule(
    "sampling-of-the-engine",
    sources=(
        "vLLM 0.33.0: --generation-config auto uses the model's generation_config.json, or else vLLM's own defaults",
        "model-serving-minefield 21: the server's built-ins became the model's settings",
    ),
    example=TemplateCase({}, {"template": None, "sampling": None}),
)
def sampling_of_the_engine(case: TemplateCase) -> Iterator[Finding]:
    """Sampling defaults should come from the model's generation_config.json.
    Without that file, a request that sets no sampling parameters gets the engine's own defaults: temperature 1.0, no top_p and
    no top_k, whatever the model card recommends.
    """
    flags = engines.get_engine(case.engine).flags.SAMPLING_FLAGS
    if flags is None or not case.chat or case.chat.get("sampling") is not None:
        return
    if not case.flags.keys().isdisjoint(flags):
        return
    message = "the model has no generation_config.json: requests without a temperature get the engine's own defaults."
    change = {flag: {"temperature": 0.7, "top_p": 0.8} for flag in flags[:1]}
    fix = Fix(
        "set the model card's values, such as {temperature: 0.7, top_p: 0.8}, or set them in each request", change
    )
    yield Finding("info", message, (fix,), "the files of the pinned commit", "model")


@dataclass(frozen=True)
class RecipeCase:
    """Input of the rules about `expect` and flags without a value. 0 means unknown or not set."""

    flags: Mapping[str, Any] = field(default_factory=dict)  # by canonical name
    engine: str = "vllm"
    tok_per_s: float = 0.0
    max_tok_per_s: float = 0.0  # without speculation
    streams: int = 0
    max_requests: int = 0  # number of requests that the server runs at a time
    speculates: bool = False


RECIPE_RULES: Rules[RecipeCase, RecipeCase] = Rules()


@RECIPE_RULES.rule(
    "rate-above-bandwidth",
    sources=("engines/model/roofline.py: a GB10's LPDDR5X has 273 GB/s, and each token reads the active weights once",),
    example=RecipeCase(tok_per_s=90, max_tok_per_s=74.8),
)
def rate_above_bandwidth(case: RecipeCase) -> Iterator[Finding]:
    """The expected rate should not exceed the rate that the memory's bandwidth allows.
    Each token of a single stream reads all active weights once, so the rate is at most the bandwidth divided by their size. A
    measured rate below half of `expect.tok_per_s` fails the deploy. With speculative decoding, or if the model's size per token is
    unknown, the rule does not apply.
    """
    if case.max_tok_per_s and not case.speculates and case.tok_per_s > case.max_tok_per_s:
        message = (
            f"`expect.tok_per_s` is {case.tok_per_s:g}, but the memory's bandwidth allows one stream at most "
            f"{case.max_tok_per_s:.1f} tok/s without speculation."
        )
        fix = Fix("remove it: later deploys are compared with the first measured rate")
        yield Finding("warning", message, (fix,), "273 GB/s divided by the bytes read per token", RATE_KEY)


@RECIPE_RULES.rule(
    "load-above-requests",
    sources=("every engine keeps further requests waiting until one of the running ones has finished",),
    example=RecipeCase({"max-num-seqs": 4}, streams=8, max_requests=4),
)
def load_above_requests(case: RecipeCase) -> Iterator[Finding]:
    """A load of `expect.load` should not have more streams than the server runs at a time.
    The other prompts wait, so the test does not prove that the memory suffices for all of them at a time.
    """
    if case.max_requests and case.streams > case.max_requests:
        flag = next(iter(concept_flags(case.engine, REQUESTS_CONCEPT)), "")
        message = f"`expect.load.streams` is {case.streams}, but the server runs {case.max_requests} requests at a time ({flag})."
        fix = Fix(f"set streams to {case.max_requests}, or {flag} to {case.streams}")
        yield Finding("warning", message, (fix,), "", LOAD_KEY)


@RECIPE_RULES.rule(
    "flag-without-value",
    sources=("YAML: a key without a value is null, which sparkwright does not pass to the engine",),
    example=RecipeCase({"enable-prefix-caching": None}),
)
def flag_without_value(case: RecipeCase) -> Iterator[Finding]:
    """A flag should have a value.
    A switch is turned on with `true`. A flag without a value is not passed to the engine, which uses its default.
    """
    for name in (name for name, value in case.flags.items() if value is None):
        message = f"{name} has no value: it is not passed to the engine, which uses its default."
        yield Finding("warning", message, (Fix("write a value (a switch: true), or remove it"),), "YAML", name)


@dataclass(frozen=True)
class AgeCase:
    """Input of the age rule."""

    recipe_date: str = ""  # the recipe's `date`, YYYY-MM-DD; empty if it has none
    today: str = ""  # YYYY-MM-DD


AGE_RULES: Rules[AgeCase, AgeCase] = Rules()


def age_months(recipe_date: str, today: str) -> int | None:
    """Return the age of an old recipe in whole months; None if the recipe is not old or has no date.

    recipe_date: the recipe's `date`, YYYY-MM-DD; empty if it has none. today: YYYY-MM-DD.
    """
    if not recipe_date:
        return None
    days = (date.fromisoformat(today) - date.fromisoformat(recipe_date)).days
    return days * 12 // 365 if days > MAX_RECENT_DAYS else None


def describe_age(recipe_date: str, today: str) -> str:
    """Return a clause such as "of 2026-03-05, older than six months"; empty if the recipe has no date."""
    if not recipe_date:
        return ""
    return f"of {recipe_date}" + (", older than six months" if age_months(recipe_date, today) is not None else "")


@AGE_RULES.rule(
    "old-recipe",
    sources=("the recipe's own `date`: the day of the newest source of its settings and figures",),
    example=AgeCase("2026-03-05", "2026-11-26"),
)
def old_recipe(case: AgeCase) -> Iterator[Finding]:
    """The settings and figures of a recipe should be at most six months old.
    An older recipe still works. But newer models of the same size may answer better, and a newer engine may have faster kernels,
    other defaults or speculative decoding for this model. `date` is the day of the newest source of a recipe's settings and
    figures; update it after measuring or comparing them again.
    """
    age = age_months(case.recipe_date, case.today)
    if age is not None:
        fix = Fix("compare it with newer recipes (`sparkwright recommend`), or measure it again and update `date`")
        yield Finding("info", f"its settings and figures are {age} months old (`date`).", (fix,), "", DATE_KEY)


#: the rules for all engines
RULES: tuple[Rules[Any, Any], ...] = (
    container_rules.RULES,
    budget.RULES,
    TEMPLATE_RULES,
    ADAPTER_RULES,
    RECIPE_RULES,
    AGE_RULES,
)
