from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparkwright.engines import api_paths, dialects, messages_api, openai_api
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.engine import Engine
from sparkwright.engines.http import Http
from sparkwright.engines.probes import prompts, table
from sparkwright.engines.probes.fields import REASONING_PROBE
from sparkwright.engines.probes.probe import Probe, Reply, Seen, Verdict
from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.measure import http_probe, stream
from sparkwright.modules.proof.verdict import ASIDE
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.bounds import count_of
from sparkwright.visible import one_line

SHOWN_CHARS = 200
#: name of the row with notes for clients
NOTES = "for its clients"
#: timeout of a prompt that is rendered and not computed
PROMPT_S = 5.0
#: timeout for the longest probe, some 1,500 tokens of thinking
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one probe."""

    check: str
    verdict: Verdict
    evidence: str
    #: the engine's flag that likely causes the failure; empty if none is known
    fix: str = ""
    variant: bool = False  # a variant of the probe above, as other clients send it


class Probes(Module["Probes.Args"]):
    """Check that the server answers as clients need it: a small request for each entry of `expect.probes` in the recipe.

     - `tool_call`: a tool call arrives in `tool_calls`, with JSON arguments.
     - `reasoning`: the thinking is in a separate field and the answer in the content.
     - `json_schema`: the content is JSON that fits the request's schema.
     - `image`: the answer names the colour of a picture.
     - `embedding_dimension`: a vector has the expected length.
     - `language`: a question in that language is answered in it.
     - `messages`, `responses`: a streamed tool call through Anthropic's Messages API and OpenAI's Responses API.

    Requests are greedy, with a limited number of tokens; answers are judged by rules, never compared with a text.

    Each request is sent with and without `stream`. A tool call is also requested without any setting for thinking, in a
    second turn with the result of the first, with `tool_choice: none` and `required`, and among 40 tools; an answer with
    thinking also with thinking turned off, and without any setting for it. In the other APIs: a second turn, an answer
    without `stream`, separate thinking if the recipe has `reasoning`, and that count_tokens agrees with the usage.

    If the engine shows the prompt that it makes of a conversation, the chat template is tested too: unexpected treatment of
    system prompts, earlier thinking, tool calls and parts of messages is reported, but is not a failure.

    A failure quotes the answer and names the flag that causes it with this engine. An answer that did not end within its
    tokens, or did not arrive in time, is inconclusive: the run continues and exits with code 4.

    Returns: checks (check, verdict: proved, disproved or inconclusive, evidence, fix), thinking_field (the field with the
    thinking; empty if none was seen), notes (facts that clients should know, without a problem).
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        probes: list[Any] = arg("the probes, as in a recipe's `expect.probes`; empty: none", default_factory=list)
        api_key_secret: str = server_key.secret_arg()
        timeout_s: float = arg("how long one answer may take, seconds", default=TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        try:
            probes = table.of(args.probes)
        except ValueError as error:
            raise Refused(str(error)) from None
        if not probes:
            return Result(msg="no probes", data={"verdict": ASIDE})
        names = [probe.name for probe in probes]
        engine = container_labels.engine_at(context, args.base_url)
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        seen, notes = [], []
        for probe in probes:
            rows = [_seen(engine.http, args, probe, key)]
            if rows[0][2].verdict == "proved":
                rows += [_seen(engine.http, args, variant, key) for variant in table.variants(probe, names)]
            notes += [found.note for _, _, found in rows if found.note][:1]
            seen += rows
        if any(probe.path == openai_api.CHAT for probe in probes):
            notes += prompts.notes(_prompts(engine.http, args, key), thinks=REASONING_PROBE in probes)
        checks = [_check(engine, probe, found) for probe, _, found in seen]
        replies = (reply for probe, reply, _ in seen if probe.path == openai_api.CHAT)
        fields = {reply.thinking_field for reply in replies if isinstance(reply, Reply)} - {""}
        return result_of(checks, next(iter(sorted(fields)), ""), notes)


def result_of(checks: list[Check], thinking_field: str = "", notes: Sequence[str] = ()) -> Result:
    """Return the result of all checks together. Pure."""
    rows = [*checks, *([Check(NOTES, "proved", "; ".join(notes))] if notes else ())]
    data = {"checks": [asdict(row) for row in rows], "thinking_field": thinking_field, "notes": list(notes)}
    failed = [check for check in checks if check.verdict == "disproved"]
    if failed:
        data["evidence"] = [f"{check.check}: {check.evidence}" for check in failed]
        more = f" ({len(failed)} of {len(checks)} probes failed)" if len(failed) > 1 else ""
        first = failed[0]
        return Result(failed=True, msg=f"{first.check}: {first.evidence}{more}.", fix=first.fix, data=data)
    names = ", ".join(check.check for check in checks if not check.variant)
    if unclear := [check for check in checks if check.verdict == "inconclusive"]:
        msg = "; ".join(f"{check.check}: {check.evidence}" for check in unclear)
        return Result(msg=f"{msg}.", exit=Exit.INCONCLUSIVE, data={**data, "verdict": "inconclusive"})
    more = f" ({len(notes)} notes, this is the first)" if notes[1:] else ""
    noted = f"; note: {notes[0]}{more}" if notes else ""
    return Result(msg=f"answers: {names}{noted}", data=data)


def _prompts(http: Http, args: Probes.Args, key: str) -> dict[str, prompts.Prompt]:
    """Return the prompts that the server makes of the conversations; empty for an engine that shows none."""
    found: dict[str, prompts.Prompt] = {}
    for name, body in prompts.CONVERSATIONS.items() if http.render else ():
        found[name] = _prompt(http, args, {"model": args.model, **body}, key)
        if not found[prompts.PLAIN].text:
            return {}
    return found


def _prompt(http: Http, args: Probes.Args, body: Mapping[str, Any], key: str) -> prompts.Prompt:
    """Return the prompt of one conversation, by the engine's one or two paths."""
    first, *rest = http.render
    answer = http_probe.ask(args.base_url, first, body=body, api_key=key, timeout_s=PROMPT_S)
    if rest and answer.status == 200:
        made = answer.json()
        tokens = made.get("tokens") if isinstance(made, Mapping) else None
        of_tokens = {"model": args.model, "tokens": tokens}
        answer = http_probe.ask(args.base_url, rest[0], body=of_tokens, api_key=key, timeout_s=PROMPT_S)
    return prompts.prompt_of(answer.status, answer.json(), answer.failure)


def _seen(http: Http, args: Probes.Args, probe: Probe, key: str) -> tuple[Probe, Reply | http_probe.Answer, Seen]:
    """Send a probe and judge the reply. A failure in a stream alone is reported as such."""
    reply = ask(http, args, probe, key)
    seen = _judged(probe, reply, args.timeout_s)
    if (
        probe.streamed
        and probe.variant
        and probe.path == openai_api.CHAT
        and seen.verdict == "disproved"
        and seen.fault in ("content null", "no tool call", "tool call as text")
    ):
        seen = replace(seen, evidence=f"{seen.evidence} (without `stream` it came right)", fault="only without stream")
    return probe, reply, seen


def ask(http: Http, args: Probes.Args, probe: Probe, key: str) -> Reply | http_probe.Answer:
    """Return the reply to a probe, or the answer of a server that gave none."""
    body: dict[str, Any] = {"model": args.model, **probe.body}
    if probe.path == api_paths.COUNT_TOKENS:
        return _counted(http, args, body, key)
    dialect = dialects.BY_PATH.get(probe.path)
    if dialect is None:
        return _reply(http_probe.ask(args.base_url, probe.path, body=body, api_key=key, timeout_s=args.timeout_s))
    thinking = {True: http.thinking, False: http.plain, None: {}}[probe.thinks]
    body = dialect.request({**body, "temperature": 0, **thinking}, thinks=probe.thinks)
    if probe.streamed:
        found = _streamed(http, args, dialect, body, key)
    else:
        how: dict[str, Any] = {"api_key": key, "timeout_s": args.timeout_s, "path": dialect.path}
        found = _reply(http_probe.ask_plainly(http, args.base_url, body, **how), dialect)
    return _cut(found, probe) if isinstance(found, Reply) else found


def _cut(reply: Reply, probe: Probe) -> Reply:
    """Return a reply that says it was cut where it has as many tokens as it may: llama-server's responses do not say so."""
    usage = reply.body.get("usage") if isinstance(reply.body, dict) else None
    made = count_of(usage.get("completion_tokens")) if isinstance(usage, dict) else None
    if made is None or made < probe.body["max_tokens"] or not reply.choice:
        return reply
    return replace(reply, body={**reply.body, "choices": [{**reply.choice, "finish_reason": "length"}]})


def _reply(answer: http_probe.Answer, dialect: Dialect | None = None) -> Reply | http_probe.Answer:
    """Return the server's answer as a reply in the form of a chat. dialect: its API; None if it generates no text."""
    if answer.status == 0:
        return answer
    body = answer.json()
    read = dialect.answer(body) if dialect is not None and answer.status == 200 else body
    return Reply(answer.status, answer.message() if answer.status != 200 else answer.failure, read)


def _counted(http: Http, args: Probes.Args, body: Mapping[str, Any], key: str) -> Reply | http_probe.Answer:
    """Return a prompt's token count from count_tokens, and from the usage of an answer to it."""
    how: dict[str, Any] = {"api_key": key, "timeout_s": args.timeout_s}
    chat = {**body, "max_tokens": 1, **http.plain}
    request_body = dialects.MESSAGES.request(chat)
    answer = http_probe.ask_plainly(http, args.base_url, request_body, **how, path=api_paths.MESSAGES)
    counted = http_probe.ask(args.base_url, api_paths.COUNT_TOKENS, body=messages_api.counted(chat), **how)
    for found in (answer, counted):
        if found.status != 200:
            return _reply(found)
    usage, row = dialects.MESSAGES.answer(answer.json()).get("usage") or {}, counted.json()
    tokens = row.get("input_tokens") if isinstance(row, dict) else None
    return Reply(200, "", {"counted": count_of(tokens), "prompt": usage.get("prompt_tokens")})


def _streamed(
    http: Http, args: Probes.Args, dialect: Dialect, body: Mapping[str, Any], key: str
) -> Reply | http_probe.Answer:
    """Return the reply to a streamed request, assembled as it would be without `stream`."""
    how: dict[str, Any] = {"api_key": key, "cap_s": args.timeout_s, "timeout_s": args.timeout_s}
    try:
        recording = stream.record(args.base_url, {**body, "stream": True}, path=dialect.path, **how)
        if recording.capped:
            return http_probe.Answer(0, error="timeout")
        events = stream.events(recording, dialect.last) if dialect.last else stream.chunks(recording)
        return Reply(200, "", dialect.assembled(events), dialect.disorder(events))
    except stream.StreamError as error:
        plainer = openai_api.plainer(http, body) if error.status in openai_api.REFUSALS else None
        if plainer is not None:
            return _streamed(http, args, dialect, plainer, key)
        return Reply(error.status, str(error), None) if error.status else http_probe.Answer(0, error=str(error))


def _judged(probe: Probe, reply: Reply | http_probe.Answer, timeout_s: float) -> Seen:
    if isinstance(reply, http_probe.Answer):
        if reply.error == "timeout":
            return Seen("inconclusive", f"no answer within {timeout_s:g} s")
        return Seen("disproved", f"no answer: {one_line(reply.error, at_most=SHOWN_CHARS)}")
    if probe.optional and reply.status in openai_api.REFUSALS:
        return Seen("proved", f"refused with {reply.status}")
    if probe.of_server_error and reply.status >= 500:
        return Seen("proved", f"failed with {reply.status}", note=probe.of_server_error)
    if reply.status != 200 or reply.message:
        words = one_line(reply.message, at_most=SHOWN_CHARS)
        # a model of another name is 404 too
        if reply.status in (404, 405) and probe.path != openai_api.CHAT and "model" not in words:
            return Seen("disproved", f"{probe.path} is not there ({reply.status}: {words})", "path missing")
        return Seen("disproved", f"refused with {reply.status}: {words}", probe.refused, reply.message)
    return probe.judge(reply)


def _check(engine: Engine, probe: Probe, seen: Seen) -> Check:
    cause = engine.probe_flags.cause(seen.fault, seen.words)
    if seen.fault == "path missing":
        since = api_paths.since(engine.http.paths, probe.path)
        cause = f"{engine.title} serves {probe.path} from {since} on" if since else ""
    return Check(probe.name, seen.verdict, seen.evidence, f"Likely cause: {cause}." if cause else "", probe.variant)
