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
    EFFORT_FIELD,
    GGUF_SOURCE,
    MAX_FIELDS,
    SAMPLING_FILE,
    THINKING_SWITCHES,
    ChatTemplate,
    Thinking,
    parse_sampling,
    to_printable,
)
from sparkwright.trust.bounds import parse_json

#: the longest real one has 30 kB
MAX_TEMPLATE_CHARS = 262_144
#: variables that the engine itself sets, and Jinja's own
BUILTIN_VARIABLES = frozenset(
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
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
_SYSTEM_TEXT = re.compile(r"\b(?:You are\b|Knowledge cutoff|Cutting Knowledge Date|Today'?s? [Dd]ate|Current date)")
_THINKING_NAMES = frozenset(("reasoning_content", "reasoning", "thinking"))
_LAST_TURN = re.compile(r"\blast_(?:query|user)_(?:index|idx)\b|\blast_user_message_index\b")

TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.jinja", "tokenizer_config.json"


def parse_template(text: str) -> ChatTemplate | None:
    """Return the properties of a template; None for a text that is not a template, or is far too long for one."""
    if len(text) > MAX_TEMPLATE_CHARS:
        return None
    environment = Environment(extensions=("jinja2.ext.loopcontrols", "jinja2.ext.do"), autoescape=True)
    try:
        tree = environment.parse(_GENERATION_TAG.sub("", text))
        return _describe_tree(tree)
    except (TemplateError, RecursionError, ValueError):
        return None


def _describe_tree(tree: nodes.Template) -> ChatTemplate:
    names = list(tree.find_all(nodes.Name))
    loaded_names = {node.name for node in names if node.ctx == "load"}
    fields = sorted(loaded_names - BUILTIN_VARIABLES - _own_names(tree))[:MAX_FIELDS]
    texts = list(_list_texts(tree))
    switch = next((name for name in THINKING_SWITCHES if name in fields), "")
    system = next((text for text in texts if _SYSTEM_TEXT.search(text)), "")
    return ChatTemplate(
        fields=tuple(fields),
        tools="tools" in loaded_names,
        switch=switch,
        thinking=_thinking_default(tree, switch, fields, texts),
        system_prompt=_find_beginning(system),
        dated="strftime_now" in loaded_names,
        keeps_thinking=_keeps_thinking(tree, names),
    )


def _own_names(tree: nodes.Template) -> set[str]:
    """Return the names that a template sets itself. A name set from its own value, or only if undefined, is a request's."""
    set_names = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
    set_names |= {macro.name for macro in tree.find_all(nodes.Macro)}
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
    known_fields = {name for name in (*THINKING_SWITCHES, EFFORT_FIELD) if name in tested}
    defaulted = {name for name in from_itself if _find_default(tree, name) is not _UNSET}
    return set_names - known_fields - defaulted - _set_where_undefined(tree)


def _set_where_undefined(tree: nodes.Template) -> set[str]:
    defaulted: set[str] = set()
    for branch in tree.find_all(nodes.If):
        for name in {node.name for node in branch.test.find_all(nodes.Name)}:
            unset = _evaluate(branch.test, name, _UNDEFINED) is True and _evaluate(branch.test, name, True) is False
            assigns = [node for part in branch.body for node in (part, *part.find_all(nodes.Assign))]
            if unset and any(isinstance(node, nodes.Assign) and _is_name(node.target, name) for node in assigns):
                defaulted.add(name)
    return defaulted


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


# -- thinking ----------------------------------------------------------------------------------------------------------


class _Mark:
    """A value that no constant of a template equals."""


_UNDEFINED, _UNKNOWN, _UNSET = _Mark(), _Mark(), _Mark()


def _thinking_default(tree: nodes.Template, switch: str, fields: list[str], texts: list[str]) -> Thinking | None:
    if switch:
        return _switch_default(tree, switch)
    if EFFORT_FIELD in fields or any("<|channel|>analysis" in text for text in texts):
        return "always"
    prompts = [branch for branch in tree.find_all(nodes.If) if "add_generation_prompt" in _find_names(branch.test)]
    opening_texts = [text for branch in prompts for part in branch.body for text in _list_texts(part)]
    if any(text.rstrip().endswith("<think>") for text in opening_texts):
        return "always"
    if (
        any("think" in text for text in texts)
        or _find_names(tree) & _THINKING_NAMES
        or _find_attributes(tree) & _THINKING_NAMES
    ):
        return None
    return "none"


def _switch_default(tree: nodes.Template, switch: str) -> Thinking | None:
    """Return the default of a switch: its conditions' value when undefined, compared with true and false."""
    unset: Any = _find_default(tree, switch)
    unset = _UNDEFINED if unset is _UNSET else unset
    conditions = [node.test for node in tree.find_all(nodes.If)] + [node.test for node in tree.find_all(nodes.CondExpr)]
    for test in (test for test in conditions if switch in _find_names(test)):
        default, on, off = (_to_bool(_evaluate(test, switch, value)) for value in (unset, True, False))
        if on != off and default in (on, off) and _UNKNOWN not in (default, on, off):
            return "on" if default == on else "off"
    if isinstance(unset, bool):
        return "on" if unset else "off"
    return None


def _find_default(tree: nodes.Template, name: str) -> Any:
    """Return the constant that a variable gets if a request does not set it."""
    for template_filter in tree.find_all(nodes.Filter):
        if (
            template_filter.name in ("default", "d")
            and template_filter.node is not None
            and _is_name(template_filter.node, name)
        ):
            value = template_filter.args[0] if template_filter.args else None
            return value.value if isinstance(value, nodes.Const) else _UNSET
    for branch in tree.find_all(nodes.If):
        if _evaluate(branch.test, name, _UNDEFINED) is True and _evaluate(branch.test, name, True) is False:
            for assign in (node for part in branch.body for node in (part, *part.find_all(nodes.Assign))):
                if isinstance(assign, nodes.Assign) and _is_name(assign.target, name):
                    return assign.node.value if isinstance(assign.node, nodes.Const) else _UNSET
    return _UNSET


def _evaluate(node: nodes.Node, name: str, assumed: Any) -> Any:
    """Return an expression's value with one known variable and all others unknown."""
    if isinstance(node, nodes.Const):
        return node.value
    if isinstance(node, nodes.Name):
        # set in a request for an answer
        other_value = True if node.name == "add_generation_prompt" else _UNKNOWN
        return assumed if node.name == name else other_value
    if isinstance(node, nodes.Filter):
        return _evaluate_filter(node, name, assumed)
    if isinstance(node, nodes.Test):
        return _evaluate_test(node, name, assumed)
    if isinstance(node, nodes.Not):
        value = _to_bool(_evaluate(node.node, name, assumed))
        return _UNKNOWN if value is _UNKNOWN else not value
    if isinstance(node, nodes.And | nodes.Or):
        deciding_value = isinstance(node, nodes.Or)
        values = [_to_bool(_evaluate(side, name, assumed)) for side in (node.left, node.right)]
        return deciding_value if deciding_value in values else _UNKNOWN if _UNKNOWN in values else not deciding_value
    if isinstance(node, nodes.Compare) and len(node.ops) == 1 and node.ops[0].op in ("eq", "ne"):
        left, right = _evaluate(node.expr, name, assumed), _evaluate(node.ops[0].expr, name, assumed)
        return _UNKNOWN if _UNKNOWN in (left, right) else (left == right) is (node.ops[0].op == "eq")
    return _UNKNOWN


def _evaluate_filter(node: nodes.Filter, name: str, assumed: Any) -> Any:
    value = _evaluate(node.node, name, assumed) if node.node is not None else _UNKNOWN
    if node.name not in ("default", "d"):
        return _UNKNOWN
    if value is _UNDEFINED:
        return _evaluate(node.args[0], name, assumed) if node.args else ""
    return value


def _evaluate_test(node: nodes.Test, name: str, assumed: Any) -> Any:
    value = _evaluate(node.node, name, assumed)
    if value is _UNKNOWN:
        return _UNKNOWN
    if node.name in ("defined", "undefined"):
        return (value is _UNDEFINED) is (node.name == "undefined")
    constants = {"true": True, "false": False, "none": None}
    return value is constants[node.name] if node.name in constants else _UNKNOWN


def _to_bool(value: Any) -> Any:
    return _UNKNOWN if value is _UNKNOWN else False if value is _UNDEFINED else bool(value)


def _keeps_thinking(tree: nodes.Template, names: list[nodes.Name]) -> bool | None:
    """Return True if thinking of earlier turns is rendered: a template that reads it and looks for the last turn drops the
    others."""
    reads_thinking = bool(_find_attributes(tree) & _THINKING_NAMES)
    words = {*_find_attributes(tree), *(node.name for node in names)}
    if any(map(_LAST_TURN.search, words)):
        return False
    if any(isinstance(const.value, str) and "</think>" in const.value for const in tree.find_all(nodes.Const)):
        return None if reads_thinking else False
    return True if reads_thinking else None


# -- the tree ----------------------------------------------------------------------------------------------------------


def _find_names(node: nodes.Node) -> set[str]:
    own = {node.name} if isinstance(node, nodes.Name) else set()
    return own | {found.name for found in node.find_all(nodes.Name)}


def _find_attributes(node: nodes.Node) -> set[str]:
    """Return the attributes and keys that are read: `message.reasoning`, `message['reasoning']`, `'reasoning' in message`."""
    dotted = {found.attr for found in node.find_all(nodes.Getattr)}
    return dotted | {
        const.value for const in node.find_all(nodes.Const) if isinstance(const.value, str) and len(const.value) < 40
    }


def _list_texts(node: nodes.Node) -> Iterator[str]:
    """Yield the texts of a node in their order: between its tags, and in its expressions."""
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    for child in node.iter_child_nodes():
        yield from _list_texts(child)


def _find_beginning(text: str) -> str:
    match = _SYSTEM_TEXT.search(text)
    return to_printable(" ".join(text[match.start() :].split())) if match else ""


def find_tokenizer_template(config: Any) -> str:
    """Return the chat template in a tokenizer_config.json: the default one if there are several; "" for none."""
    template = config.get("chat_template") if isinstance(config, Mapping) else None
    if isinstance(template, list):
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def read_chat_files(read_text: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the facts in a model's chat files, see `kept`. text_of: a file's text by its name; None for a missing file."""

    def load_json(path: str) -> object:
        try:
            return parse_json(read_text(path) or "")
        except ValueError:
            return None

    text = read_text(TEMPLATE_FILE) or find_tokenizer_template(load_json(TOKENIZER_FILE))
    template = parse_template(text) if text else None
    has_sampling = read_text(SAMPLING_FILE) is not None
    return {
        "template": template.to_json() if template else None,
        "sampling": parse_sampling(load_json(SAMPLING_FILE)) if has_sampling else None,
    }


def read_gguf_chat(template: str, sampling: Mapping[str, float]) -> dict[str, Any]:
    """Return the chat facts in the header of a GGUF file, see `kept`.

    template: its text; "" for none. sampling: by `SAMPLING`.
    """
    parsed = parse_template(template) if template else None
    return {
        "template": parsed.to_json() if parsed else None,
        "sampling": dict(sampling) or None,
        "read_from": GGUF_SOURCE,
    }
