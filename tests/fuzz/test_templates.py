"""Damaged or hostile templates and expressions are rendered, or quickly refused with a sentence."""

from pathlib import Path

import pytest

import sparkwright
from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError
from tests.fuzz.harness import feed, feed_texts

PROJECT = Path(sparkwright.__file__).parents[2]
TEMPLATES = [path.read_bytes() for path in sorted((PROJECT / "templates").glob("*.j2"))]
EXPRESSIONS = [
    b"{{ facts.memory_bytes // 2**30 }} GiB",
    b"{{ (1, 2, 3) | join(',') }}{% for n in range(3) %}{{ n ~ '-' ~ name }}{% endfor %}",
    b"{% macro m(x) %}{{ x * 2 }}{% endmacro %}{{ m('ab') | center(10) | indent(4) }}",
    b"{{ '%5d' % 3 }}{{ name.replace('a', 'b').ljust(9) }}{% set x = [1] + [2] %}{{ x | length }}",
    b"not image.changed and (name == 'x' or ports[0] is defined)",
    b"a.failed or not v",
    b"{{ a.msg | default('x') ~ v }}",
    b"{% for x in deep.a %}{{ loop.index * 2 ** 3 }}{% endfor %}",
    b"{{ (deep.a | length) / 2 > 1 and a is failed }}",
    b"{{ '%05d %s' | format(3, 'x') | center(20) | quote }}",
]
NAMES = {
    "facts": {"memory_bytes": 2**37, "gpu": None},
    "name": "qwen35",
    "image": {"changed": False, "failed": False, "skipped": False},
    "ports": ["8000:8000"],
    "host": {"name": "spark1", "address": "192.0.2.7", "port": 22},
    "flags": {"max-num-seqs": 8},
    "text": "a" * 1000,
    "things": ["a" * 100_000] * 100,
    "a": {"failed": True, "msg": "no"},
    "v": "x",
    "deep": {"a": [1, "b"]},
}


def test_templates() -> None:
    def read(text: str) -> None:
        expressions.names_in_value({"a": [text]})
        expressions.render(text, NAMES)

    feed_texts(read, [*TEMPLATES, *EXPRESSIONS], refuses=(ExpressionError,))


def test_conditions() -> None:
    def read(text: str) -> None:
        expressions.names_in_condition(text)
        expressions.all_true((text,), NAMES)

    feed_texts(read, EXPRESSIONS, refuses=(ExpressionError,))


HOSTILE = (
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [0] * 10**10 }}",
    "{{ 10**(10**10) }}",
    "{{ 2 ** 10000000 }}",
    "{{ (2 ** 64) ** 64 ** 3 }}",
    "{% for a in range(10**9) %}x{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set l = range(1000) | list %}{% for a in l %}{% for b in l %}{% for c in l %}{% set d = 1 %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% for i in range(99999) %}{{ things[0] }}{% endfor %}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.zfill(width) }}{{ 'a'.rjust(10**10) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ text | indent(10**10) }}",
    "{{ things | join(text) | replace('a', text) }}",
    "{{ (things * 1000) | join(things[0]) }}",
    "{{ things[0].replace('a', things[0]) }}",
    "{{ things[0].join(things[0]) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "a." * 5000 + "b }}",
    "{{ " + "-" * 20000 + "1 }}",
    "{% if 1 %}" * 3000,
    "{{ 1 }}" * 100_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:50])
def test_an_expensive_template_is_refused(text: str) -> None:
    def read(template: str) -> None:
        expressions.names_in_value(template)
        with pytest.raises(ExpressionError) as excinfo:
            expressions.render(template, {**NAMES, "width": 10**10})
        assert len(str(excinfo.value)) < 1000
        raise excinfo.value

    feed(read, iter([text]), refuses=(ExpressionError,))


def test_common_templates_are_rendered() -> None:
    text = "{% for port in ports %}{{ loop.index }}/{{ loop.length }} {{ port ~ '!' }}{% if not loop.last %},{% endif %}{% endfor %}"
    assert expressions.render(text, {"ports": ["a", "b"]}) == "1/2 a!,2/2 b!"
    assert expressions.render("{% for k, v in flags.items() %}{{ k }}={{ v }}{% endfor %}", NAMES) == "max-num-seqs=8"
    assert expressions.render("{% for x in [] %}x{% else %}none{% endfor %}", {}) == "none"
    assert expressions.render("{{ [1, 2] + [3] }}", {}) == [1, 2, 3]
    assert expressions.render("{{ ['a', 'b'] | join(', ') }}: {{ 'x' | replace('x', 'y') }}", {}) == "a, b: y"
    assert expressions.render("{{ 'a' ~ 1 }}", {}) == "a1"
    assert expressions.names_in("{% for x in xs %}{{ x ~ y }}{% endfor %}") == {"xs", "y"}
