"""The sandbox's hub on loopback, with additional models."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from sparkwright.sandbox import hub
from sparkwright.sandbox.http_server import Server


@contextmanager
def serve_models(models: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Serve models for the block. Yields the hub's address. models: name to path to content."""
    sandbox_content, sandbox_files = hub.file_content, hub.list_files

    def content(model: str, path: str, *, moved: bool = False) -> bytes:
        return models[model][path] if model in models else sandbox_content(model, path, moved=moved)

    def files(model: str) -> list[str]:
        return list(models[model]) if model in models else sandbox_files(model)

    with pytest.MonkeyPatch.context() as patch:
        for name, files_by_path in models.items():
            patch.setitem(hub.GGUF_FILES, name, tuple(files_by_path))
        patch.setattr(hub, "list_files", files)
        patch.setattr(hub, "file_content", content)
        server = Server(0, hub.HubApi, hub.Hub())
        server.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()
