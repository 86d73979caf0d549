"""An expression that costs too much fails with a sentence, in a bounded time and memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest

from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError

DOUBLED = "{% set n=namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}"

COSTLY = {
    "{{ 'a' * 10**9 }}": "a text or list is larger than 1,000,000",
    "{{ [1] * 10**9 }}": "a text or list is larger than 1,000,000",
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
def test_what_costs_too_much_is_refused_with_a_sentence(text: str) -> None:
    before_s = time.process_time()
    with pytest.raises(ExpressionError, match=COSTLY[text]):
        expressions.render(text, {"a": 1})
    assert time.process_time() - before_s < 5  # the bound is 1 s; unbounded, each of them takes minutes or more


@pytest.mark.parametrize(
    "text", [DOUBLED, "{{ 'a'.ljust(10**10) }}", "{{ '%9999999999d' % 1 }}", "{{ 'a'|center(10**10) }}"]
)
def test_memory_is_bounded_where_the_process_runs_alone(text: str) -> None:
    """As in a host's runner; here in a process of its own, whose peak is measured."""
    program = (
        "import resource, sys\nfrom sparkwright.protocol import expressions\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"  # its parent's counts too
        "try: expressions.render(sys.argv[1], {})\n"
        "except expressions.ExpressionError as error: print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
        "bytearray(400 * 2**20)\n"  # the limit is gone again
    )
    said = subprocess.run([sys.executable, "-c", program, text], capture_output=True, text=True, check=True)
    sentence, growth_mib = said.stdout.splitlines()
    assert " in " in sentence and int(growth_mib) < 300


def test_the_limit_of_the_process_is_as_before() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    expressions.render("{{ a | default(1) }}", {})
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_is_lazy_is_a_list_and_what_is_missing_in_it_is_named() -> None:
    assert expressions.render("{{ a | map('length') }}", {"a": ["x", "yy"]}) == [1, 2]
    with pytest.raises(expressions.UnknownName, match="'nothing' is undefined"):
        expressions.render("{{ [1, nothing] }}", {})


def test_a_long_expression_is_not_repeated_whole() -> None:
    with pytest.raises(ExpressionError) as error:
        expressions.render("{{ " + "nothing + " * 1000 + "1 }}", {})
    assert len(str(error.value)) < 400
