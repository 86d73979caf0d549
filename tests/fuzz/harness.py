"""Damages real examples at random and feeds them to a reader, which must return or refuse with a sentence."""

import json
import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sparkwright.errors import SparkwrightError

ROUNDS = int(os.environ.get("SPARKWRIGHT_FUZZ", "200"))
SEED = int(os.environ.get("SPARKWRIGHT_FUZZ_SEED", "12"))
#: limits of CPU time and memory growth for one case, far above what a valid example of that size needs
CPU_S, GROWTH_KIB = 2.0, 256 * 1024

#: values that break naive readers: markup, escapes, paths, numbers out of range, other types
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1e308, float("nan"), 10**10, 10**400, "", " ", "[/red]", "{{ 7*7 }}", "\x1b]52;c;aGk=\x07",
    "../../.ssh/authorized_keys", "/etc/passwd", "a\nb", "\x00", "\ud800", "💥" * 50, "a" * 100_000, "-1", "0x10", "1e9",
    "sha256:" + "0" * 64, [], {}, [[]], [{}], {"": ""}, ["a"] * 2000, "$(id)", "; id", "%s%n", "٣", "\u202egnp.exe",
)  # fmt: skip


def damaged_texts(seeds: Sequence[bytes], rounds: int = ROUNDS) -> Iterator[bytes]:
    """Yield the seeds unchanged, then damaged: bytes replaced, cut, repeated, or spliced with another seed or a nasty value."""
    yield from seeds
    rng = random.Random(SEED)
    for _ in range(rounds):
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            start = rng.randrange(len(data) + 1)
            end = min(len(data), start + rng.choice((0, 1, 4, 40, 400)))
            data = data[:start] + _build_replacement(data[start:end], seeds, rng) + data[end:]
        yield data


def damaged_values(seeds: Sequence[Any], rounds: int = ROUNDS) -> Iterator[Any]:
    """Yield JSON values unchanged, then with some of their parts replaced, removed or renamed."""
    yield from seeds
    rng = random.Random(SEED)
    for _ in range(rounds):
        value = json.loads(json.dumps(rng.choice(seeds)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = _damage(value, rng)
        yield value


def feed(read: Callable[[Any], object], cases: Iterator[Any], refuses: tuple[type[BaseException], ...] = ()) -> None:
    """Pass each case to the reader, which may raise a SparkwrightError or one of `refuses`.

    Raises AssertionError with the case if the reader raised another error, or took too much time or memory.
    """
    refusals: tuple[type[BaseException], ...] = (SparkwrightError, *refuses)
    for number, case in enumerate(cases):
        before, began = _rss_kib(), time.process_time()
        try:
            read(case)
        except refusals as error:
            assert str(error).strip(), f"refused without a message: {_describe_case(number, case)}"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{_describe_case(number, case)}") from error
        took = time.process_time() - began
        assert took < CPU_S, f"{took:.1f} s of CPU time: {_describe_case(number, case)}"
        growth_kib = _rss_kib() - before
        assert growth_kib < GROWTH_KIB, f"{growth_kib // 1024} MiB more: {_describe_case(number, case)}"


def feed_texts(
    read: Callable[[str], object], seeds: Sequence[bytes], refuses: tuple[type[BaseException], ...] = ()
) -> None:
    """Pass damaged texts to a reader of str, with invalid UTF-8 replaced."""
    feed(lambda data: read(data.decode(errors="replace")), damaged_texts(seeds), refuses)


def feed_json(
    read: Callable[[bytes], object], seeds: Sequence[Any], refuses: tuple[type[BaseException], ...] = ()
) -> None:
    """Pass JSON with damaged values to a reader of bytes, then JSON with damaged bytes."""
    feed(lambda value: read(json.dumps(value).encode()), damaged_values(seeds), refuses)
    feed(read, damaged_texts([json.dumps(seed).encode() for seed in seeds]), refuses)


def via_file(path: Path, read: Callable[[], object]) -> Callable[[bytes], None]:
    """Return a reader that writes its case to a file first."""

    def write_and_read(data: bytes) -> None:
        path.write_bytes(data)
        read()

    return write_and_read


def _describe_case(number: int, case: Any) -> str:
    return f"case {number} of seed {SEED}: {case!r:.1500}"


def _build_replacement(cut: bytes, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    match rng.randrange(6):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.choice((1, 4, 60)))
        case 2:
            return str(rng.choice(NASTY)).encode(errors="surrogatepass")
        case 3:
            return cut * rng.choice((2, 50))
        case 4:
            return rng.choice(seeds)[:400]
        case _:
            return rng.choice((b"[", b"{", b'"', b"\n", b": ", b"- ")) * rng.choice((1, 3, 2000))


def _damage(value: Any, rng: random.Random) -> Any:
    """Return the value with one part of it replaced, removed or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.1:
            return {**value, str(rng.choice(NASTY))[:200]: value[key]}
        return {**value, key: _damage(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        index = rng.randrange(len(value))
        return [*value[:index], _damage(value[index], rng), *value[index + 1 :]]
    if isinstance(value, str) and rng.random() < 0.4:
        index = rng.randrange(len(value) + 1)
        return value[:index] + str(rng.choice(NASTY)) + value[index:]
    return rng.choice(NASTY)


def _rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
