"""The sandbox's hub on loopback with models of one's own beside its own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from sparkwright.sandbox import hub
from sparkwright.sandbox.web import Server


@contextmanager
def serving(models: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Its address, for as long as the block. models: by their names, the files of each by path."""
    others, theirs = hub.file_content, hub.list_files

    def content(model: str, path: str, *, moved: bool = False) -> bytes:
        return models[model][path] if model in models else others(model, path, moved=moved)

    def files(model: str) -> list[str]:
        return list(models[model]) if model in models else theirs(model)

    with pytest.MonkeyPatch.context() as patch:
        for name, held in models.items():
            patch.setitem(hub.GGUF, name, tuple(held))
        patch.setattr(hub, "list_files", files)
        patch.setattr(hub, "file_content", content)
        server = Server(0, hub.HubApi, hub.Hub())
        server.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()
