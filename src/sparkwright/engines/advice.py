"""The interface through which an engine reports findings about a recipe and predicts the settings that it will use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packaging.version import Version

from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.memory import Memory

Platform = Literal["gb10", "ascend"]
PrefillExpectation = Literal["any", "enabled", "disabled"]
OnImpossible = Literal["refuse", "report"]

#: name of the rule about a recipe's expectation of chunked prefill
EXPECTED_PREFILL_RULE = "expected-chunked-prefill"


@dataclass(frozen=True)
class ServerRequest:
    """The server that a recipe requests: the settings that concern its engine."""

    #: the engine's flags by canonical name
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: REPOSITORY:TAG
    image: str = ""
    platform: Platform = "gb10"
    env: Mapping[str, str] = field(default_factory=dict)
    #: the server reads an API key from a file and requires it from clients
    has_server_key: bool = False
    #: the server has no API key and is reachable from other hosts
    open_to_network: bool = False
    #: published port of the container; 0 if no port is published, None if unknown
    published_port: int | None = None
    #: scheduler settings on Ascend, by recipe key; None on other platforms
    ascend: Mapping[str, bool] | None = None
    #: options of `docker run` by recipe key; empty if unknown
    container: Mapping[str, Any] = field(default_factory=dict)
    #: mounted folders with files that spark.lock pins, each with the relative paths of these files
    pinned_files: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The chunked prefill setting chosen for one start."""

    #: the flags to start the engine with
    flags: Mapping[str, Any]
    #: what the engine's log must report with these flags
    expected: PrefillExpectation
    #: message for the user; may be empty
    note: str = ""
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings of an engine after its defaults are applied. None, or 0 for max_num_seqs, means unknown."""

    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    #: tokens per attention block of a hybrid model
    block_tokens: int | None = None
    #: maximum number of tokens per step
    budget: int | None = None
    max_num_seqs: int = 0
    max_model_len: int | None = None
    #: see Memory.share
    memory_utilization: float | None = None


class Kind(Protocol):
    """The kind of a model's architecture."""

    @property
    def kind(self) -> str:
        """recurrent, attention_free, dense or unknown."""

    @property
    def description(self) -> str:
        """The model's name and kind as a phrase for messages."""

    @property
    def max_position_embeddings(self) -> int | None:
        """Longest sequence in tokens; None if unknown."""


@dataclass(frozen=True)
class UnknownKind:
    """A model whose architecture is unknown."""

    description: str
    max_position_embeddings: int | None = None
    kind: str = "unknown"


class Advice(Protocol):
    """The rules of one engine about recipes.

    In every method, `model` is the part of config.json that `relevant_config` returns, and `version` is None if unknown.
    """

    @property
    def CHUNKED_PREFILL_FLAG(self) -> str:
        """The flag that turns chunked prefill on and off; empty if the engine has none."""

    @property
    def RULES(self) -> Sequence[Rules[Any, Any]]:
        """The rules, for lists and explanations."""

    def version(self, text: str | None) -> Version | None:
        """Return the version parsed from a string in the engine's version format; None if it contains none."""

    def kind(self, model: Mapping[str, Any]) -> Kind:
        """Return the kind of a model."""

    def relevant_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a model's config.json that matter to the engine."""

    def decide_chunked_prefill(
        self,
        request: ServerRequest,
        model: Mapping[str, Any],
        version: Version | None,
        expected: PrefillExpectation,
        on_impossible: OnImpossible,
    ) -> Decision:
        """Return the flags for the expected chunked prefill setting, or the reason why it is impossible."""

    def check(
        self,
        request: ServerRequest,
        model: Mapping[str, Any],
        version: Version | None,
        listed_options: Collection[str] = (),
    ) -> list[Finding]:
        """Return all findings, errors first. listed_options: the options that the help output of the image lists, with their shapes if known."""

    def effective_settings(
        self, request: ServerRequest, model: Mapping[str, Any], version: Version | None
    ) -> EffectiveSettings:
        """Return the settings that follow from flags, model and version."""

    def memory(self, flags: Mapping[str, Any], lock_entry: Mapping[str, Any]) -> Memory:
        """Return the memory model of a server. lock_entry: the model's entry in spark.lock, empty if it is not pinned."""

    def chunked_prefill_variants(
        self, flags: Mapping[str, Any], model: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the flag changes that turn chunked prefill on, and those that turn it off; None if the engine has no switch."""


def decide_enabled(request: ServerRequest, flag: str, *, is_off: bool) -> Decision:
    """Return the decision for a recipe that expects chunked prefill. is_off: its flags turn it off, which is an error."""
    if not is_off:
        return Decision(request.flags, "enabled")
    message = "the recipe expects chunked prefill, but its flags turn it off."
    fix = Fix("leave it on", {flag: None})
    return Decision(
        request.flags, "enabled", "", Finding("error", message, (fix,), "the recipe", flag, rule=EXPECTED_PREFILL_RULE)
    )


def decide_without_switch(
    request: ServerRequest, title: str, expected: PrefillExpectation, on_impossible: OnImpossible, reason: str
) -> Decision:
    """Return the decision about chunked prefill for an engine without a switch for it.

    title: the engine's name. reason: a clause about the engine's fixed behaviour.
    """
    if expected == "any":
        return Decision(request.flags, "any")
    message = f"{title} has no switch for chunked_prefill: {reason}."
    if on_impossible == "refuse":
        return Decision(request.flags, "any", "", Finding("error", message, rule=EXPECTED_PREFILL_RULE))
    return Decision(request.flags, "any", reason, Finding("info", message, rule=EXPECTED_PREFILL_RULE))
