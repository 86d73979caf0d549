"""The choice of a transfer mode with the real clients and a loopback hub. Rates are compared in test_transfer.py."""

import pytest

from sparkwright.host.models import transfer_process
from sparkwright.host.models.hub import Source
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

BIG = "model.safetensors"
FILES = {BIG: bytes(range(256)) * (8 * 2**20 // 256)}


@pytest.mark.parametrize("has_store", [True, False])
def test_auto_measures_the_chunk_store_if_the_hub_has_one(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, has_store: bool
) -> None:
    if has_store:
        hub.add_store()
    monkeypatch.setattr(transfer_process, "MIN_MEASURED_BYTES", 0)
    monkeypatch.setattr(transfer_process, "WINDOW_S", 0.1)
    monkeypatch.setattr(transfer_process, "MAX_SILENCE_S", 60.0)
    sample = transfer_process.SampleFile(BIG, len(FILES[BIG]))
    choice = transfer_process.choose_mode(Source(hub.url, MODEL, COMMIT), [sample], 8)
    assert "16 connections" in choice.reason and (", xet " in choice.reason) == has_store
