"""Every part of every engine implements its protocol. A type checker cannot see this, because parts are looked up by name."""

import re

import pytest

from sparkwright.engines import engine
from sparkwright.engines.advice import Advice
from sparkwright.engines.engine import Engine, EnginePart, Files, Image
from sparkwright.engines.flags import Flags
from sparkwright.engines.parallel import Parallel
from sparkwright.engines.prefix_cache import PrefixCache

PROTOCOLS: dict[str, type] = {
    protocol.__name__: protocol for protocol in (Advice, Files, Flags, Image, Parallel, PrefixCache)
}
PARTS = [
    (name, PROTOCOLS[word])
    for name, annotation in Engine.__annotations__.items()
    if isinstance(vars(Engine).get(name), EnginePart)
    for word in re.findall(r"\w+", str(annotation))
    if word in PROTOCOLS
]


def test_every_protocol_has_a_part() -> None:
    assert {protocol for _, protocol in PARTS} == set(PROTOCOLS.values())


@pytest.mark.parametrize(("part", "protocol"), PARTS)
@pytest.mark.parametrize("name", sorted(served.name for served in engine.list_supported()))
def test_every_part_implements_its_protocol(name: str, part: str, protocol: type) -> None:
    implementation = getattr(engine.get_engine(name), part)
    if implementation is not None:
        assert [item for item in dir(protocol) if not item.startswith("_") and not hasattr(implementation, item)] == []
