"""Expressions of playbooks: their values, the errors of invalid ones, and limits of time and memory."""

import resource
import subprocess
import sys
import time

import pytest

from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError, UnknownName


def test_single_expression_keeps_its_type() -> None:
    assert expressions.render("{{ files }}", {"files": [{"path": "a"}]}) == [{"path": "a"}]
    assert expressions.render(" {{ 2 * n }} ", {"n": 4}) == 8


def test_expressions_inside_text_become_text() -> None:
    assert expressions.render("port {{ port }}", {"port": 8000}) == "port 8000"
    assert expressions.render("{{ a }}{{ b }}", {"a": 1, "b": 2}) == "12"


def test_rendering_goes_through_lists_and_mappings() -> None:
    value = {"argv": ["echo", "{{ word }}"], "env": {"HOME": "{{ home }}"}}
    rendered = {"argv": ["echo", "hi"], "env": {"HOME": "/root"}}
    assert expressions.render(value, {"word": "hi", "home": "/root"}) == rendered


@pytest.mark.parametrize(("text", "name"), [("{{ hots.name }}", "hots"), ("digest {{ image.digest }}", "digest")])
def test_undefined_name_or_missing_key_is_named(text: str, name: str) -> None:
    with pytest.raises(UnknownName, match=name):
        expressions.render(text, {"host": {}, "image": {}})


def test_syntax_error_is_reported() -> None:
    with pytest.raises(ExpressionError, match="bad expression"):
        expressions.names_in("{{ a b }}")


@pytest.mark.parametrize("escape", ["{{ ''.__class__.__mro__ }}", "{{ [].append.__globals__ }}"])
def test_attributes_of_python_are_refused(escape: str) -> None:
    with pytest.raises(ExpressionError):
        expressions.render(escape, {})


def test_all_conditions_must_be_true() -> None:
    names = {"server": {"differs": True, "changed": False}, "n": 3}
    assert expressions.all_true(("server.differs", "n > 2"), names)
    assert not expressions.all_true(("server.differs", "server is changed"), names)


def test_text_false_is_false() -> None:
    assert not expressions.all_true(("answer",), {"answer": "false"})


def test_names_in_values_and_conditions_are_found() -> None:
    assert expressions.names_in_value({"a": ["{{ x.y }}", {"b": "{{ z | quote }}"}]}) == {"x", "z"}
    assert expressions.names_in_condition("image is changed and not facts.sandbox") == {"image", "facts"}


def test_quote_filter() -> None:
    assert expressions.render("{{ word | quote }}", {"word": "a b; rm -rf $HOME"}) == "'a b; rm -rf $HOME'"


def test_plain_path_has_the_same_value_as_in_jinja() -> None:
    """Paths are resolved without Jinja, with the same result for an attribute of dict, a missing key and a literal."""
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
    *("a", "a.b", "a['b']", "a.b.c", "n", "n == 3", "n != 3", "n in [1]", "1 < n < 5", "not n", "not a.b", "none"),
    "True",
    *("a and n", "a.items", "a.gone", "gone", "gone.b", "a.gone or n", "n.x.y", "not gone", "n > 'x'", "a.__class__"),
    *("a.list[0]", "a.list[9]", "a['list'][-1]", "range", "a.list == ['x', none]", "n is defined", "gone | default(4)"),
    *("a.b if n else 1", "a ~ n", "n + 1", "-n"),
)


@pytest.mark.parametrize("expression", SIMPLE)
def test_simple_expression_has_the_same_value_in_a_longer_text(expression: str) -> None:
    """A single expression may be folded; inside `{% if %}` and text it never is."""
    names = {"a": {"b": {"c": 0}, "list": ["x", None], "items": 1}, "n": 3}

    def render(text: str) -> object:
        try:
            return str(expressions.render(text, names))
        except ExpressionError as error:
            return type(error), str(error).partition(" in ")[0]

    assert render("{{ " + expression + " }}") == render("{% if true %}{{ " + expression + " }}{% endif %}")


DOUBLED = "{% set n=namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}"

COSTLY = {
    "{{ 'a' * 10**9 }}": "a string or list is larger than 1,000,000",
    "{{ [1] * 10**9 }}": "a string or list is larger than 1,000,000",
    "{{ 2 ** 99999999999 }}": "a power is too large",
    "{{ range(10**9) | list }}": "Range too big",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}": "takes more than 1 s",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested too deeply",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}": "nested too deeply",
    "{{ a" + ".b" * 180 + " }}": "nested too deeply",
    "{{ " + "not " * 50_000 + "a }}": "nested too deeply",
    "{{ " + "not " * 100_000 + "a }}": "more than 262,144 characters",
    "{{ [1] | slice(10**9) | max }}": "takes more than 1 s",
}


@pytest.mark.parametrize("text", COSTLY, ids=lambda text: text[:40])
def test_too_costly_expression_is_refused(text: str) -> None:
    before_s = time.process_time()
    with pytest.raises(ExpressionError, match=COSTLY[text]):
        expressions.render(text, {"a": 1})
    assert time.process_time() - before_s < 5  # the limit is 1 s; without it, each takes minutes of CPU time


@pytest.mark.parametrize(
    "text", [DOUBLED, "{{ 'a'.ljust(10**10) }}", "{{ '%9999999999d' % 1 }}", "{{ 'a'|center(10**10) }}"]
)
def test_memory_is_bounded_in_a_single_threaded_process(text: str) -> None:
    """The limit applies in a host's runner; here in a child process with a measured peak."""
    program = (
        "import resource, sys\nfrom sparkwright.protocol import expressions\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"  # its parent's counts too
        "try: expressions.render(sys.argv[1], {})\n"
        "except expressions.ExpressionError as error: print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
        "bytearray(400 * 2**20)\n"  # the limit is gone again
    )
    result = subprocess.run([sys.executable, "-c", program, text], capture_output=True, text=True, check=True)
    sentence, growth_mib = result.stdout.splitlines()
    assert " in " in sentence and int(growth_mib) < 300


def test_limit_of_the_process_is_restored() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    expressions.render("{{ a | default(1) }}", {})
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_lazy_result_becomes_a_list() -> None:
    assert expressions.render("{{ a | map('length') }}", {"a": ["x", "yy"]}) == [1, 2]
    with pytest.raises(expressions.UnknownName, match="'nothing' is undefined"):
        expressions.render("{{ [1, nothing] }}", {})


def test_long_expression_is_shortened_in_the_message() -> None:
    with pytest.raises(ExpressionError) as error:
        expressions.render("{{ " + "nothing + " * 1000 + "1 }}", {})
    assert len(str(error.value)) < 400
