"""Reader of a chat template's syntax tree.

A third-party template is never rendered: its conditions on one switch are evaluated here, over true, false and undefined. What
the tree does not tell is unknown (None).

Sources: the templates of Qwen3, Qwen3.5, gpt-oss, DeepSeek-V3.1, Llama 3.1, GLM-4.6 and SmolLM3; transformers'
apply_chat_template, which passes `chat_template_kwargs` of a request as variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, TemplateError, nodes

from sparkwright.engines.model.chat_template import (
    EFFORT,
    GGUF,
    MOST_FIELDS,
    SAMPLING_FILE,
    SWITCHES,
    ChatTemplate,
    Thinking,
    printable,
    sampling_of,
)
from sparkwright.trust.bounds import json_of

#: the longest real one has 30 kB
MOST_CHARS = 262_144
#: variables that the engine itself sets, and Jinja's own
GIVEN = frozenset(
    (
        *(
            "messages",
            "tools",
            "add_generation_prompt",
            "continue_final_message",
            "bos_token",
            "eos_token",
            "unk_token",
        ),
        *(
            "pad_token",
            "sep_token",
            "cls_token",
            "mask_token",
            "image_token",
            "video_token",
            "audio_token",
            "tokenizer",
        ),
        *(
            "raise_exception",
            "strftime_now",
            "range",
            "loop",
            "namespace",
            "dict",
            "lipsum",
            "cycler",
            "joiner",
            "caller",
        ),
        *("varargs", "kwargs", "self", "super", "true", "false", "none", "True", "False", "None"),
    )
)
#: transformers' own block around the assistant's text; plain Jinja does not know it
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
_SYSTEM = re.compile(r"\b(?:You are\b|Knowledge cutoff|Cutting Knowledge Date|Today'?s? [Dd]ate|Current date)")
_THOUGHTS = frozenset(("reasoning_content", "reasoning", "thinking"))
_LAST_TURN = re.compile(r"\blast_(?:query|user)_(?:index|idx)\b|\blast_user_message_index\b")

TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.jinja", "tokenizer_config.json"


def read(text: str) -> ChatTemplate | None:
    """Return the properties of a template; None for a text that is not a template, or is far too long for one."""
    if len(text) > MOST_CHARS:
        return None
    environment = Environment(extensions=("jinja2.ext.loopcontrols", "jinja2.ext.do"), autoescape=True)
    try:
        tree = environment.parse(_GENERATION.sub("", text))
        return _described(tree)
    except (TemplateError, RecursionError, ValueError):
        return None


def _described(tree: nodes.Template) -> ChatTemplate:
    names = list(tree.find_all(nodes.Name))
    loaded = {node.name for node in names if node.ctx == "load"}
    fields = sorted(loaded - GIVEN - _own(tree))[:MOST_FIELDS]
    texts = list(_texts(tree))
    switch = next((name for name in SWITCHES if name in fields), "")
    system = next((text for text in texts if _SYSTEM.search(text)), "")
    return ChatTemplate(
        fields=tuple(fields),
        tools="tools" in loaded,
        switch=switch,
        thinking=_thinking(tree, switch, fields, texts),
        system_prompt=_beginning(system),
        dated="strftime_now" in loaded,
        keeps_thinking=_keeps(tree, names),
    )


def _own(tree: nodes.Template) -> set[str]:
    """Return the names that a template sets itself. A name set from its own value, or only if undefined, is a request's."""
    made = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
    made |= {macro.name for macro in tree.find_all(nodes.Macro)}
    tested = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    from_itself = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name)
        and any(node.name == assign.target.name for node in assign.node.find_all(nodes.Name))
    }
    usual = {name for name in (*SWITCHES, EFFORT) if name in tested}
    defaulted = {name for name in from_itself if _default_of(tree, name) is not _UNSET}
    return made - usual - defaulted - _set_where_undefined(tree)


def _set_where_undefined(tree: nodes.Template) -> set[str]:
    found: set[str] = set()
    for branch in tree.find_all(nodes.If):
        for name in {node.name for node in branch.test.find_all(nodes.Name)}:
            unset = _value(branch.test, name, _UNDEFINED) is True and _value(branch.test, name, True) is False
            assigns = [node for part in branch.body for node in (part, *part.find_all(nodes.Assign))]
            if unset and any(isinstance(node, nodes.Assign) and _is(node.target, name) for node in assigns):
                found.add(name)
    return found


def _is(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


# -- thinking ----------------------------------------------------------------------------------------------------------


class _Mark:
    """A value that no constant of a template equals."""


_UNDEFINED, _UNKNOWN, _UNSET = _Mark(), _Mark(), _Mark()


def _thinking(tree: nodes.Template, switch: str, fields: list[str], texts: list[str]) -> Thinking | None:
    if switch:
        return _switched(tree, switch)
    if EFFORT in fields or any("<|channel|>analysis" in text for text in texts):
        return "always"
    prompts = [branch for branch in tree.find_all(nodes.If) if "add_generation_prompt" in _names(branch.test)]
    opened = [text for branch in prompts for part in branch.body for text in _texts(part)]
    if any(text.rstrip().endswith("<think>") for text in opened):
        return "always"
    if any("think" in text for text in texts) or _names(tree) & _THOUGHTS or _attributes(tree) & _THOUGHTS:
        return None
    return "none"


def _switched(tree: nodes.Template, switch: str) -> Thinking | None:
    """Return the default of a switch: its conditions' value when undefined, compared with true and false."""
    unset: Any = _default_of(tree, switch)
    unset = _UNDEFINED if unset is _UNSET else unset
    conditions = [node.test for node in tree.find_all(nodes.If)] + [node.test for node in tree.find_all(nodes.CondExpr)]
    for test in (test for test in conditions if switch in _names(test)):
        default, on, off = (_truth(_value(test, switch, value)) for value in (unset, True, False))
        if on != off and default in (on, off) and _UNKNOWN not in (default, on, off):
            return "on" if default == on else "off"
    if isinstance(unset, bool):
        return "on" if unset else "off"
    return None


def _default_of(tree: nodes.Template, name: str) -> Any:
    """Return the constant that a variable gets if a request does not set it."""
    for found in tree.find_all(nodes.Filter):
        if found.name in ("default", "d") and found.node is not None and _is(found.node, name):
            value = found.args[0] if found.args else None
            return value.value if isinstance(value, nodes.Const) else _UNSET
    for branch in tree.find_all(nodes.If):
        if _value(branch.test, name, _UNDEFINED) is True and _value(branch.test, name, True) is False:
            for assign in (node for part in branch.body for node in (part, *part.find_all(nodes.Assign))):
                if isinstance(assign, nodes.Assign) and _is(assign.target, name):
                    return assign.node.value if isinstance(assign.node, nodes.Const) else _UNSET
    return _UNSET


def _value(node: nodes.Node, name: str, given: Any) -> Any:
    """Return an expression's value with one known variable and all others unknown."""
    if isinstance(node, nodes.Const):
        return node.value
    if isinstance(node, nodes.Name):
        # set in a request for an answer
        known = True if node.name == "add_generation_prompt" else _UNKNOWN
        return given if node.name == name else known
    if isinstance(node, nodes.Filter):
        return _filtered(node, name, given)
    if isinstance(node, nodes.Test):
        return _tested(node, name, given)
    if isinstance(node, nodes.Not):
        value = _truth(_value(node.node, name, given))
        return _UNKNOWN if value is _UNKNOWN else not value
    if isinstance(node, nodes.And | nodes.Or):
        decides = isinstance(node, nodes.Or)
        values = [_truth(_value(side, name, given)) for side in (node.left, node.right)]
        return decides if decides in values else _UNKNOWN if _UNKNOWN in values else not decides
    if isinstance(node, nodes.Compare) and len(node.ops) == 1 and node.ops[0].op in ("eq", "ne"):
        left, right = _value(node.expr, name, given), _value(node.ops[0].expr, name, given)
        return _UNKNOWN if _UNKNOWN in (left, right) else (left == right) is (node.ops[0].op == "eq")
    return _UNKNOWN


def _filtered(node: nodes.Filter, name: str, given: Any) -> Any:
    value = _value(node.node, name, given) if node.node is not None else _UNKNOWN
    if node.name not in ("default", "d"):
        return _UNKNOWN
    if value is _UNDEFINED:
        return _value(node.args[0], name, given) if node.args else ""
    return value


def _tested(node: nodes.Test, name: str, given: Any) -> Any:
    value = _value(node.node, name, given)
    if value is _UNKNOWN:
        return _UNKNOWN
    if node.name in ("defined", "undefined"):
        return (value is _UNDEFINED) is (node.name == "undefined")
    constants = {"true": True, "false": False, "none": None}
    return value is constants[node.name] if node.name in constants else _UNKNOWN


def _truth(value: Any) -> Any:
    return _UNKNOWN if value is _UNKNOWN else False if value is _UNDEFINED else bool(value)


def _keeps(tree: nodes.Template, names: list[nodes.Name]) -> bool | None:
    """Return True if thinking of earlier turns is rendered: a template that reads it and looks for the last turn drops the
    others."""
    reads = bool(_attributes(tree) & _THOUGHTS)
    words = {*_attributes(tree), *(node.name for node in names)}
    if any(map(_LAST_TURN.search, words)):
        return False
    if any(isinstance(const.value, str) and "</think>" in const.value for const in tree.find_all(nodes.Const)):
        return None if reads else False
    return True if reads else None


# -- the tree ----------------------------------------------------------------------------------------------------------


def _names(node: nodes.Node) -> set[str]:
    own = {node.name} if isinstance(node, nodes.Name) else set()
    return own | {found.name for found in node.find_all(nodes.Name)}


def _attributes(node: nodes.Node) -> set[str]:
    """Return the attributes and keys that are read: `message.reasoning`, `message['reasoning']`, `'reasoning' in message`."""
    dotted = {found.attr for found in node.find_all(nodes.Getattr)}
    return dotted | {
        const.value for const in node.find_all(nodes.Const) if isinstance(const.value, str) and len(const.value) < 40
    }


def _texts(node: nodes.Node) -> Iterator[str]:
    """Yield the texts of a node in their order: between its tags, and in its expressions."""
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    for child in node.iter_child_nodes():
        yield from _texts(child)


def _beginning(text: str) -> str:
    found = _SYSTEM.search(text)
    return printable(" ".join(text[found.start() :].split())) if found else ""


def of_tokenizer(config: Any) -> str:
    """Return the chat template in a tokenizer_config.json: the default one if there are several; "" for none."""
    found = config.get("chat_template") if isinstance(config, Mapping) else None
    if isinstance(found, list):
        named = {row.get("name"): row.get("template") for row in found if isinstance(row, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def of_files(text_of: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the facts in a model's chat files, see `kept`. text_of: a file's text by its name; None for a missing file."""

    def parts_of(path: str) -> object:
        try:
            return json_of(text_of(path) or "")
        except ValueError:
            return None

    text = text_of(TEMPLATE_FILE) or of_tokenizer(parts_of(TOKENIZER_FILE))
    template = read(text) if text else None
    has_sampling = text_of(SAMPLING_FILE) is not None
    return {
        "template": template.to_json() if template else None,
        "sampling": sampling_of(parts_of(SAMPLING_FILE)) if has_sampling else None,
    }


def of_gguf(template: str, sampling: Mapping[str, float]) -> dict[str, Any]:
    """Return the chat facts in the header of a GGUF file, see `kept`.

    template: its text; "" for none. sampling: by `SAMPLING`.
    """
    found = read(template) if template else None
    return {
        "template": found.to_json() if found else None,
        "sampling": dict(sampling) or None,
        "read_from": GGUF,
    }
