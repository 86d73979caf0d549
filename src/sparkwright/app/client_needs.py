"""Requirements of a client that its server has to meet: path, context, tools, prefix cache.

Sources: docs/gateway.md, Clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sparkwright.app.findings import CheckedRecipe
from sparkwright.app.questions import client_formats
from sparkwright.app.questions.client_formats import AGENT_CONTEXT, Format
from sparkwright.engines import api_paths, dialects
from sparkwright.engines.advice import Effective, ServerRequest
from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.http import GENERATE

SOURCE = "docs/gateway.md, Clients"
#: an agent sends several requests at once
LEAST_REQUESTS = 4


def added(checked: list[CheckedRecipe], client: str) -> list[CheckedRecipe]:
    """Return recipes with the findings about a client's requirements added. Raises Refused for an unknown client."""
    form = client_formats.named(client)
    return [
        replace(
            checked_recipe,
            served=replace(
                checked_recipe.served,
                findings=(*checked_recipe.served.findings, *_lacking(client, form, checked_recipe)),
            ),
        )
        for checked_recipe in checked
    ]


def _lacking(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    """Yield the requirements of a client that a recipe does not meet; none for a recipe that generates no text."""
    if checked_recipe.recipe.file.task != GENERATE:
        return
    own = checked_recipe.recipe.engine
    if form.path not in api_paths.names(own.http.paths):
        sentence = f"{client} asks {form.path}, which {own.title} is not known to serve."
        yield Finding("error", sentence, (Way("serve it with an engine that does"),), SOURCE)
    if form.agent:
        yield from _of_agent(client, form, checked_recipe)


def _of_agent(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    own, flags = checked_recipe.recipe.engine, dict(checked_recipe.served.flags)
    request = ServerRequest(flags, checked_recipe.recipe.image)
    effective: Effective = own.advice.effective(
        request, (checked_recipe.pins["model"] or {}).get("config") or {}, checked_recipe.served.version
    )
    context = own.flags.context(flags) or effective.max_model_len
    if context is not None and context < AGENT_CONTEXT:
        sentence = f"{client} needs a context of {AGENT_CONTEXT} tokens or more, and this one has {context}."
        yield Finding("error", sentence, (Way("raise it"),), SOURCE)
    named = {} if own.needs_description else own.flags.named(flags)
    missing = [flag for flag in own.probe_flags.needs.get("tool_call", ()) if named.get(flag) in (None, False)]
    if missing:
        sentence = (
            f"{client} calls tools, and this server is started without {' and '.join(f'`{flag}`' for flag in missing)}."
        )
        yield Finding("error", sentence, (Way("add what this model's parser needs"),), SOURCE)
    if effective.prefix_caching is False:
        sentence = f"{client} sends its long instructions with each request, and prefix caching is off."
        yield Finding("warning", sentence, (Way("turn it on"),), SOURCE)
    if 0 < effective.max_num_seqs < LEAST_REQUESTS:
        sentence = (
            f"{client} asks for several answers at once, and this server makes {effective.max_num_seqs} at a time."
        )
        yield Finding("warning", sentence, (Way("allow more"),), SOURCE)
    yield from _unproved(client, form, checked_recipe)


def _unproved(client: str, form: Format, checked_recipe: CheckedRecipe) -> Iterator[Finding]:
    """Yield the probe that would prove a requirement, if the recipe does not include it."""
    dialect = dialects.BY_PATH[form.path]
    probe = dialect.name if dialect.name in dialects.OTHERS else "tool_call"
    if probe not in checked_recipe.recipe.file.expect.probes:
        sentence = f"nothing proves that this server answers as {client} asks."
        yield Finding("info", sentence, (Way(f"add `{probe}` to `expect.probes`"),), SOURCE, "probes")
