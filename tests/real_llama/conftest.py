"""A tiny model for the session, and a server for the tests of a file. Without the wheels, all tests are skipped."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_llama import server as servers

WHEELS = ("xllamacpp", "gguf")
MISSING = [name for name in WHEELS if importlib.util.find_spec(name) is None]
#: the context of the shared server, for all slots together
CONTEXT, SLOTS = 16384, 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MISSING:
        return
    reason = f"no {' and '.join(MISSING)} here: tests/real_llama/requirements.txt"
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the tiny model."""
    from tests.real_llama import tiny_gguf

    return tiny_gguf.write_model(tmp_path_factory.mktemp("gguf") / tiny_gguf.FILE_NAME)


@pytest.fixture(scope="module")
def llama(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A server with metrics and a verbose log."""
    words = ("-c", str(CONTEXT), "-np", str(SLOTS), "-a", "tiny", "--metrics", "--skip-chat-parsing", "-lv", "4")
    with servers.serving(tmp_path_factory.mktemp("llama"), tiny, *words) as server:
        yield server
