"""Derive the properties of a chat template from its syntax tree.

A template is untrusted and never rendered. Instead, its conditions on the thinking switch are evaluated for the values true,
false and undefined. A property that the tree does not determine is None.

Sources: the templates of Qwen3, Qwen3.5, gpt-oss, DeepSeek-V3.1, Llama 3.1, GLM-4.6 and SmolLM3; transformers'
apply_chat_template, which passes a request's `chat_template_kwargs` as variables.
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

#: real templates have up to 30 kB
MAX_TEMPLATE_CHARS = 262_144
#: variables that are set by the engine or by Jinja
BUILTIN_VARIABLES = frozenset(
    """
        messages tools add_generation_prompt continue_final_message bos_token eos_token unk_token pad_token sep_token
        cls_token mask_token image_token video_token audio_token tokenizer raise_exception strftime_now range loop
        namespace dict lipsum cycler joiner caller varargs kwargs self super true false none True False None
    """.split()
)
#: tags around the assistant's text, an extension by transformers
_GENERATION_TAG_PATTERN = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
_SYSTEM_TEXT_PATTERN = re.compile(
    r"\b(?:You are\b|Knowledge cutoff|Cutting Knowledge Date|Today'?s? [Dd]ate|Current date)"
)
_THINKING_NAMES = frozenset(("reasoning_content", "reasoning", "thinking"))
_LAST_TURN_PATTERN = re.compile(r"\blast_(?:query|user)_(?:index|idx)\b|\blast_user_message_index\b")

TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.jinja", "tokenizer_config.json"


def parse_template(text: str) -> ChatTemplate | None:
    """Return the properties of a template; None if it is invalid or too long."""
    if len(text) > MAX_TEMPLATE_CHARS:
        return None
    environment = Environment(extensions=("jinja2.ext.loopcontrols", "jinja2.ext.do"), autoescape=True)
    try:
        return _describe_tree(environment.parse(_GENERATION_TAG_PATTERN.sub("", text)))
    except (TemplateError, RecursionError, ValueError):
        return None


def _describe_tree(tree: nodes.Template) -> ChatTemplate:
    names = list(tree.find_all(nodes.Name))
    loaded_names = {node.name for node in names if node.ctx == "load"}
    fields = sorted(loaded_names - BUILTIN_VARIABLES - _local_names(tree))[:MAX_FIELDS]
    texts = list(_list_texts(tree))
    switch = next((name for name in THINKING_SWITCHES if name in fields), "")
    system_matches = ((text, match.start()) for text in texts if (match := _SYSTEM_TEXT_PATTERN.search(text)))
    system_text, start = next(system_matches, ("", 0))
    return ChatTemplate(
        fields=tuple(fields),
        tools="tools" in loaded_names,
        switch=switch,
        thinking=_thinking_default(tree, switch, fields, texts),
        system_prompt=to_printable(" ".join(system_text[start:].split())),
        dated="strftime_now" in loaded_names,
        keeps_thinking=_keeps_thinking(tree, names),
    )


def _local_names(tree: nodes.Template) -> set[str]:
    """Return the variables that a template sets, except those that it only gives a default, which requests may set."""
    set_names = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
    set_names |= {macro.name for macro in tree.find_all(nodes.Macro)}
    tested_names = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    self_assigned_names = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name)
        and any(node.name == assign.target.name for node in assign.node.find_all(nodes.Name))
    }
    known_fields = {name for name in (*THINKING_SWITCHES, EFFORT_FIELD) if name in tested_names}
    defaulted_names = {name for name in self_assigned_names if _find_default(tree, name) is not _UNSET}
    return set_names - known_fields - defaulted_names - _names_set_if_undefined(tree)


def _names_set_if_undefined(tree: nodes.Template) -> set[str]:
    names: set[str] = set()
    for branch in tree.find_all(nodes.If):
        for name in {node.name for node in branch.test.find_all(nodes.Name)}:
            if _runs_if_undefined(branch, name) and any(_list_assignments(branch, name)):
                names.add(name)
    return names


def _runs_if_undefined(branch: nodes.If, name: str) -> bool:
    return _evaluate(branch.test, name, _UNDEFINED) is True and _evaluate(branch.test, name, True) is False


def _list_assignments(branch: nodes.If, name: str) -> Iterator[nodes.Assign]:
    for part in branch.body:
        for node in (part, *part.find_all(nodes.Assign)):
            if isinstance(node, nodes.Assign) and _is_name(node.target, name):
                yield node


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


# -- thinking ----------------------------------------------------------------------------------------------------------


class _Marker:
    """A marker that differs from all constants of a template."""


#: the value of an undefined variable
_UNDEFINED = _Marker()
#: a value that cannot be determined
_UNKNOWN = _Marker()
#: the default of a variable that has none, or one that is not a constant
_UNSET = _Marker()


def _thinking_default(tree: nodes.Template, switch: str, fields: list[str], texts: list[str]) -> Thinking | None:
    if switch:
        return _switch_default(tree, switch)
    if EFFORT_FIELD in fields or any("<|channel|>analysis" in text for text in texts):
        return "always"
    prompt_branches = [
        branch for branch in tree.find_all(nodes.If) if "add_generation_prompt" in _find_names(branch.test)
    ]
    prompt_texts = [text for branch in prompt_branches for part in branch.body for text in _list_texts(part)]
    if any(text.rstrip().endswith("<think>") for text in prompt_texts):
        return "always"
    mentions_thinking = any("think" in text for text in texts)
    return None if mentions_thinking or (_find_names(tree) | _find_attributes(tree)) & _THINKING_NAMES else "none"


def _switch_default(tree: nodes.Template, switch: str) -> Thinking | None:
    """Return "on" if a condition on the switch has by default the value that it has for true, "off" if that for false."""
    default_value: Any = _find_default(tree, switch)
    default_value = _UNDEFINED if default_value is _UNSET else default_value
    conditions = [node.test for node in tree.find_all(nodes.If)] + [node.test for node in tree.find_all(nodes.CondExpr)]
    for test in (test for test in conditions if switch in _find_names(test)):
        default, on, off = (_to_bool(_evaluate(test, switch, value)) for value in (default_value, True, False))
        if on != off and default in (on, off) and _UNKNOWN not in (default, on, off):
            return "on" if default == on else "off"
    if isinstance(default_value, bool):
        return "on" if default_value else "off"
    return None


def _find_default(tree: nodes.Template, name: str) -> Any:
    """Return a variable's default if it is a constant, otherwise _UNSET."""
    for node in tree.find_all(nodes.Filter):
        if node.name in ("default", "d") and node.node is not None and _is_name(node.node, name):
            default = node.args[0] if node.args else None
            return default.value if isinstance(default, nodes.Const) else _UNSET
    for branch in tree.find_all(nodes.If):
        if _runs_if_undefined(branch, name):
            for assign in _list_assignments(branch, name):
                return assign.node.value if isinstance(assign.node, nodes.Const) else _UNSET
    return _UNSET


def _evaluate(node: nodes.Node, name: str, assumed_value: Any) -> Any:
    """Return an expression's value, assuming a value for one variable and that all others are unknown."""
    if isinstance(node, nodes.Const):
        return node.value
    if isinstance(node, nodes.Name):
        # engines set add_generation_prompt
        other_value = True if node.name == "add_generation_prompt" else _UNKNOWN
        return assumed_value if node.name == name else other_value
    if isinstance(node, nodes.Filter):
        return _evaluate_filter(node, name, assumed_value)
    if isinstance(node, nodes.Test):
        return _evaluate_test(node, name, assumed_value)
    if isinstance(node, nodes.Not):
        value = _to_bool(_evaluate(node.node, name, assumed_value))
        return _UNKNOWN if value is _UNKNOWN else not value
    if isinstance(node, nodes.And | nodes.Or):
        deciding_value = isinstance(node, nodes.Or)
        values = [_to_bool(_evaluate(side, name, assumed_value)) for side in (node.left, node.right)]
        return deciding_value if deciding_value in values else _UNKNOWN if _UNKNOWN in values else not deciding_value
    if isinstance(node, nodes.Compare) and len(node.ops) == 1 and node.ops[0].op in ("eq", "ne"):
        left, right = _evaluate(node.expr, name, assumed_value), _evaluate(node.ops[0].expr, name, assumed_value)
        return _UNKNOWN if _UNKNOWN in (left, right) else (left == right) is (node.ops[0].op == "eq")
    return _UNKNOWN


def _evaluate_filter(node: nodes.Filter, name: str, assumed_value: Any) -> Any:
    value = _evaluate(node.node, name, assumed_value) if node.node is not None else _UNKNOWN
    if node.name not in ("default", "d"):
        return _UNKNOWN
    if value is _UNDEFINED:
        return _evaluate(node.args[0], name, assumed_value) if node.args else ""
    return value


def _evaluate_test(node: nodes.Test, name: str, assumed_value: Any) -> Any:
    value = _evaluate(node.node, name, assumed_value)
    if value is _UNKNOWN:
        return _UNKNOWN
    if node.name in ("defined", "undefined"):
        return (value is _UNDEFINED) is (node.name == "undefined")
    constants = {"true": True, "false": False, "none": None}
    return value is constants[node.name] if node.name in constants else _UNKNOWN


def _to_bool(value: Any) -> Any:
    return _UNKNOWN if value is _UNKNOWN else False if value is _UNDEFINED else bool(value)


def _keeps_thinking(tree: nodes.Template, names: list[nodes.Name]) -> bool | None:
    """Return True if earlier turns' thinking is rendered, False if the template looks for the last turn or removes thinking."""
    attributes = _find_attributes(tree)
    reads_thinking = bool(attributes & _THINKING_NAMES)
    if any(map(_LAST_TURN_PATTERN.search, {*attributes, *(node.name for node in names)})):
        return False
    if any(isinstance(const.value, str) and "</think>" in const.value for const in tree.find_all(nodes.Const)):
        return None if reads_thinking else False
    return True if reads_thinking else None


# -- the tree ----------------------------------------------------------------------------------------------------------


def _find_names(node: nodes.Node) -> set[str]:
    root_name = {node.name} if isinstance(node, nodes.Name) else set()
    return root_name | {child.name for child in node.find_all(nodes.Name)}


def _find_attributes(node: nodes.Node) -> set[str]:
    """Return the names of attributes and of likely keys, for `message.reasoning`, `message['reasoning']` and `'reasoning' in message`."""
    attributes = {child.attr for child in node.find_all(nodes.Getattr)}
    constants = {child.value for child in node.find_all(nodes.Const) if isinstance(child.value, str)}
    return attributes | {constant for constant in constants if len(constant) < 40}


def _list_texts(node: nodes.Node) -> Iterator[str]:
    """Yield a node's literal texts, outside tags and in expressions, in order."""
    if isinstance(node, nodes.TemplateData):
        yield node.data
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    for child in node.iter_child_nodes():
        yield from _list_texts(child)


def find_tokenizer_template(config: Any) -> str:
    """Return the default chat template in a parsed tokenizer_config.json; "" if there is none."""
    template = config.get("chat_template") if isinstance(config, Mapping) else None
    if isinstance(template, list):
        rows = (row for row in reversed(template) if isinstance(row, Mapping) and row.get("name") == "default")
        template = next(rows, {}).get("template")
    return template if isinstance(template, str) else ""


def read_chat_files(read_text: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the lock's `chat` entry for a model. read_text: returns the text of a file by name; None if it is missing."""

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
    """Return the lock's `chat` entry for a GGUF file.

    template: text of the template; "" if the file has none. sampling: sampling defaults in the file's header.
    """
    parsed = parse_template(template) if template else None
    return {
        "template": parsed.to_json() if parsed else None,
        "sampling": dict(sampling) or None,
        "read_from": GGUF_SOURCE,
    }
