"""The options of a bench command, and the loads derived from them, including prompts from a file."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.bench.axis import Axis
from sparkwright.engines.advice import Effective
from sparkwright.errors import Refused
from sparkwright.measure.workload import KINDS, LONGEST, SHORTEST, Load
from sparkwright.trust import bounds
from sparkwright.trust.names import below_home
from sparkwright.units import MIB

#: loads by command, as named in --loads
LOADS: Mapping[str, tuple[str, ...]] = {
    "smoke": ("smoke",),
    "serve": ("serve",),
    "ab": ("serve", "hol1", "hol2", "itl"),
    "sweep": ("serve", "hol1"),
    "hol": ("hol1", "hol2"),
    "itl": ("itl",),
    "mixed": ("mixed",),
    "context": ("depth",),
}
#: default concurrency of `serve` by command: a curve, or one stream and several
CONCURRENCY: Mapping[str, tuple[int, ...]] = {"serve": (1, 2, 4, 8), "ab": (1, 8), "sweep": (8,)}
#: minimum number of prefill steps of a long prompt, because with a single step chunked prefill makes no difference
STEPS = 4
LONG_TOKENS = 4096
#: kinds of load with a long prompt
LONG = frozenset(("hol1", "hol2", "itl", "mixed"))
#: relative error in a long prompt's number of tokens, which consists of random words
SLACK = 0.03
#: longest prompt of a ladder if the context is unknown, and the shortest prompt of all ladders
DEPTH_TOKENS, SHORTEST_DEPTH_TOKENS = 32768, 1024
#: margin for the chat template and the estimated number of words
MARGIN_TOKENS = 256
#: maximum temperature, as in OpenAI's API
HOTTEST = 2.0

#: default loads by kind
USUAL: Mapping[str, Load] = {
    "smoke": Load("smoke", requests=3, prompt_tokens=2048, output_tokens=128),
    "serve": Load("serve"),
    "hol1": Load("hol1", streams=3, output_tokens=256, after_s=1.0),
    "hol2": Load("hol2", shorts=3, prompt_tokens=256, output_tokens=32, after_s=0.03),
    "itl": Load("itl", streams=1, output_tokens=512, longs=3, after_s=1.0, every_s=6.0),
    "depth": Load("depth", concurrency=1, requests=1, output_tokens=128),
    "mixed": Load("mixed", longs=20, shorts=80, prompt_tokens=256, output_tokens=64, concurrency=8),
}


@dataclass(frozen=True)
class Order:
    """The options of a bench command, where 0, empty strings and empty tuples mean that an option was not given.

    The arms are `a` and `b`, or one recipe with different values of `flag`, `sizes` or `axes`. Without any of these the running
    server is measured.
    """

    #: name of the command, a key of LOADS
    command: str
    #: recipe of the first arm
    a: str = ""
    #: recipe of the second arm
    b: str = ""
    #: flag that differs between two arms
    flag: str = ""
    recipe: str = ""
    #: values of max-num-batched-tokens
    sizes: tuple[int, ...] = ()
    #: swept flags with their values
    axes: tuple[Axis, ...] = ()
    loads: tuple[str, ...] = ()
    #: numbers of concurrent requests, each of which is a load
    concurrency: tuple[int, ...] = ()
    #: arrivals per second, each of which is a load; they replace the concurrency
    rates: tuple[float, ...] = ()
    #: sampling temperatures to use with each load; empty for greedy sampling
    temperatures: tuple[float, ...] = ()
    #: number of requests and token counts per load
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    long_tokens: int = 0
    #: tokens in the longest prompt of a ladder, and number of concurrent prompts
    depth: int = 0
    streams: int = 0
    #: file of prompts
    dataset: str = ""
    #: number of starts of each arm
    repeat: int = 1
    seed: int = 1
    name: str = ""
    #: begin a new series even if the last one is unfinished
    again: bool = False

    @property
    def has_arms(self) -> bool:
        """True if the experiment starts containers."""
        return bool(self.a or self.flag or self.sizes or self.axes)

    def checked(self) -> Order:
        """Return the order unchanged. Raises Refused if its options contradict each other."""
        if bool(self.a) != bool(self.b):
            raise Refused("two arms take two recipes: -a and -b.", fix="Or one recipe and --flag chunked-prefill.")
        if self.a and (self.flag or self.axes):
            raise Refused("-a and -b name two recipes, --flag changes one: choose one.")
        if self.command == "ab" and not (self.a or self.flag or self.axes):
            raise Refused("nothing to compare was named: pass -a RECIPE -b RECIPE, or --flag chunked-prefill.")
        if self.command != "sweep" and self.axes and [len(axis.values) for axis in self.axes] != [2]:
            raise Refused("two arms take one flag and two values.", fix="invoke bench.sweep measures more of them.")
        if self.command == "sweep" and not (self.sizes or self.axes):
            raise Refused(
                "the sizes are missing, or a flag and its values.",
                fix="--max-num-batched-tokens 512,1024,2048, or --flag max-num-seqs --values 4,8,16",
            )
        if self.sizes and self.axes:
            raise Refused("--max-num-batched-tokens is short for --flag and --values: choose one.")
        if self.rates and self.concurrency:
            raise Refused("--rate and --concurrency are two ways to send: choose one.")
        if self.name and not re.fullmatch(r"[\w][\w.-]*", self.name):
            raise Refused(f"--name {self.name} is not a valid folder name.", fix="Letters, digits, dots and dashes.")
        for kind in self.loads:
            if kind not in KINDS:
                raise Refused(f"no load {kind!r}.", fix=f"There are: {', '.join(KINDS)}.")
        lists = {"concurrency": self.concurrency, "rate": self.rates, "max-num-batched-tokens": self.sizes}
        counts = {"prompt-tokens": self.prompt_tokens, "output-tokens": self.output_tokens}
        counts |= {"requests": self.requests, "long-tokens": self.long_tokens, "repeat": self.repeat}
        counts |= {"depth": self.depth, "streams": self.streams}
        for option, numbers in lists.items():
            wrong = next((number for number in numbers if not 0 < number < math.inf), None)
            if wrong is not None:
                raise Refused(f"--{option} must be above 0, got {wrong}.")
        hot = next((heat for heat in self.temperatures if not 0 <= heat <= HOTTEST), None)
        if hot is not None:
            raise Refused(f"--temperature must be between 0 and {HOTTEST:g}, got {hot}.")
        for option, count in counts.items():
            if count < (least := int(option == "repeat")):
                raise Refused(f"--{option} must be at least {least}, got {count}.")
        return self


@dataclass(frozen=True)
class Room:
    """Limits on the loads, in tokens."""

    #: largest token budget of a step in the arms with chunked prefill; None if unknown
    budget: int | None = None
    #: shortest context of the arms; None if unknown
    length: int | None = None

    @classmethod
    def of(cls, arms: Sequence[Effective]) -> Room:
        """Return the limits over all arms. Arms without chunked prefill do not count for the budget."""
        budgets = [arm.budget for arm in arms if arm.budget and arm.chunked_prefill is not False]
        lengths = [arm.max_model_len for arm in arms if arm.max_model_len]
        return cls(max(budgets, default=None), min(lengths, default=None))


@dataclass(frozen=True)
class Planned:
    """The loads of an experiment."""

    #: loads in the order in which they run
    loads: tuple[Load, ...]
    #: sentences about limits of the loads
    notes: tuple[str, ...] = ()


def planned(order: Order, room: Room, folder: Path) -> Planned:
    """Return the loads for a command's options.

    Args:
        order: the command's options.
        room: limits on the loads.
        folder: base of relative file names.
    """
    found: list[Load] = []
    for kind in order.loads or LOADS[order.command]:
        usual = replace(USUAL[kind], seed=order.seed)
        if kind == "depth":
            found += _ladder(order, usual, room)
            continue
        found += _serving(order, usual, folder) if kind == "serve" else [_sized(order, usual)]
    notes: list[str] = []
    if any(load.kind in LONG for load in found):
        long_tokens, notes = _long_tokens(order, room, found)
        found = [replace(load, long_tokens=long_tokens) if load.kind in LONG else load for load in found]
    heats = order.temperatures or (0.0,)
    fitting = [_fitting(load, room) for load in found]
    return Planned(tuple(replace(load, temperature=heat) for heat in heats for load in fitting), tuple(notes))


def _serving(order: Order, usual: Load, folder: Path) -> list[Load]:
    shape: dict[str, Any] = {"prompt_tokens": order.prompt_tokens, "output_tokens": order.output_tokens}
    ways: list[dict[str, Any]] = [{"rate": rate} for rate in order.rates] or [
        {"concurrency": streams} for streams in order.concurrency or CONCURRENCY.get(order.command, (1, 8))
    ]
    loads = []
    for way in ways:
        requests = order.requests or max(16, 4 * int(way.get("concurrency", 8)))
        loads.append(replace(usual, requests=requests, **shape, **way))
    if order.dataset:
        most = max(load.requests for load in loads)
        prompts = tuple(prompts_of(folder / below_home(order.dataset), most, seed=order.seed))
        loads = [replace(load, prompts=prompts) for load in loads]
    return loads


def _ladder(order: Order, usual: Load, room: Room) -> list[Load]:
    """Return loads with prompts that double in length up to the context, shortest first.

    Raises:
        Refused: the longest prompt does not fit into the server's context.
    """
    load = _sized(order, usual)
    most = int((room.length - load.output_tokens) * (1 - SLACK)) - MARGIN_TOKENS if room.length else None
    if order.depth and most is not None and order.depth > most:
        message = f"a prompt of {order.depth} tokens does not fit a context of {room.length}."
        raise Refused(message, fix=f"--depth {most} does.")
    longest = order.depth or (DEPTH_TOKENS if most is None else max(1, most))
    depths = [longest]
    while depths[-1] // 2 >= SHORTEST_DEPTH_TOKENS:
        depths.append(depths[-1] // 2)
    streams = order.streams or 1
    return [replace(load, prompt_tokens=depth, concurrency=streams) for depth in reversed(depths)]


def _sized(order: Order, usual: Load) -> Load:
    """Return a load with the sizes from the command line, and defaults for the rest."""
    given = {"prompt_tokens": order.prompt_tokens, "output_tokens": order.output_tokens}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    if order.requests and usual.kind == "smoke":
        changes["requests"] = order.requests
    if usual.kind == "mixed":
        changes |= {"concurrency": order.concurrency[0]} if order.concurrency else {}
        changes |= {"rate": order.rates[0], "concurrency": 0} if order.rates else {}
        if order.requests:
            longs = max(1, order.requests // 5)
            changes |= {"longs": longs, "shorts": order.requests - longs}
    return replace(usual, **changes)


def _long_tokens(order: Order, room: Room, loads: Sequence[Load]) -> tuple[int, list[str]]:
    """Return the length of a long prompt and notes. It is at least STEPS times the largest budget if the context allows it."""
    answers = max(load.output_tokens for load in loads)
    most = room.length - answers - MARGIN_TOKENS if room.length else None
    if order.long_tokens:
        if most is not None and order.long_tokens > most:
            raise Refused(
                f"a prompt of {order.long_tokens} tokens does not fit a context of {room.length}.",
                fix=f"--long-tokens {most} does.",
            )
        tokens = order.long_tokens
    else:
        wanted = max(LONG_TOKENS, STEPS * (room.budget or 0))
        tokens = min(wanted, most) if most is not None else wanted
    if not room.budget or tokens >= STEPS * room.budget:
        return tokens, []
    prompt = f"the long prompt of {tokens} tokens"
    if tokens > room.budget:
        return tokens, [f"{prompt} is less than {STEPS} steps of {room.budget}"]
    return tokens, [f"{prompt} fits one step of {room.budget}: whether prompts are cut can make no difference"]


def _fitting(load: Load, room: Room) -> Load:
    """Return the load with its prompt shortened to fit into the context."""
    if room.length is None or load.prompt_tokens + load.output_tokens + MARGIN_TOKENS <= room.length:
        return load
    return replace(load, prompt_tokens=max(64, room.length - load.output_tokens - MARGIN_TOKENS))


# Prompts from a file: ShareGPT's published JSON, or JSON lines that each have a `prompt`.
#
# The laptop has no tokenizer, so the tokens of answers are estimated from their characters. The server counts the real number.

CHARS_PER_TOKEN = 4
ANSWER_TOKENS = 128
#: limits for a file; ShareGPT has 650 MB and about 4 million JSON values
MOST_BYTES, MOST_PARTS = 2048 * MIB, 40_000_000
#: names of the user and the assistant in published data sets
ASKS, ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
TOKENS = ("output_tokens", "max_tokens", "completion_tokens")


def prompts_of(path: Path, count: int, *, seed: int = 1) -> list[tuple[str, int]]:
    """Return up to `count` random pairs of a prompt and the number of tokens of its answer. Raises Refused.

    As in vLLM's own benchmark, only the first turn of a conversation is used, if both sides have 4 to 1024 tokens.
    """
    try:
        text = bounds.bytes_of(path, MOST_BYTES).decode()
    except bounds.TooMuch as error:
        raise Refused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:  # the file is not UTF-8, or its name contains a NUL
        raise Refused(f"{path} can't be read: {error}.") from None
    rows = list(_share_gpt(text, path) if text.lstrip().startswith("[") else _lines(text, path))
    if not rows:
        raise Refused(
            f"{path} holds no prompt that can be used.", fix=f"One turn of {SHORTEST} to {LONGEST} tokens each."
        )
    random.Random(seed).shuffle(rows)
    return rows[:count]


def _share_gpt(text: str, path: Path) -> Iterator[tuple[str, int]]:
    try:
        data = bounds.json_of(text, most_bytes=MOST_BYTES, most_parts=MOST_PARTS)
    except ValueError as error:
        raise Refused(f"{path} is not JSON: {error}.") from None
    for row in data:
        turns = row.get("conversations") or row.get("conversation") or [] if isinstance(row, dict) else []
        if not isinstance(turns, list) or len(turns) < 2 or _who(turns[0]) not in ASKS or _who(turns[1]) not in ANSWERS:
            continue
        prompt, answer = str(turns[0].get("value") or ""), str(turns[1].get("value") or "")
        sizes = [len(part) // CHARS_PER_TOKEN for part in (prompt, answer)]
        if all(SHORTEST <= size <= LONGEST for size in sizes):
            yield prompt, sizes[1]


def _who(turn: Any) -> str:
    return str(turn.get("from", "")) if isinstance(turn, dict) else ""


def _lines(text: str, path: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = bounds.json_of(line)
        except ValueError:
            raise Refused("a line is not JSON.", where=f"{path}:{number}") from None
        prompt = row.get("prompt") if isinstance(row, dict) else row
        if not isinstance(prompt, str) or not prompt:
            raise Refused(
                'a line has no "prompt".', where=f"{path}:{number}", fix='As {"prompt": "...", "output_tokens": 128}.'
            )
        tokens = next((row[name] for name in TOKENS if isinstance(row, dict) and row.get(name)), ANSWER_TOKENS)
        if not isinstance(tokens, int) or tokens < 1:
            raise Refused(f"{tokens!r} is not a number of tokens.", where=f"{path}:{number}")
        yield prompt, tokens
