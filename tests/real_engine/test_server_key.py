"""A real vLLM reads its key from the file that sparkwright mounts: it requires the key, and no process or log shows it."""

import secrets
from pathlib import Path

import pytest

from sparkwright.engines.vllm import http
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import http_probe
from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.real_engine.engine import Engine, serve_arguments, serving_ready
from tests.watching import ProcessWatcher

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]


def test_the_key_in_the_file_is_required_and_never_shown(engine: Engine, tmp_path: Path) -> None:
    key = "spk-" + secrets.token_hex(20)
    file = tmp_path / Path(http.KEY_FILE_MOUNT).name
    file.touch(mode=0o600)
    file.write_text(http.render_key_file(key))
    words = serve_arguments(engine.models / "dense", {http.KEY_FILE_FLAG: str(file)})
    with ProcessWatcher(key) as watch, serving_ready(engine, words, tmp_path / "server.log") as server:
        for path in HTTP.public_paths:
            assert server.ask(path).status == 200
        refused = http_probe.send_request(server.base_url, HTTP.models_path, api_key="spk-wrong")
        assert (refused.status, refused.json()) == (401, {"error": "Unauthorized"})
        context = RecordingContext(tmp_path, secrets={"K": Secret(key)})
        args = VerifyHealth.Args(server.base_url, "m", api_key_secret="K")
        assert VerifyHealth().run(args, context).data["verdict"] == "ready"
    assert watch.saw_command("vllm serve") and watch.leaks == set()
    assert "'api_key': '***'" in server.log.read_text() and key not in server.log.read_text()
