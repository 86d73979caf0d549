"""Modules that check an engine by its own reports: its log, its settings and its GPU use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sparkwright.engines.engine import DEFAULT_ENGINE, Engine
from sparkwright.engines.log import resolution
from sparkwright.engines.log.reader import EngineState, LogReader, strip_prefix
from sparkwright.engines.log.resolution import describe_kernel_changes, find_mismatches, format_kernel_path, kernel_path
from sparkwright.engines.log.state import FIELDS, SETTINGS
from sparkwright.engines.log.text import iter_lines, strip_terminal_codes
from sparkwright.errors import Exit, Failed, Inconclusive, Refused
from sparkwright.host import gpu_processes
from sparkwright.host.containers import container_labels, container_options, containers, log_reader, server_key
from sparkwright.host.gpu_processes import GpuUse
from sparkwright.host.module import Context, Module
from sparkwright.host.records import baselines, verified_states
from sparkwright.host.records.baselines import Baselines, build_key
from sparkwright.measure import http_probe
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.bounds import check_pattern
from sparkwright.trust.image_name import digest_of
from sparkwright.visible import one_line

MAX_WARNINGS = 4

Verdict = Literal["proved", "disproved", "not found"]
MAX_EVIDENCE_CHARS = 300
#: the longest known line, a config dump, is 6 kB long
MAX_SEARCHED_CHARS = 1 << 13
SWITCH_NAMES = {True: "enabled", False: "disabled", None: "unknown"}


class EngineLog(Module["EngineLog.Args"]):
    """Read the engine's settings and state from the log of a container's last start, each with its log line.

    Changes nothing. The container need not be running.

    Returns: state (version, chunked_prefill ..., null if unknown, and evidence), known (the log contains a start), text (with
    `tail`: the last lines, without colours), cut (which part was read, if the log is too long), engine (its name).

    Inconclusive if there is no such container. Fails if its logging driver keeps no readable log.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        tail: int = arg("number of lines to return from the end of the log, as text", default=0)

    def run(self, args: Args, context: Context) -> Result:
        client = context.docker()
        container = containers.inspect(client, args.name)
        if container is None:
            raise Inconclusive(f"there is no container {args.name}.")
        engine = container_labels.engine_of_container(container)
        reader = LogReader(engine.log)
        log = log_reader.StartLog(client, args.name)
        for chunk in log:
            reader.push(chunk)
        state = reader.finish()
        last_lines = log_reader.read_last_lines(client, args.name, args.tail) if args.tail else []
        text = strip_terminal_codes("\n".join(last_lines))
        msg = state.failure.value or (state.stage if state.known else "no engine start in the log")
        data = {
            "state": state.to_json(),
            "known": state.known,
            "text": text,
            "cut": log.truncation,
            "engine": engine.name,
        }
        return Result(msg=f"{msg}; {log.truncation}" if log.truncation else msg, data=data)


class EngineConfig(Module["EngineConfig.Args"]):
    """Report the effective settings of an engine, and compare them with those of another start.

    The settings come from the config dump in its log, or from other lines if the engine prints no dump. With `against` the
    differences are reported. If the dump contains all flags in `changed`, equal dumps prove that the flags have no effect;
    otherwise nothing is proved.

    Returns: arm, settings (by name, as printed), state (values from the log), verdict (differs, same or not shown; ""
    without `against`), same (whether verdict is same), differs (both values of each setting, by name).

    Inconclusive if the log contains no settings.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        against: dict[str, Any] | None = arg("settings of another start", default=None)
        changed: list[str] = arg("flags in which the two commands differ", default_factory=list)
        series: str = arg("the experiment to store the result in; empty: not stored", default="")
        key: str = arg("the name to store the result under", default="")
        arm: str = arg("name of the arm in the experiment", default="")

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="known after the start", data={"same": False})
        engine = container_labels.engine_by_name(context.docker(), args.name)
        reader = LogReader(engine.log)
        settings: Mapping[str, str] = {}
        for line in iter_lines(log_reader.StartLog(context.docker(), args.name)):
            if reader.feed(line):
                settings = {}
            settings = engine.log.parse_settings(line) or settings
        state = reader.finish()
        settings = settings or settings_of_log(state, engine)
        if not settings:
            raise Inconclusive(f"no config dump in the log of {args.name}: its settings are unknown.")
        data: dict[str, Any] = {"arm": args.arm, "settings": dict(settings), "state": readings_of_log(state)}
        if args.series:
            baselines.write_cell(context.state, args.series, args.key, data)
        verdict = resolution.compare_dumps(args.against, dict(settings), args.changed, engine)
        return Result(msg=_describe_prefill_and_caching(state, engine), data={**data, **verdict})


def settings_of_log(state: EngineState, engine: Engine) -> dict[str, str]:
    """Return the settings from other log lines, for an engine without a config dump; empty for vLLM, which prints one."""
    if engine.name == DEFAULT_ENGINE:
        return {}
    return {
        name: str(state.value(name)) for name in (*SETTINGS, *state.extra_readings) if state.value(name) is not None
    }


def readings_of_log(state: EngineState) -> dict[str, Any]:
    """Return the known settings from the engine's log, with its first warnings and some of the evidence."""
    document = state.to_json()
    values = {name: document[name] for name in (*FIELDS, *state.extra_readings) if document[name] is not None}
    evidence = {
        name: line for name, line in document["evidence"].items() if name in ("chunked_prefill", "prefix_caching")
    }
    return {**values, "warnings": document["warnings"][:MAX_WARNINGS], "evidence": evidence}


def _describe_prefill_and_caching(state: EngineState, engine: Engine) -> str:
    switch_words = {True: "on", False: "off", None: "unknown"}
    chunked_prefill, prefix_caching = (
        switch_words[state.value("chunked_prefill")],
        switch_words[state.value("prefix_caching")],
    )
    title = f"{engine.title} {state.value('version') or ''}".rstrip()
    return f"{title}: chunked prefill {chunked_prefill}, prefix caching {prefix_caching} (engine log)"


class GpuUsed(Module["GpuUsed.Args"]):
    """Check that the server uses the GPU, because a CPU-only image serves at a fraction of the speed.

    The evidence is a compute process of its container in nvidia-smi, or else the line of the engine's log that names the
    device of its buffers. Without either, the check of a container that requests a GPU fails. If nvidia-smi cannot be run
    and the log has no such line, the result is unknown: the run continues and exits with code 4.

    Returns: verdict (gpu, no gpu, unknown, not asked for), processes (pid, name, bytes), evidence.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        gpus: str = arg("the GPUs that the recipe requests; empty: none, not checked", default="all")

    def run(self, args: Args, context: Context) -> Result:
        if not args.gpus:
            data = {"verdict": "not asked for", "processes": []}
            return Result(msg="not checked: the recipe requests no GPU", data=data)
        if not containers.is_running(context.docker(), args.name):
            raise Failed(f"container {args.name} is no longer running.")
        return evaluate_gpu_use(gpu_processes.inspect(args.name, context))


def evaluate_gpu_use(gpu_use: GpuUse) -> Result:
    """Return the result for an observed use of the GPU. Pure."""
    data: dict[str, Any] = {
        "verdict": gpu_use.verdict,
        "processes": [asdict(process) for process in gpu_use.own_processes],
    }
    if gpu_use.own_processes:
        return Result(msg=f"uses the GPU: {gpu_use.reason}", data=data)
    data["evidence"] = gpu_use.evidence
    if gpu_use.verdict == "gpu":
        return Result(msg=f"uses the GPU according to its own log: {gpu_use.reason}", data=data)
    if gpu_use.verdict == "unknown":
        msg = f"unknown whether the server uses the GPU: {gpu_use.reason}."
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data=data)
    reason = f"; {gpu_use.reason}" if gpu_use.device_lines.cpu_line else f": {gpu_use.reason}"
    return Result(failed=True, msg=f"the server does not use the GPU{reason}.", fix=gpu_processes.FIX, data=data)


@dataclass(frozen=True, slots=True)
class Check:
    """An expectation with its verdict, and the log line that is the evidence."""

    check: str
    verdict: Verdict
    evidence: str


class VerifyLogs(Module["VerifyLogs.Args"]):
    """Check the recipe's expectations against the log of the engine's last start and the server's own settings.

    Settings come from the server (llama.cpp's /props) or from the config dump in the log, not from the requested flags. A
    flag of the running command that the engine resolved differently is disproved. So is a kernel path (attention and MoE
    backends, linear kernels, CUDA graphs, compilation) that differs from the baseline's. Each check is proved, disproved or
    not found. A missing line proves nothing, so a check that is not found fails unless log_unknown allows it. A forbidden
    pattern without a match is proved only if the log contains a start of the engine.

    Returns: state (version, chunked_prefill, prefix_caching, kv_cache_tokens ..., null if unknown), kernels (names in the
    log, by kind), mismatches (sentences), checks (check, verdict, evidence), version, cut (which part was read, if the log is
    too long; otherwise empty), verdict (unknown if nothing was checked and the log has no settings).
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        note: str = arg("the reason why chunked prefill is on although the recipe disables it", default="")
        chunked_prefill: Literal["any", "enabled", "disabled"] = arg("the expected state", default="any")
        expect_log: list[str] = arg("regular expressions; each must match a line", default_factory=list)
        forbid_log: list[str] = arg("regular expressions; none may match a line", default_factory=list)
        log_unknown: Literal["fail", "pass"] = arg("how to treat a check that is not found", default="fail")
        baseline_key: dict[str, Any] = arg(
            "identifies the baseline to compare the kernel path with", default_factory=dict
        )
        verified_before: Literal["fail", "report"] = arg(
            "how to treat mismatches if the same image and command were verified before", default="fail"
        )

    def run(self, args: Args, context: Context) -> Result:
        container = containers.inspect(context.docker(), args.name)
        engine = container_labels.engine_of_container(container)
        reader, search = LogReader(engine.log), PatternSearch([*args.expect_log, *args.forbid_log])
        settings: Mapping[str, str] = {}
        log = log_reader.StartLog(context.docker(), args.name)
        for line in iter_lines(log):
            if reader.feed(line):
                search.reset()
                settings = {}
            settings = engine.log.parse_settings(line) or settings
            search.feed(line)
        state = reader.finish()
        add_server_settings(state, _query_settings(args.name, engine, context), engine.http.settings_path)
        kernels = kernel_path(state, engine.log)
        differences = [
            *_check_flags(container, state, settings, engine),
            *_check_kernels(args, kernels, engine, context),
        ]
        report_only = args.verified_before == "report" and _was_verified(container, context)
        checks = [
            *find_unmet_requests(state, engine),
            *evaluate_checks(args, state, search.matches, log.truncation),
            *([] if report_only else differences),
        ]
        if checks and kernels:
            checks.append(Check("kernels", "proved", format_kernel_path(kernels)))
        data = {"state": state.to_json(), "checks": [asdict(check) for check in checks], "kernels": kernels}
        data["mismatches"] = [check.check for check in differences]
        data |= {"version": state.value("version"), "cut": log.truncation}
        failed_checks = [check for check in checks if check.verdict in failing_verdicts(args.log_unknown)]
        if failed_checks:
            message = _join_parts(*(f"{check.check}: {check.verdict}" for check in failed_checks), log.truncation)
            data["evidence"] = [check.evidence for check in failed_checks]
            return Result(failed=True, msg=f"{message}.", data=data)
        if not checks and all(state.value(name) is None for name in SETTINGS):
            data["verdict"] = "unknown"
        unresolved_checks = [f"{check.check}: {check.verdict}" for check in checks if check.verdict == "not found"]
        reported_differences = [f"as verified before: {check.check}" for check in differences if report_only]
        message = _join_parts(
            _describe_log(state, args.note),
            format_kernel_path(kernels),
            *reported_differences,
            *unresolved_checks,
            log.truncation,
        )
        return Result(msg=message, data=data)


def add_server_settings(state: EngineState, settings: Mapping[str, Any], path: str) -> None:
    """Replace settings from the log with the settings that the server reports."""
    for name, value in settings.items():
        if name in SETTINGS:
            state.record(name, value, f"GET {path}: {name} {value}")


def _query_settings(name: str, engine: Engine, context: Context) -> Mapping[str, Any]:
    """Return the settings that the server reports; empty if its engine has no endpoint for them."""
    container = containers.inspect(context.docker(), name) if engine.http.settings_path else None
    url = containers.url_of(container) if container else ""
    if not url or container is None:
        return {}
    key = server_key.read_container_key(context.state, container)
    return engine.http.parse_settings(http_probe.send_request(url, engine.http.settings_path, api_key=key).json())


class PatternSearch:
    """Finds the first line that matches each pattern.

    Raises Refused for a pattern that is invalid, or that could take very long because of backtracking.
    """

    def __init__(self, patterns: list[str]) -> None:
        #: first matching line of each pattern
        self.matches: dict[str, str] = {}
        for pattern in patterns:
            if reason := check_pattern(pattern):
                raise Refused(f"'{one_line(pattern, max_chars=MAX_EVIDENCE_CHARS)}' {reason}.")
        self._compiled_patterns = {pattern: re.compile(pattern) for pattern in patterns}
        self._unmatched_patterns = dict(self._compiled_patterns)

    def feed(self, line: str) -> None:
        line = line[:MAX_SEARCHED_CHARS]
        for text in [text for text, pattern in self._unmatched_patterns.items() if pattern.search(line)]:
            self.matches[text] = line[:MAX_EVIDENCE_CHARS]
            del self._unmatched_patterns[text]

    def reset(self) -> None:
        """Discard all matches, because the log of a new start begins."""
        self.matches.clear()
        self._unmatched_patterns = dict(self._compiled_patterns)


def failing_verdicts(log_unknown: str) -> tuple[Verdict, ...]:
    """Return the verdicts that count as failures."""
    return ("disproved",) if log_unknown == "pass" else ("disproved", "not found")


def evaluate_checks(
    args: VerifyLogs.Args, state: EngineState, matches: dict[str, str], cut_note: str = ""
) -> list[Check]:
    """Return a check for every expectation. Pure.

    Args:
        matches: first matching line of each pattern.
        cut_note: the part of the log that was read; empty if all was read. If set, no line is proved to be absent.
    """
    checks = [] if args.chunked_prefill == "any" else [_check_chunked_prefill(args.chunked_prefill, state)]
    checks += [_check_expected(pattern, matches.get(pattern)) for pattern in args.expect_log]
    return checks + [_check_forbidden(pattern, matches.get(pattern), state, cut_note) for pattern in args.forbid_log]


def find_unmet_requests(state: EngineState, engine: Engine) -> list[Check]:
    """Return a disproved check for each warning about a request that the engine does not fulfil. Pure."""
    lines = [line for line in state.warnings if any(row.match(line) for row in engine.log.unavailable_features)]
    return [Check("serves what was requested", "disproved", strip_prefix(line, engine.log)) for line in lines]


def _check_flags(
    container: Mapping[str, Any] | None, state: EngineState, settings: Mapping[str, str], engine: Engine
) -> list[Check]:
    """Return a disproved check for each flag of the running command that the engine resolved differently."""
    flags = engine.parse_command(container_options.command_line_of(dict(container))).flags if container else {}
    return [
        Check(
            one_line(mismatch.sentence, max_chars=MAX_EVIDENCE_CHARS),
            "disproved",
            mismatch.evidence[:MAX_EVIDENCE_CHARS],
        )
        for mismatch in find_mismatches(flags, state, settings, engine)
    ]


def _check_kernels(
    args: VerifyLogs.Args, kernels: Mapping[str, list[str]], engine: Engine, context: Context
) -> list[Check]:
    """Return a disproved check for each kernel that differs from the baseline's."""
    if not args.baseline_key:
        return []
    baseline = Baselines(context.state).read_conditions(build_key(args.baseline_key, context.machine, engine.http))
    changes = describe_kernel_changes(baseline.get("kernels") or {}, kernels, engine.log)
    return [Check(one_line(change), "disproved", "engine log, against the baseline's") for change in changes]


def _was_verified(container: Mapping[str, Any] | None, context: Context) -> bool:
    """Return True if the same image and command were verified on this host before."""
    config = (container or {}).get("Config") or {}
    command, digest = list(config.get("Cmd") or ()), digest_of(str(config.get("Image") or ""))
    for verified_state in (verified_states.load_last(context.state), *verified_states.load_earlier(context.state)):
        spec = verified_state.spec
        if spec and list(spec.get("command") or ()) == command and digest_of(str(spec.get("image"))) == digest:
            return True
    return False


def _check_chunked_prefill(expected: str, state: EngineState) -> Check:
    reading = state.reading("chunked_prefill")
    actual = SWITCH_NAMES[reading.value]
    verdict: Verdict = "not found" if reading.value is None else "proved" if actual == expected else "disproved"
    name = f"chunked prefill {expected}" + (f", is {actual}" if verdict == "disproved" else "")
    return Check(name, verdict, reading.evidence or "no config dump in the log")


def _check_expected(pattern: str, line: str | None) -> Check:
    name = f"a line matches {pattern!r}"
    return Check(name, "not found", "no such line") if line is None else Check(name, "proved", line)


def _check_forbidden(pattern: str, line: str | None, state: EngineState, cut_note: str) -> Check:
    name = f"no line matches {pattern!r}"
    if line is not None:
        return Check(name, "disproved", line)
    if cut_note or not state.known:
        return Check(name, "not found", cut_note or "no engine start in the log")
    return Check(name, "proved", "no such line")


def _join_parts(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _describe_log(state: EngineState, note: str) -> str:
    def describe_switch(name: str, title: str) -> str:
        value = state.value(name)
        return f"{title} {'unknown' if value is None else 'on' if value else 'off'}"

    token_count = state.value("kv_cache_tokens")
    capacity = f"KV cache {token_count:,} tokens" if token_count else "KV cache unknown"
    chunked_prefill = describe_switch("chunked_prefill", "chunked prefill")
    if note and state.value("chunked_prefill"):
        chunked_prefill = f"chunked prefill {note}"
    return f"{chunked_prefill}, {describe_switch('prefix_caching', 'prefix caching')}, {capacity} (engine log)"
