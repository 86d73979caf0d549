"""A tiny model, made once a session, and a server that a file's tests share; without the wheel they are skipped."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_llama import server as servers

WHEELS = ("xllamacpp", "gguf")
MISSING = [name for name in WHEELS if importlib.util.find_spec(name) is None]
#: of the shared server: the whole context, over two slots
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
    """The model's file."""
    from tests.real_llama import tiny_gguf

    return tiny_gguf.write_model(tmp_path_factory.mktemp("gguf") / tiny_gguf.FILE_NAME)


@pytest.fixture(scope="module")
def llama(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A server that serves, with metrics and the longer log."""
    words = ("-m", str(tiny), "-c", str(CONTEXT), "-np", str(SLOTS), "-a", "tiny", "--metrics", "--skip-chat-parsing")
    with servers.running_server(tmp_path_factory.mktemp("llama"), *words, "-lv", "4") as server:
        assert server.wait_until_served(), server.log
        yield server
