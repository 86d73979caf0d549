"""What is understood without Jinja2 means exactly what Jinja2 would have made of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.protocol import expressions, jinja, plain

KNOWN = {
    "server": {"differs": False, "running": True, "msg": "", "items": "shadowed", "deep": {"n": 3}},
    "ollama": "stop",
    "count": 0,
    "nothing": None,
    "words": ["a"],
}
NAMES = "server.differs server.running server.msg server.deep.n server.items server.gone gone words ollama count nothing none"
OTHERS = ("'stop'", '"it\'s"', "3", "true", "False", "(ollama)", "count + 1", "-count")
ATOMS = st.sampled_from((*NAMES.split(), *OTHERS))
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or", "==", "!="]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda one: f"not {one}"),
        inner.map(lambda one: f" ( {one} ) "),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_it_finds_what_jinja_finds_or_leaves_it_to_jinja(expression: str) -> None:
    try:
        found, names = plain.value(expression, KNOWN), plain.names(expression)
    except plain.NotPlain:
        return
    wanted = jinja.evaluated(expression, KNOWN)
    assert (found, type(found)) == (wanted, type(wanted))
    assert names == jinja.names_in("{{ " + expression + " }}")


@pytest.mark.parametrize(
    "expression",
    [
        "a | default(1)",
        "a is changed",
        "a[0]",
        "a.items",
        "a # b",
        r"'\n'",
        "gone",
        "a < 1",
        "a == 1 == 1",
        "f''",
        "",
        "é",
    ],
)
def test_what_is_not_plain_is_left_to_jinja(expression: str) -> None:
    with pytest.raises(plain.NotPlain):
        plain.value(expression, {"a": {"items": 1}, "é": 1})


def test_the_conditions_of_a_deploy_need_no_jinja() -> None:
    program = (
        "import sys; from sparkwright.protocol import expressions as e; s = {'server': {'differs': False, 'running': True}}; "
        "assert not e.holds(('server.differs or not server.running',), s); assert e.render('{{ server.running }}', s) is True; "
        "assert 'jinja2' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_still_a_sentence() -> None:
    with pytest.raises(expressions.UnknownName, match="'gone' is undefined"):
        expressions.holds(("not gone",), {})
