"""Expressions: valid ones of a playbook, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError, UnknownName


def test_a_lone_expression_keeps_its_type() -> None:
    assert expressions.render("{{ files }}", {"files": [{"path": "a"}]}) == [{"path": "a"}]
    assert expressions.render(" {{ 2 * n }} ", {"n": 4}) == 8


def test_an_expression_inside_text_becomes_text() -> None:
    assert expressions.render("port {{ port }}", {"port": 8000}) == "port 8000"


def test_two_expressions_in_one_string_are_text_not_one_expression() -> None:
    assert expressions.render("{{ a }}{{ b }}", {"a": 1, "b": 2}) == "12"


def test_rendering_goes_through_lists_and_mappings() -> None:
    value = {"argv": ["echo", "{{ word }}"], "env": {"HOME": "{{ home }}"}}
    assert expressions.render(value, {"word": "hi", "home": "/root"}) == {
        "argv": ["echo", "hi"],
        "env": {"HOME": "/root"},
    }


def test_an_undefined_name_is_an_error_that_names_it() -> None:
    with pytest.raises(UnknownName, match="'hots' is undefined"):
        expressions.render("{{ hots.name }}", {"host": {}})


def test_a_missing_key_is_an_error_not_an_empty_text() -> None:
    with pytest.raises(UnknownName):
        expressions.render("digest {{ image.digest }}", {"image": {}})


def test_bad_syntax_is_a_sentence() -> None:
    with pytest.raises(ExpressionError, match="bad expression"):
        expressions.names_in("{{ a b }}")


@pytest.mark.parametrize("escape", ["{{ ''.__class__.__mro__ }}", "{{ [].append.__globals__ }}"])
def test_the_sandbox_holds(escape: str) -> None:
    with pytest.raises(ExpressionError):
        expressions.render(escape, {})


def test_conditions_all_have_to_hold() -> None:
    names = {"server": {"differs": True, "changed": False}, "n": 3}
    assert expressions.holds(("server.differs", "n > 2"), names)
    assert not expressions.holds(("server.differs", "server is changed"), names)


def test_texts_that_mean_no_are_no() -> None:
    assert not expressions.holds(("answer",), {"answer": "false"})


def test_names_are_found_where_they_stand() -> None:
    assert expressions.names_in_value({"a": ["{{ x.y }}", {"b": "{{ z | quote }}"}]}) == {"x", "z"}
    assert expressions.names_in_condition("image is changed and not facts.sandbox") == {"image", "facts"}


def test_a_quoted_word_reaches_the_shell_whole() -> None:
    assert expressions.render("{{ word | quote }}", {"word": "a b; rm -rf $HOME"}) == "'a b; rm -rf $HOME'"


def test_a_plain_path_means_what_jinja_makes_of_it() -> None:
    """Paths are resolved without Jinja, with the same result for a dict's own attribute, a missing key and a literal."""
    names = {"lock": {"items": [1], "image": {"digest": "sha256:1"}, "none": None}, "here": "x"}
    for text in (
        "{{ lock.image.digest }}",
        "{{ lock.image }}",
        "{{lock.none}}",
        "{{ here }}",
        "{{ true }}",
        "{{ none }}",
    ):
        assert expressions.render(text, names) == expressions.evaluate(text[2:-2].strip(), names)
    assert callable(expressions.render("{{ lock.items }}", names))
    with pytest.raises(UnknownName, match="digst"):
        expressions.render("{{ lock.image.digst }}", names)
    with pytest.raises(UnknownName, match="lok"):
        expressions.render("{{ lok.image }}", names)
    assert expressions.names_in("{{ lock.image.digest }}") == {"lock"}
    assert expressions.names_in("{{ true }}") == set()


SIMPLE = (
    *(
        "a",
        "a.b",
        "a['b']",
        "a.b.c",
        "n",
        "n == 3",
        "n != 3",
        "n in [1]",
        "1 < n < 5",
        "not n",
        "not a.b",
        "none",
        "True",
    ),
    *("a and n", "a.items", "a.gone", "gone", "gone.b", "a.gone or n", "n.x.y", "not gone", "n > 'x'", "a.__class__"),
    *("a.list[0]", "a.list[9]", "a['list'][-1]", "range", "a.list == ['x', none]", "n is defined", "gone | default(4)"),
    *("a.b if n else 1", "a ~ n", "n + 1", "-n"),
)


@pytest.mark.parametrize("expression", SIMPLE)
def test_a_simple_expression_means_what_it_means_in_a_longer_text(expression: str) -> None:
    """A lone expression may be folded; inside `{% if %}` and text it never is."""
    names = {"a": {"b": {"c": 0}, "list": ["x", None], "items": 1}, "n": 3}

    def said(text: str) -> object:
        try:
            return str(expressions.render(text, names))
        except ExpressionError as error:
            return type(error), str(error).partition(" in ")[0]

    assert said("{{ " + expression + " }}") == said("{% if true %}{{ " + expression + " }}{% endif %}")
