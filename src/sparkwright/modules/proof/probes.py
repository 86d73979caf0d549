"""Module that sends a server requests like those of typical clients, and checks the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparkwright.engines import api_paths, dialects, messages_api, openai_api
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.engine import Engine
from sparkwright.engines.probes import prompts, table
from sparkwright.engines.probes.fields import REASONING_PROBE
from sparkwright.engines.probes.probe import Probe, ProbeResult, Reply, Verdict
from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.measure import http_probe, stream
from sparkwright.measure.http_probe import Target
from sparkwright.modules.proof.verdict import NOT_REQUESTED
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.bounds import count_or_none
from sparkwright.visible import format_count, one_line

MAX_QUOTED_CHARS = 200
#: name of the row with notes for clients
NOTES_CHECK = "notes for clients"
#: time limit for rendering a prompt without generating
PROMPT_TIMEOUT_S = 5.0
#: time limit of an answer; enough for the longest probe, about 1,500 tokens of thinking
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one probe."""

    check: str
    verdict: Verdict
    evidence: str
    #: the likely cause, an engine's flag; empty if unknown
    fix: str = ""
    #: true for a variant of the preceding probe, as other clients send it
    variant: bool = False


class Probes(Module["Probes.Args"]):
    """Check that the server answers typical clients: a small request for each entry of `expect.probes` in the recipe.

     - `tool_call`: a tool call arrives in `tool_calls`, with JSON arguments.
     - `reasoning`: the thinking is in a separate field and the answer in the content.
     - `json_schema`: the content is JSON that matches the request's schema.
     - `image`: the answer names the colour of a picture.
     - `embedding_dimension`: a vector has the expected length.
     - `language`: the answer is in the language of the question.
     - `messages`, `responses`: a streamed tool call through Anthropic's Messages API and OpenAI's Responses API.

    Requests are greedy, with a limited number of tokens; the answers are checked by rules, not against a reference.

    Each chat request is sent with and without `stream`. A tool call is also requested without any setting for thinking, in a
    second turn with the result of the first, with `tool_choice: none` and `required`, and among 40 tools. Reasoning is also
    requested with thinking turned off, and without any setting for it. The other APIs are also tested with a second turn,
    and without `stream`. Their thinking must be separate if the recipe has `reasoning`, and count_tokens must match the usage.

    If the engine can render the prompt of a conversation, the chat template is tested too. Unexpected treatment of system
    prompts, earlier thinking, tool calls and parts of messages is reported, but is not a failure.

    A failure quotes the answer and the engine's flag that likely causes it. An answer that exceeded its token or time limit
    is inconclusive: the run continues and exits with code 4.

    Returns: checks (check; verdict: proved, disproved or inconclusive; evidence; fix; variant: true for another form of the
    preceding request), thinking_field (the field with the thinking; empty if none was found), notes (information for
    clients; not problems).
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        probes: list[Any] = arg("the probes, as in a recipe's `expect.probes`; empty: none", default_factory=list)
        api_key_secret: str = server_key.secret_arg()
        timeout_s: float = arg("time limit for one answer, seconds", default=TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        try:
            probes = table.parse_probes(args.probes)
        except ValueError as error:
            raise Refused(str(error)) from None
        if not probes:
            return Result(msg="no probes", data={"verdict": NOT_REQUESTED})
        names = [probe.name for probe in probes]
        engine = container_labels.engine_at(context, args.base_url)
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        target = Target(engine.http, args.base_url, args.model, key, args.timeout_s)
        runs, notes = [], []
        for probe in probes:
            probe_runs = [_run_probe(target, probe)]
            if probe_runs[0][2].verdict == "proved":
                probe_runs += [_run_probe(target, variant) for variant in table.variants(probe, names)]
            notes += [result.note for _, _, result in probe_runs if result.note][:1]
            runs += probe_runs
        if any(probe.path == openai_api.CHAT_PATH for probe in probes):
            notes += prompts.list_notes(_render_prompts(target), has_thinking=REASONING_PROBE in probes)
        checks = [_build_check(engine, probe, result) for probe, _, result in runs]
        replies = (reply for probe, reply, _ in runs if probe.path == openai_api.CHAT_PATH)
        thinking_fields = {reply.thinking_field for reply in replies if isinstance(reply, Reply)} - {""}
        return build_result(checks, next(iter(sorted(thinking_fields)), ""), notes)


def build_result(checks: list[Check], thinking_field: str = "", notes: Sequence[str] = ()) -> Result:
    """Return the module's result for all checks. Pure."""
    rows = [*checks, *([Check(NOTES_CHECK, "proved", "; ".join(notes))] if notes else ())]
    data = {"checks": [asdict(row) for row in rows], "thinking_field": thinking_field, "notes": list(notes)}
    failed_checks = [check for check in checks if check.verdict == "disproved"]
    if failed_checks:
        data["evidence"] = [f"{check.check}: {check.evidence}" for check in failed_checks]
        count_note = f" ({len(failed_checks)} of {len(checks)} probes failed)" if len(failed_checks) > 1 else ""
        first_failed_check = failed_checks[0]
        return Result(
            failed=True,
            msg=f"{first_failed_check.check}: {first_failed_check.evidence}{count_note}.",
            fix=first_failed_check.fix,
            data=data,
        )
    names = ", ".join(check.check for check in checks if not check.variant)
    if inconclusive_checks := [check for check in checks if check.verdict == "inconclusive"]:
        msg = "; ".join(f"{check.check}: {check.evidence}" for check in inconclusive_checks)
        return Result(msg=f"{msg}.", exit=Exit.INCONCLUSIVE, data={**data, "verdict": "inconclusive"})
    more_note = f" (and {format_count(len(notes) - 1, 'more note')})" if notes[1:] else ""
    first_note = f"; note: {notes[0]}{more_note}" if notes else ""
    return Result(msg=f"passed: {names}{first_note}", data=data)


def _render_prompts(target: Target) -> dict[str, prompts.Prompt]:
    """Return the rendered prompts of the test conversations; empty if the engine cannot render them."""
    rendered_prompts: dict[str, prompts.Prompt] = {}
    for name, body in prompts.CONVERSATIONS.items() if target.http.render_paths else ():
        rendered_prompts[name] = _render_prompt(target, {"model": target.model, **body})
        if not rendered_prompts[prompts.PLAIN_CONVERSATION].text:
            return {}
    return rendered_prompts


def _render_prompt(target: Target, body: Mapping[str, Any]) -> prompts.Prompt:
    """Render the prompt of one conversation. An engine with two paths tokenizes it and turns the tokens back into text."""
    render_path, *detokenize_paths = target.http.render_paths
    response = target.send(render_path, body=body, timeout_s=PROMPT_TIMEOUT_S)
    if detokenize_paths and response.status == 200:
        tokenized_body = response.json()
        tokens = tokenized_body.get("tokens") if isinstance(tokenized_body, Mapping) else None
        body = {"model": target.model, "tokens": tokens}
        response = target.send(detokenize_paths[0], body=body, timeout_s=PROMPT_TIMEOUT_S)
    return prompts.parse_prompt(response.status, response.json(), response.failure)


def _run_probe(target: Target, probe: Probe) -> tuple[Probe, Reply | http_probe.Response, ProbeResult]:
    """Send a probe and evaluate the reply. A failure that occurs only with `stream` is marked as such."""
    reply = send_probe(target, probe)
    result = _evaluate_reply(probe, reply, target.timeout_s)
    if (
        probe.streamed
        and probe.variant
        and probe.path == openai_api.CHAT_PATH
        and result.verdict == "disproved"
        and result.fault in ("content null", "no tool call", "tool call as text")
    ):
        evidence = f"{result.evidence} (correct without `stream`)"
        result = replace(result, evidence=evidence, fault="only without stream")
    return probe, reply, result


def send_probe(target: Target, probe: Probe) -> Reply | http_probe.Response:
    """Return the reply to a probe, or the failed response if there is none."""
    body: dict[str, Any] = {"model": target.model, **probe.body}
    if probe.path == api_paths.COUNT_TOKENS_PATH:
        return _count_tokens(target, body)
    dialect = dialects.DIALECTS_BY_PATH.get(probe.path)
    if dialect is None:
        return _parse_reply(target.send(probe.path, body=body))
    thinking_settings = {True: target.http.thinking_keys, False: target.http.no_thinking_keys, None: {}}[probe.thinks]
    body = dialect.convert_request({**body, "temperature": 0, **thinking_settings}, thinks=probe.thinks)
    if probe.streamed:
        reply = _stream_reply(target, dialect, body)
    else:
        response = http_probe.send_with_fewer_options(target, body, path=dialect.path)
        reply = _parse_reply(response, dialect)
    return _mark_truncated(reply, probe) if isinstance(reply, Reply) else reply


def _mark_truncated(reply: Reply, probe: Probe) -> Reply:
    """Set `finish_reason: length` if the reply has max_tokens tokens: llama-server's Responses API does not report it."""
    usage = reply.body.get("usage") if isinstance(reply.body, dict) else None
    generated_tokens = count_or_none(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    if generated_tokens is None or generated_tokens < probe.body["max_tokens"] or not reply.choice:
        return reply
    return replace(reply, body={**reply.body, "choices": [{**reply.choice, "finish_reason": "length"}]})


def _parse_reply(response: http_probe.Response, dialect: Dialect | None = None) -> Reply | http_probe.Response:
    """Return the server's response as a chat reply.

    Args:
        dialect: the API of the response; None if it contains no generated text.
    """
    if response.status == 0:
        return response
    body = response.json()
    chat_body = dialect.convert_answer(body) if dialect is not None and response.status == 200 else body
    return Reply(response.status, response.message() if response.status != 200 else response.failure, chat_body)


def _count_tokens(target: Target, body: Mapping[str, Any]) -> Reply | http_probe.Response:
    """Return a reply with a prompt's token count from count_tokens ("counted") and from the usage of an answer ("prompt")."""
    chat_body = {**body, "max_tokens": 1, **target.http.no_thinking_keys}
    request_body = dialects.MESSAGES.convert_request(chat_body)
    message_response = http_probe.send_with_fewer_options(target, request_body, path=api_paths.MESSAGES_PATH)
    count_body = messages_api.build_count_request(chat_body)
    count_response = target.send(api_paths.COUNT_TOKENS_PATH, body=count_body)
    for response in (message_response, count_response):
        if response.status != 200:
            return _parse_reply(response)
    usage = dialects.MESSAGES.convert_answer(message_response.json()).get("usage") or {}
    count = count_response.json()
    token_count = count.get("input_tokens") if isinstance(count, dict) else None
    return Reply(200, "", {"counted": count_or_none(token_count), "prompt": usage.get("prompt_tokens")})


def _stream_reply(target: Target, dialect: Dialect, body: Mapping[str, Any]) -> Reply | http_probe.Response:
    """Return the reply to a streamed request, assembled into the form of an answer without `stream`."""
    stream_body, timeout_s = {**body, "stream": True}, target.timeout_s
    try:
        recording = stream.record(
            target.base_url,
            stream_body,
            cap_s=timeout_s,
            timeout_s=timeout_s,
            api_key=target.api_key,
            path=dialect.path,
        )
        if recording.capped:
            return http_probe.Response(0, error="timeout")
        events = (
            stream.parse_events(recording, dialect.last_event_types)
            if dialect.last_event_types
            else stream.parse_chunks(recording)
        )
        return Reply(200, "", dialect.assemble_answer(events), dialect.find_order_error(events))
    except stream.StreamError as error:
        is_refused = error.status in openai_api.REFUSAL_STATUSES
        reduced_body = openai_api.remove_refused_keys(target.http, body) if is_refused else None
        if reduced_body is not None:
            return _stream_reply(target, dialect, reduced_body)
        return Reply(error.status, str(error), None) if error.status else http_probe.Response(0, error=str(error))


def _evaluate_reply(probe: Probe, reply: Reply | http_probe.Response, timeout_s: float) -> ProbeResult:
    if isinstance(reply, http_probe.Response):
        if reply.error == "timeout":
            return ProbeResult("inconclusive", f"no answer within {timeout_s:g} s")
        return ProbeResult("disproved", f"no answer: {one_line(reply.error, max_chars=MAX_QUOTED_CHARS)}")
    if probe.optional and reply.status in openai_api.REFUSAL_STATUSES:
        return ProbeResult("proved", f"refused with {reply.status}")
    if probe.server_error_note and reply.status >= 500:
        return ProbeResult("proved", f"failed with {reply.status}", note=probe.server_error_note)
    if reply.status != 200 or reply.message:
        message = one_line(reply.message, max_chars=MAX_QUOTED_CHARS)
        # an unknown model is a 404 too
        if reply.status in (404, 405) and probe.path != openai_api.CHAT_PATH and "model" not in message:
            return ProbeResult("disproved", f"no {probe.path} ({reply.status}: {message})", "path missing")
        return ProbeResult("disproved", f"refused with {reply.status}: {message}", probe.refusal_fault, reply.message)
    return probe.evaluate(reply)


def _build_check(engine: Engine, probe: Probe, result: ProbeResult) -> Check:
    cause = engine.probe_flags.cause(result.fault, result.message)
    if result.fault == "path missing":
        release = api_paths.first_release(engine.http.paths, probe.path)
        cause = f"{engine.title} supports {probe.path} since {release}" if release else ""
    fix = f"Likely cause: {cause}." if cause else ""
    return Check(probe.name, result.verdict, result.evidence, fix, probe.variant)
