"""The options of a bench command, and the loads derived from them, including prompts from a file.

A file of prompts is ShareGPT's published JSON, or contains one JSON object with a `prompt` per line.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.bench.axis import Axis
from sparkwright.engines.advice import EffectiveSettings
from sparkwright.errors import Refused
from sparkwright.measure.workload import KINDS, MAX_LENGTH, MIN_LENGTH, Load
from sparkwright.trust import bounds
from sparkwright.trust.names import expand_home
from sparkwright.units import MIB

#: loads by command, as named in --loads
LOADS_BY_COMMAND: Mapping[str, tuple[str, ...]] = {
    "smoke": ("smoke",),
    "serve": ("serve",),
    "ab": ("serve", "hol1", "hol2", "itl"),
    "sweep": ("serve", "hol1"),
    "hol": ("hol1", "hol2"),
    "itl": ("itl",),
    "mixed": ("mixed",),
    "context": ("depth",),
}
#: default numbers of concurrent requests of `serve`, by command
DEFAULT_CONCURRENCY: Mapping[str, tuple[int, ...]] = {"serve": (1, 2, 4, 8), "ab": (1, 8), "sweep": (8,)}
#: minimum number of prefill steps of a long prompt, because with few steps chunked prefill makes little difference
MIN_PREFILL_STEPS = 4
LONG_TOKENS = 4096
#: kinds of load with a long prompt
LONG_PROMPT_KINDS = frozenset(("hol1", "hol2", "itl", "mixed"))
#: relative error of the length of a long prompt, which consists of random words
LENGTH_ERROR_SHARE = 0.03
#: longest prompt of `depth` if the context length is unknown
DEFAULT_DEPTH_TOKENS = 32768
#: shortest prompt of `depth`
MIN_DEPTH_TOKENS = 1024
#: margin for the chat template and the error of the estimated length
MARGIN_TOKENS = 256
#: maximum temperature, as in OpenAI's API
MAX_TEMPERATURE = 2.0

#: used to estimate the lengths of a data set's texts, because the laptop has no tokenizer; the server counts the actual tokens
CHARS_PER_TOKEN = 4
DEFAULT_ANSWER_TOKENS = 128
#: limits on a file of prompts; ShareGPT is 650 MB, with about 4 million JSON values
MAX_PROMPT_FILE_BYTES, MAX_JSON_VALUES = 2048 * MIB, 40_000_000
#: names of the user's and the assistant's roles in published data sets
USER_ROLES, ASSISTANT_ROLES = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
TOKEN_KEYS = ("output_tokens", "max_tokens", "completion_tokens")

#: default loads by kind
DEFAULT_LOADS: Mapping[str, Load] = {
    "smoke": Load("smoke", requests=3, prompt_tokens=2048, output_tokens=128),
    "serve": Load("serve"),
    "hol1": Load("hol1", streams=3, output_tokens=256, after_s=1.0),
    "hol2": Load("hol2", shorts=3, prompt_tokens=256, output_tokens=32, after_s=0.03),
    "itl": Load("itl", streams=1, output_tokens=512, longs=3, after_s=1.0, every_s=6.0),
    "depth": Load("depth", concurrency=1, requests=1, output_tokens=128),
    "mixed": Load("mixed", longs=20, shorts=80, prompt_tokens=256, output_tokens=64, concurrency=8),
}


@dataclass(frozen=True)
class BenchOptions:
    """The options of a bench command, where 0, empty strings and empty tuples mean that an option was not given.

    The arms are `a` and `b`, or one recipe with different values of `flag`, `max_num_batched_tokens` or `axes`. Without any of
    these the running server is measured.
    """

    #: name of the command, a key of LOADS_BY_COMMAND
    command: str
    #: recipe of the first arm
    a: str = ""
    #: recipe of the second arm
    b: str = ""
    #: flag that differs between two arms
    flag: str = ""
    recipe: str = ""
    #: values of max-num-batched-tokens
    max_num_batched_tokens: tuple[int, ...] = ()
    #: swept flags with their values
    axes: tuple[Axis, ...] = ()
    loads: tuple[str, ...] = ()
    #: numbers of concurrent requests, one load each
    concurrency: tuple[int, ...] = ()
    #: requests per second instead of a concurrency, one load each
    rates: tuple[float, ...] = ()
    #: sampling temperatures to use with each load; empty for greedy sampling
    temperatures: tuple[float, ...] = ()
    #: number of requests and token counts per load
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    long_tokens: int = 0
    #: tokens in the longest prompt of the depth loads, and number of concurrent prompts
    depth: int = 0
    streams: int = 0
    #: file of prompts
    dataset: str = ""
    #: number of starts of each arm
    repeat: int = 1
    seed: int = 1
    name: str = ""
    #: start over, even if the last experiment of this name is unfinished
    again: bool = False

    @property
    def has_arms(self) -> bool:
        """True if the experiment starts containers."""
        return bool(self.a or self.flag or self.max_num_batched_tokens or self.axes)

    def validate(self) -> BenchOptions:
        """Return the options unchanged. Raises Refused if they contradict each other, or a value is invalid."""
        self._refuse_contradictions()
        self._refuse_invalid_values()
        return self

    def _refuse_contradictions(self) -> None:
        if bool(self.a) != bool(self.b):
            raise Refused("-a and -b must be given together.", fix="Or use one recipe and --flag chunked-prefill.")
        if self.a and (self.flag or self.axes):
            raise Refused("-a/-b (two recipes) and --flag (one recipe) can't be combined: choose one.")
        if self.command == "ab" and not (self.a or self.flag or self.axes):
            raise Refused("nothing to compare: pass -a RECIPE -b RECIPE, or --flag chunked-prefill.")
        if self.command != "sweep" and self.axes and [len(axis.values) for axis in self.axes] != [2]:
            raise Refused("a comparison takes one flag with two values.", fix="`invoke bench.sweep` measures more.")
        if self.command == "sweep" and not (self.max_num_batched_tokens or self.axes):
            raise Refused(
                "nothing to sweep: pass --max-num-batched-tokens, or --flag and --values.",
                fix="--max-num-batched-tokens 512,1024,2048, or --flag max-num-seqs --values 4,8,16",
            )
        if self.max_num_batched_tokens and self.axes:
            raise Refused("--max-num-batched-tokens is short for --flag and --values: choose one.")
        if self.recipe and not (self.flag or self.axes or self.max_num_batched_tokens):
            raise Refused(
                "--recipe names the recipe whose flag is varied, but no flag was given.",
                fix="Pass --flag, or leave --recipe out to measure the running server.",
            )
        if "mixed" in (self.command, *self.loads) and max(len(self.rates), len(self.concurrency)) > 1:
            raise Refused("the load `mixed` takes one --concurrency or one --rate.", fix="Run it once for each.")
        if self.dataset and self.prompt_tokens:
            raise Refused(
                "--dataset and --prompt-tokens can't be combined: the prompts of a dataset are sent as they are."
            )
        if self.rates and self.concurrency:
            raise Refused("--rate and --concurrency can't be combined: choose one.")

    def _refuse_invalid_values(self) -> None:
        if self.name and not re.fullmatch(r"[\w][\w.-]*", self.name):
            raise Refused(f"--name {self.name} is not a valid folder name.", fix="Letters, digits, dots and dashes.")
        for kind in self.loads:
            if kind not in KINDS:
                raise Refused(f"unknown load {kind!r}.", fix=f"Loads: {', '.join(KINDS)}.")
        numbers_by_option = {
            "concurrency": self.concurrency,
            "rate": self.rates,
            "max-num-batched-tokens": self.max_num_batched_tokens,
        }
        for option, numbers in numbers_by_option.items():
            invalid_number = next((number for number in numbers if not 0 < number < math.inf), None)
            if invalid_number is not None:
                raise Refused(f"--{option} must be above 0, got {invalid_number}.")
        invalid_temperature = next(
            (temperature for temperature in self.temperatures if not 0 <= temperature <= MAX_TEMPERATURE), None
        )
        if invalid_temperature is not None:
            raise Refused(f"--temperature must be between 0 and {MAX_TEMPERATURE:g}, got {invalid_temperature}.")
        counts_by_option = {
            "prompt-tokens": self.prompt_tokens,
            "output-tokens": self.output_tokens,
            "requests": self.requests,
            "long-tokens": self.long_tokens,
            "repeat": self.repeat,
            "depth": self.depth,
            "streams": self.streams,
        }
        for option, count in counts_by_option.items():
            if count < (minimum := int(option == "repeat")):
                raise Refused(f"--{option} must be at least {minimum}, got {count}.")


@dataclass(frozen=True)
class LoadLimits:
    """Limits on the loads, in tokens."""

    #: largest token budget of a step in the arms with chunked prefill; None if unknown
    budget: int | None = None
    #: shortest context of the arms; None if unknown
    context: int | None = None

    @classmethod
    def from_arms(cls, arms: Sequence[EffectiveSettings]) -> LoadLimits:
        """Return the limits across all arms. Arms without chunked prefill do not count toward the budget."""
        budgets = [arm.budget for arm in arms if arm.budget and arm.chunked_prefill is not False]
        contexts = [arm.max_model_len for arm in arms if arm.max_model_len]
        return cls(max(budgets, default=None), min(contexts, default=None))


@dataclass(frozen=True)
class PlannedLoads:
    """The loads of an experiment."""

    #: loads in the order in which they run
    loads: tuple[Load, ...]
    #: sentences about the limits of the loads
    notes: tuple[str, ...] = ()


def plan_loads(options: BenchOptions, limits: LoadLimits, folder: Path) -> PlannedLoads:
    """Return the loads that a command's options ask for.

    Args:
        limits: limits on the loads.
        folder: base of relative paths.
    """
    loads: list[Load] = []
    for kind in options.loads or LOADS_BY_COMMAND[options.command]:
        default_load = replace(DEFAULT_LOADS[kind], seed=options.seed)
        if kind == "depth":
            loads += _depth_loads(options, default_load, limits)
            continue
        loads += (
            _serve_loads(options, default_load, folder) if kind == "serve" else [_with_sizes(options, default_load)]
        )
    notes: list[str] = []
    if any(load.kind in LONG_PROMPT_KINDS for load in loads):
        long_tokens, notes = _choose_long_tokens(options, limits, loads)
        loads = [replace(load, long_tokens=long_tokens) if load.kind in LONG_PROMPT_KINDS else load for load in loads]
    temperatures = options.temperatures or (0.0,)
    fitting_loads = [_fit_to_context(load, limits) for load in loads]
    return PlannedLoads(
        tuple(replace(load, temperature=temperature) for temperature in temperatures for load in fitting_loads),
        tuple(notes),
    )


def _serve_loads(options: BenchOptions, default_load: Load, folder: Path) -> list[Load]:
    arrival_settings: list[dict[str, Any]] = [{"rate": rate} for rate in options.rates] or [
        {"concurrency": streams} for streams in options.concurrency or DEFAULT_CONCURRENCY.get(options.command, (1, 8))
    ]
    sized_load = replace(default_load, prompt_tokens=options.prompt_tokens, output_tokens=options.output_tokens)
    loads = []
    for setting in arrival_settings:
        requests = options.requests or max(16, 4 * int(setting.get("concurrency", 8)))
        loads.append(replace(sized_load, requests=requests, **setting))
    if options.dataset:
        max_requests = max(load.requests for load in loads)
        prompts = tuple(read_prompts(folder / expand_home(options.dataset), max_requests, seed=options.seed))
        loads = [replace(load, prompts=prompts) for load in loads]
    return loads


def _depth_loads(options: BenchOptions, default_load: Load, limits: LoadLimits) -> list[Load]:
    """Return loads with prompts that double in length up to the context, shortest first.

    Raises:
        Refused: the longest prompt does not fit into the server's context.
    """
    load = _with_sizes(options, default_load)
    max_tokens = (
        int((limits.context - load.output_tokens) * (1 - LENGTH_ERROR_SHARE)) - MARGIN_TOKENS
        if limits.context
        else None
    )
    if options.depth and max_tokens is not None and options.depth > max_tokens:
        message = f"a prompt of {options.depth} tokens does not fit a context of {limits.context}."
        raise Refused(message, fix=f"Use --depth {max_tokens} or less.")
    longest_tokens = options.depth or (DEFAULT_DEPTH_TOKENS if max_tokens is None else max(1, max_tokens))
    depths = [longest_tokens]
    while depths[-1] // 2 >= MIN_DEPTH_TOKENS:
        depths.append(depths[-1] // 2)
    streams = options.streams or 1
    return [replace(load, prompt_tokens=depth, concurrency=streams) for depth in reversed(depths)]


def _with_sizes(options: BenchOptions, default_load: Load) -> Load:
    """Return the default load with its sizes replaced with those from the command line."""
    lengths = {"prompt_tokens": options.prompt_tokens, "output_tokens": options.output_tokens}
    changes: dict[str, Any] = {name: value for name, value in lengths.items() if value}
    if options.requests and default_load.kind == "smoke":
        changes["requests"] = options.requests
    if default_load.kind == "mixed":
        changes |= {"concurrency": options.concurrency[0]} if options.concurrency else {}
        changes |= {"rate": options.rates[0], "concurrency": 0} if options.rates else {}
        if options.requests:
            long_count = max(1, options.requests // 5)
            changes |= {"longs": long_count, "shorts": options.requests - long_count}
    return replace(default_load, **changes)


def _choose_long_tokens(options: BenchOptions, limits: LoadLimits, loads: Sequence[Load]) -> tuple[int, list[str]]:
    """Return the length of long prompts, at least MIN_PREFILL_STEPS times the largest budget if that fits, and notes about it."""
    answer_tokens = max(load.output_tokens for load in loads)
    max_tokens = limits.context - answer_tokens - MARGIN_TOKENS if limits.context else None
    if options.long_tokens:
        if max_tokens is not None and options.long_tokens > max_tokens:
            raise Refused(
                f"a prompt of {options.long_tokens} tokens does not fit a context of {limits.context}.",
                fix=f"Use --long-tokens {max_tokens} or less.",
            )
        tokens = options.long_tokens
    else:
        default_tokens = max(LONG_TOKENS, MIN_PREFILL_STEPS * (limits.budget or 0))
        tokens = min(default_tokens, max_tokens) if max_tokens is not None else default_tokens
    if not limits.budget or tokens >= MIN_PREFILL_STEPS * limits.budget:
        return tokens, []
    prompt_description = f"the long prompt of {tokens} tokens"
    if tokens > limits.budget:
        return tokens, [f"{prompt_description} is less than {MIN_PREFILL_STEPS} steps of {limits.budget}"]
    return tokens, [
        f"{prompt_description} fits into one step of {limits.budget}: chunked prefill can't make a difference"
    ]


def _fit_to_context(load: Load, limits: LoadLimits) -> Load:
    """Return the load with its prompt shortened to fit into the context."""
    if limits.context is None or load.prompt_tokens + load.output_tokens + MARGIN_TOKENS <= limits.context:
        return load
    return replace(load, prompt_tokens=max(64, limits.context - load.output_tokens - MARGIN_TOKENS))


def read_prompts(path: Path, count: int, *, seed: int = 1) -> list[tuple[str, int]]:
    """Return up to `count` random pairs of a prompt and the number of tokens in its answer. Raises Refused.

    As in vLLM's own benchmark, only the first turn of a conversation is used, if both sides have 4 to 1024 tokens.
    """
    try:
        text = bounds.read_bytes(path, MAX_PROMPT_FILE_BYTES).decode()
    except bounds.LimitExceeded as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:  # the file is not UTF-8, or its name contains a NUL
        raise Refused(f"{path} can't be read: {error}.") from None
    rows = list(_parse_share_gpt(text, path) if text.lstrip().startswith("[") else _parse_lines(text, path))
    if not rows:
        raise Refused(
            f"{path} contains no usable prompt.",
            fix=f"In ShareGPT's JSON, a prompt and its answer must have {MIN_LENGTH} to {MAX_LENGTH} tokens each.",
        )
    random.Random(seed).shuffle(rows)
    return rows[:count]


def _parse_share_gpt(text: str, path: Path) -> Iterator[tuple[str, int]]:
    try:
        data = bounds.parse_json(text, max_bytes=MAX_PROMPT_FILE_BYTES, max_values=MAX_JSON_VALUES)
    except ValueError as error:
        raise Refused(f"{path} is not JSON: {error}.") from None
    for row in data:
        turns = row.get("conversations") or row.get("conversation") or [] if isinstance(row, dict) else []
        if (
            not isinstance(turns, list)
            or len(turns) < 2
            or _speaker(turns[0]) not in USER_ROLES
            or _speaker(turns[1]) not in ASSISTANT_ROLES
        ):
            continue
        prompt, answer = str(turns[0].get("value") or ""), str(turns[1].get("value") or "")
        token_counts = [len(part) // CHARS_PER_TOKEN for part in (prompt, answer)]
        if all(MIN_LENGTH <= size <= MAX_LENGTH for size in token_counts):
            yield prompt, token_counts[1]


def _speaker(turn: Any) -> str:
    return str(turn.get("from", "")) if isinstance(turn, dict) else ""


def _parse_lines(text: str, path: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = bounds.parse_json(line)
        except ValueError:
            raise Refused("a line is not JSON.", where=f"{path}:{number}") from None
        prompt = row.get("prompt") if isinstance(row, dict) else row
        if not isinstance(prompt, str) or not prompt:
            raise Refused(
                'a line has no "prompt".',
                where=f"{path}:{number}",
                fix='Example: {"prompt": "...", "output_tokens": 128}',
            )
        tokens = next(
            (row[name] for name in TOKEN_KEYS if isinstance(row, dict) and row.get(name)), DEFAULT_ANSWER_TOKENS
        )
        if not isinstance(tokens, int) or tokens < 1:
            raise Refused(f"{tokens!r} is not a number of tokens.", where=f"{path}:{number}")
        yield prompt, tokens
