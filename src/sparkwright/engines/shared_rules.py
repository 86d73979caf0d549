"""Findings shared by the rules of several engines. Each engine's rules decide when they apply, and provide flags, tags and sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Fix, Severity
from sparkwright.engines.http import OPEN_SERVER_FIX, OPEN_SERVER_PROBLEM
from sparkwright.engines.options import (
    Existence,
    OptionHistory,
    describe_owner,
    format_counterparts,
    suggest_fix,
    translate_flag,
)
from sparkwright.trust.image_name import without_digest

DOCKER_SOURCE = "docker's documentation"
LOOPBACK_PREFIXES = ("127.", "localhost", "::1", "[::1]")


@dataclass(frozen=True)
class OptionCase:
    """Input of the rules for an engine whose options are known for each release."""

    #: the request, with flags by canonical name
    request: ServerRequest
    #: the engine's release, in the spelling of `HISTORY`; None if unknown
    release: str | None = None
    #: the options in the image's help output, which take precedence over `HISTORY`; empty if the image has not been run
    listed_options: Collection[str] = ()

    #: name of the engine's folder
    ENGINE: ClassVar[str]
    #: the engine's name in a sentence, without its release
    TITLE: ClassVar[str]
    HISTORY: ClassVar[OptionHistory]

    @property
    def engine(self) -> str:
        """The engine's name in a sentence, with its release if known."""
        return f"{self.TITLE} {self.release}" if self.release else self.TITLE

    def flag(self, name: str) -> Any:
        """Return the value of a flag; None if it is not set."""
        return self.request.flags.get(name)

    def listed_names(self, name: str) -> tuple[str, ...]:
        """Return the names by which an image's help may list an option."""
        return (name,)

    def known_options(self) -> Iterable[str]:
        """Return the option names of all releases."""
        return {**dict.fromkeys(self.HISTORY.newest_names()), **self.HISTORY.removed_kinds()}

    def find_existence(self, name: str) -> Existence:
        """Return whether the engine has an option, according to its help output or else the table of releases."""
        existence = self.HISTORY.existence(name, self.release)
        if not self.listed_options:
            return existence
        is_listed = any(listed_name in self.listed_options for listed_name in self.listed_names(name))
        return Existence(is_listed, existence.reason if existence.exists is False else "its own help does not list it")

    @property
    def options(self) -> Collection[str]:
        """Names of the engine's options; if the release is unknown, of all options that it may have."""
        return self.listed_options or [
            name for name in self.known_options() if self.find_existence(name).exists is not False
        ]


def unknown_flags(case: OptionCase, source: str, *, own_options: Collection[str] = ()) -> Iterator[Finding]:
    """Yield a finding for each unknown flag. own_options: this engine's options, which are not attributed to another engine."""
    for name, flag_value in case.request.flags.items():
        existence = case.find_existence(name)
        if flag_value is None or existence.exists:
            continue
        owner = "" if name in own_options else describe_owner(case.ENGINE, name)
        severity: Severity = "error" if existence.exists is False or owner else "warning"
        outcome = "refuses" if severity == "error" else "may refuse"
        message = f"{owner or f'{name}: {existence.reason}'}; {case.engine} {outcome} to start."
        if owner:
            fix = _suggest_counterpart(case, name, flag_value)
        else:
            fix = suggest_fix(case.HISTORY, name, flag_value, case.release, case.options)
        yield Finding(severity, message, (fix,), source, name)


def _suggest_counterpart(case: OptionCase, name: str, flag_value: Any) -> Fix:
    """Return a fix that replaces another engine's flag with this engine's."""
    if counterpart := translate_flag(case.ENGINE, name):
        return Fix(f"write {counterpart}", {name: None, counterpart: flag_value})
    counterparts = format_counterparts(case.ENGINE, name)
    return Fix(f"use {counterparts} instead" if counterparts else "remove it", {name: None})


def newer_release(engine: str, newest: str, kind: str = "release", consequence: str = "") -> Iterator[Finding]:
    """Yield a finding for an engine newer than all known releases. consequence: a clause about a further consequence."""
    message = (
        f"{engine} is newer than {newest}, the newest {kind} known to this version of sparkwright: "
        f"its options are checked against the image's help{consequence}."
    )
    fix = Fix("update sparkwright, if there is a newer version")
    yield Finding("info", message, (fix,), f"sparkwright's tables up to {newest}")


def moving_tag(image: str, suggested_tag: str, source: str) -> Iterator[Finding]:
    """Yield a finding for a tag that may be moved to another image. suggested_tag: the tag to use."""
    name = without_digest(image)
    name += "" if ":" in name.rpartition("/")[2] else ":latest"  # Docker's default
    message = f"{name} is a moving tag: spark.lock pins its current digest, which the registry may delete."
    yield Finding("info", message, (Fix(f"use {suggested_tag}"),), source)


def key_in_arguments(name: str, fix: Fix, source: str, flag: str = "") -> Iterator[Finding]:
    """Yield a finding for an API key in the arguments. flag: the recipe's flag with the arguments, by default `name`."""
    message = f"{name} is in the arguments, where `ps` and `docker inspect` show it."
    yield Finding("error", message, (fix,), source, flag or name)


def open_to_network(request: ServerRequest, *, has_key: bool = True) -> Iterator[Finding]:
    """Yield a finding if anyone on the network can use the server. has_key: the engine supports a key."""
    if request.open_to_network:
        fix = OPEN_SERVER_FIX if has_key else OPEN_SERVER_FIX.replace("`server_key` or ", "")
        yield Finding("warning", f"{OPEN_SERVER_PROBLEM}.", (Fix(fix),), DOCKER_SOURCE, "publish")


def unreachable_host(case: OptionCase, flag: str, local_suffixes: Collection[str] = ()) -> Iterator[Finding]:
    """Yield a finding if published ports cannot reach the server's address. local_suffixes: suffixes of other unreachable addresses."""
    host = str(case.flag(flag) or "")
    if host.startswith(LOOPBACK_PREFIXES) or host.endswith(tuple(local_suffixes)):
        message = f"{flag} {host} is only reachable inside the container."
        yield Finding("error", message, (Fix("remove it", {flag: None}),), DOCKER_SOURCE, flag)


def locking_flags(case: OptionCase, names: Iterable[str], connection: str, source: str) -> Iterator[Finding]:
    """Yield a finding for each flag that locks out sparkwright's checks. connection: how the checks connect, such as "over plain HTTP"."""
    for name in names:
        if case.flag(name):
            message = f"{name} locks out sparkwright's checks, which connect {connection}."
            yield Finding("error", message, (Fix("remove it", {name: None}),), source, name)


def wrong_published_port(request: ServerRequest, server_port: int, flag: str) -> Iterator[Finding]:
    """Yield a finding if the first published port is not the server's. flag: the flag for the server's port."""
    if request.published_port in (None, server_port):
        return
    target = f"maps to {request.published_port}" if request.published_port else "is not a TCP port"
    message = f"the server listens on port {server_port} in its container, but the first published port {target}."
    fix = Fix(f"make the first entry of `container.ports` end in :{server_port}")
    yield Finding("error", message, (fix,), DOCKER_SOURCE, flag if request.flags.get(flag) is not None else "publish")
