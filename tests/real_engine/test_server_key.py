"""A real vLLM takes its key from the file that sparkwright mounts: no process shows it, its log hides it, and it asks for it."""

import secrets
from pathlib import Path

import pytest

from sparkwright.engines.vllm import flags, http
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import http_probe
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.real_engine.engine import Engine, serving
from tests.watching import ProcessWatcher

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]


def test_it_asks_for_the_key_of_its_file_and_shows_it_nowhere(engine: Engine, tmp_path: Path) -> None:
    key = "spk-" + secrets.token_hex(20)
    file = tmp_path / Path(http.KEY_FILE_MOUNT).name
    file.touch(mode=0o600)
    file.write_text(http.render_key_file(key))
    flag_values = {
        "served-model-name": "m",
        "max-model-len": 4096,
        "enforce-eager": True,
        http.KEY_FILE_FLAG: str(file),
    }
    words = flags.command(str(engine.models / "dense"), flag_values)
    with ProcessWatcher(key) as watch, serving(engine, words, tmp_path / "server.log") as server:
        assert server.ready, server.log.read_text()[-2000:]
        for path in HTTP.public:
            assert server.ask(path).status == 200
        refused = http_probe.send_request(server.base_url, HTTP.models, api_key="spk-wrong")
        assert (refused.status, refused.json()) == (401, {"error": "Unauthorized"})
        context = RecordingContext(tmp_path, secrets={"K": Secret(key)})
        args = VerifyHealth.Args(server.base_url, "m", api_key_secret="K")
        assert VerifyHealth().run(args, context).data["verdict"] == "ready"
    assert watch.saw_command("vllm serve") and watch.leaks == set()
    assert "'api_key': '***'" in server.log.read_text() and key not in server.log.read_text()
