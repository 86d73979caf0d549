"""The state that a rollback returns to, and secrets that an incident's bundle must not hold."""

import json
from pathlib import Path
from typing import Any

from sparkwright.host.records import history, incidents, verified_states
from sparkwright.host.state import StateFolder
from sparkwright.secret import Secret
from sparkwright.visible import escape_invisible
from tests.modules.context import RecordingContext


def good_state(seqs: int, commit: str = "c1", container: str = "") -> dict[str, Any]:
    return {
        "spec": {"name": "qwen35", "command": [str(seqs)]},
        "model": {"commit": commit},
        "container_id": container or f"id{seqs}{commit}",
    }


def container_ids(state: StateFolder) -> list[str]:
    return [
        verified_states.load_last(state).get("container_id", ""),
        *(item["container_id"] for item in verified_states.load_earlier(state)),
    ]


def test_a_deploy_of_an_older_state_keeps_the_way_back_to_the_one_it_replaces(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for seqs in (1, 2, 1):
        verified_states.save_verified(state, good_state(seqs))
    assert container_ids(state) == ["id1c1", "id2c1"]


def test_verified_states_are_a_stack_and_going_back_forgets_what_came_after(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for seqs in (1, 2, 3):
        verified_states.save_verified(state, good_state(seqs))
    assert container_ids(state) == ["id3c1", "id2c1", "id1c1"]
    verified_states.save_verified(state, good_state(2, container="again"), rolled_back=True)
    assert container_ids(state) == ["again", "id1c1"]
    verified_states.save_verified(state, good_state(4))
    assert container_ids(state) == ["id4c1", "again", "id1c1"]


def test_a_restart_is_no_new_state_and_a_new_revision_of_the_model_is_one(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    verified_states.save_verified(state, good_state(1))
    verified_states.save_verified(state, good_state(1, container="restarted"))
    assert container_ids(state) == ["restarted"]
    verified_states.save_verified(state, good_state(1, commit="c2"))
    assert container_ids(state) == ["id1c2", "restarted"]


def test_a_bundle_hides_secrets_wherever_they_stand() -> None:
    config = {"Env": ["HF_TOKEN=hf_abc", "VLLM_API_KEY=k1", "TZ=UTC"], "Cmd": ["--api-key", "k1", "--model", "/m"]}
    redacted = incidents.redact_inspect(
        {"Config": config, "Args": ["--api-key=k1", "--served-model-name", "token-model"]}
    )
    text = str(redacted)
    assert "hf_abc" not in text and "k1" not in text
    assert redacted["Config"]["Env"][2] == "TZ=UTC" and redacted["Config"]["Cmd"][-1] == "/m"
    assert redacted["Args"][-1] == "token-model"


def test_a_bundle_is_kept_although_the_engine_is_gone(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host="unix:///nowhere", secrets={"X": Secret("s3cret")})
    folder = incidents.save(context, "qwen35", "it said s3cret")
    assert "s3cret" not in (folder / "about.json").read_text()
    assert "not available" in (folder / "container.log").read_text()
    assert "MemTotal" in (folder / "meminfo").read_text()
    assert incidents.list_bundles(context.state) == [folder]


def test_a_bundle_hides_a_secret_as_json_writes_it(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host="unix:///nowhere", secrets={"X": Secret('gehëim"1234')})
    folder = incidents.save(context, "qwen35", 'it said gehëim"1234')
    assert "1234" not in (folder / "about.json").read_text()
    assert json.loads((folder / "about.json").read_text())["why"] == "it said ••••"


def test_the_history_is_newest_first_and_survives_a_line_cut_in_half(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path)
    history.append(context, "verified", image="a")
    history.append(context, "put back", why="b")
    with (context.state.path / history.FILE).open("a") as file:
        file.write('{"time": 1, "wha')
    assert [row["what"] for row in history.read(context.state)] == ["put back", "verified"]


def test_a_line_of_json_is_one_on_the_laptop_too(tmp_path: Path) -> None:
    """The laptop shows unseen characters as escapes, and some of those JSON does not have."""
    message = {"event": "note", "text": "a\x1b[2J\x7f\x9bb\u200b\u202ec\n"}
    line = json.dumps(message, ensure_ascii=False)
    (tmp_path / "events.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "container.log").write_text("\x9b2J\n")
    sent = {name: escape_invisible(text) for name, text in incidents.iter_files(tmp_path, tmp_path / "none")}
    assert [json.loads(line) for line in sent["events.jsonl"].splitlines()] == [message, message]
    assert sent["container.log"] == "\\x9b2J\n"
