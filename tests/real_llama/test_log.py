"""The parsed log of the real llama-server, compared with its HTTP answers."""

from pathlib import Path

import pytest

from sparkwright.engines import engine
from sparkwright.engines.log.reader import read_log
from tests.real_llama import server as servers
from tests.real_llama.conftest import CONTEXT, SLOTS

LOG = engine.get_engine("llama_cpp").log


def test_the_log_matches_the_answers(llama: servers.Server) -> None:
    state, props = read_log(llama.log, LOG), llama.ask("/props").body
    answered = (props["total_slots"], props["default_generation_settings"]["n_ctx"], props["build_info"])
    assert (state.value("slots"), state.value("max_model_len"), state.value("version")) == answered
    assert (state.value("kv_cache_tokens"), state.value("slots"), state.ready) == (CONTEXT, SLOTS, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-model-len", "4096"], "unknown argument: --max-model-len."),
        (["-ctv", "q8_0", "-fa", "off"], "a quantized V cache (cache-type-v) needs flash-attn, which is off."),
    ],
)
def test_a_failed_start_is_explained(tiny: Path, tmp_path: Path, words: list[str], sentence: str) -> None:
    with servers.running_server(tmp_path, "-m", str(tiny), "-c", "512", "-np", "1", *words) as server:
        assert not server.wait_until_served()
        assert (read_log(server.log, LOG).failure.value, server.exit_code) == (sentence, 1)
