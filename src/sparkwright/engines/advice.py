"""Findings about a recipe for one engine and one model, and the settings that the engine will derive from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from packaging.version import Version

from sparkwright.engines.findings import Finding, Rules
from sparkwright.engines.memory import Memory

Platform = Literal["gb10", "ascend"]
PrefillExpectation = Literal["any", "enabled", "disabled"]
ImpossiblePolicy = Literal["refuse", "report"]

#: rule name of findings about a recipe's expectation of chunked prefill
EXPECTED_RULE = "expected-chunked-prefill"


@dataclass(frozen=True)
class ServerRequest:
    """The settings of a recipe that concern the engine."""

    #: of the engine, by canonical name
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: REPOSITORY:TAG
    image: str = ""
    platform: Platform = "gb10"
    env: Mapping[str, str] = field(default_factory=dict)
    #: the server reads an API key from a file and asks clients for it
    server_key: bool = False
    #: the server has no API key and is published beyond the host
    open_to_network: bool = False
    #: published port of the container; 0 if none is published, None if not known
    published: int | None = None
    #: scheduler settings on Ascend, by the recipe's keys; None for none
    ascend: Mapping[str, bool] | None = None
    #: options of `docker run`, by their names in a recipe; empty if not known
    container: Mapping[str, Any] = field(default_factory=dict)
    #: mounted folders whose files spark.lock pins, with the files' paths below them
    pinned: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The decision about chunked prefill for one start."""

    #: as they are rendered
    flags: Mapping[str, Any]
    #: what the engine's log must report with these flags
    expected: PrefillExpectation
    #: message for the user, empty for none
    note: str = ""
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings of an engine after its defaults are applied. None, or 0 for max_num_seqs, means not known."""

    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    #: tokens per attention block of a hybrid model
    block_tokens: int | None = None
    #: tokens per step
    budget: int | None = None
    max_num_seqs: int = 0
    max_model_len: int | None = None
    #: see Memory.share
    memory_utilization: float | None = None


class Kind(Protocol):
    """The kind of a model."""

    @property
    def kind(self) -> str:
        """recurrent, attention_free, dense or unknown."""

    @property
    def sentence(self) -> str:
        """The kind in half a sentence, with the model's name."""

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest sequence in tokens; None if not known."""


@dataclass(frozen=True)
class UnknownKind:
    """A model whose kind is not known here."""

    sentence: str
    max_position_embeddings: int | None = None
    kind: str = "unknown"


class Advice(Protocol):
    """The rules of one engine about recipes.

    In every method, `model` is the part of config.json that `essence` keeps, and `version` is None while it is not known.
    """

    @property
    def CHUNKED_PREFILL(self) -> str:
        """The flag that turns chunked prefill on and off; "" if there is none."""

    @property
    def RULES(self) -> Sequence[Rules[Any, Any]]:
        """The rules, to list and to explain them."""

    def version(self, text: str | None) -> Version | None:
        """Return the version in a text, in the engine's own format; None if it holds none."""

    def kind(self, model: Mapping[str, Any]) -> Kind:
        """Return the kind of a model."""

    def essence(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a model's config.json that matter to the engine."""

    def decide(
        self,
        request: ServerRequest,
        model: Mapping[str, Any],
        version: Version | None,
        wanted: PrefillExpectation,
        impossible: ImpossiblePolicy,
    ) -> Decision:
        """Return the flags that give the wanted chunked prefill, or the reason why that is impossible."""

    def check(
        self, request: ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
    ) -> list[Finding]:
        """Return all findings, errors first. listed: the options in the engine's own help, with their shapes where known."""

    def effective(self, request: ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
        """Return the settings that follow from flags, model and version."""

    def memory(self, flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
        """Return the memory model of a server. locked: the model as spark.lock holds it, empty while it is not pinned."""

    def chunked_prefill_arms(
        self, flags: Mapping[str, Any], model: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the flags to change for chunked prefill on and off, with nothing else different; None if there is no such
        switch."""


def decide_without_switch(
    request: ServerRequest, title: str, expected: PrefillExpectation, impossible: ImpossiblePolicy, why: str
) -> Decision:
    """Return the decision about chunked prefill for an engine without a switch for it.

    title: the engine's name. why: a clause that says what the engine does instead.
    """
    if expected == "any":
        return Decision(request.flags, "any")
    sentence = f"{title} cannot be asked for chunked_prefill: {why}."
    if impossible == "refuse":
        return Decision(request.flags, "any", "", Finding("error", sentence, rule=EXPECTED_RULE))
    return Decision(request.flags, "any", why, Finding("info", sentence, rule=EXPECTED_RULE))
