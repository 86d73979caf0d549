"""The probes against the real llama-server with random weights: a grammar enforces JSON, and nothing makes a tool call."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.probes import fields, table
from sparkwright.engines.probes.probe import Probe, Reply
from sparkwright.host.containers import container_labels
from sparkwright.measure.http_probe import Target
from sparkwright.modules.proof import probes
from sparkwright.modules.proof.probes import Probes
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext
from tests.real_llama import server as servers

SMALL = ("-c", "2048", "-np", "2", "-a", "tiny", "--metrics")


@pytest.fixture(autouse=True)
def llama_cpp_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the engine llama.cpp, as a container's label would."""
    monkeypatch.setattr(container_labels, "engine_at", lambda context, url: engine.get_engine("llama_cpp"))


def run_probes(server: servers.Server, folder: Path, *names: Any) -> Result:
    args = Probes.Args(base_url=server.base_url, model="tiny", probes=list(names), timeout_s=60)
    return Probes().run(args, RecordingContext(folder))


def read_verdicts(result: Result) -> dict[str, str]:
    return {check["check"]: check["verdict"] for check in result.data["checks"]}


def test_a_json_schema_is_proved_and_a_picture_is_refused(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL) as server:
        schema = run_probes(server, tmp_path / "host", "json_schema")
        assert not schema.failed, schema.msg
        assert set(read_verdicts(schema).values()) == {"proved"}
        picture = run_probes(server, tmp_path / "host", "image")
        assert picture.failed and "--mmproj is missing" in picture.fix, picture.msg


def test_an_embedding_dimension_is_proved_or_disproved(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL, "--embedding", "--pooling", "mean") as server:
        assert not (result := run_probes(server, tmp_path / "host", {"embedding_dimension": 128})).failed, result.msg
        assert run_probes(server, tmp_path / "host", {"embedding_dimension": 64}).failed


def test_tools_are_refused_if_they_are_off(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL, "--no-jinja") as server:
        result = run_probes(server, tmp_path / "host", "tool_call")
        assert result.failed and "--no-jinja" in result.fix, (result.msg, result.fix)


#: moves the system prompt to the last question, obeys and deletes /no_think, keeps thinking of one name if a field is set
TEMPLATE = (
    "{%- set s = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}"
    "{%- for m in messages if m['role'] != 'system' -%}<{{ m['role'] }}>{% if loop.last and s %}{{ s }} {% endif %}"
    "{% if m.reasoning_content and preserve_thinking %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m['content'] | replace('/no_think', '') }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<assistant>{% if '/no_think' in messages[-1]['content'] %}<think></think>{% endif %}{%- endif -%}"
)


def test_rendered_prompts_reveal_the_template_behaviour(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    words = ("--jinja", "--chat-template-file", str(tmp_path / "chat.jinja"))
    with servers.serving(tmp_path, tiny, *SMALL, *words) as server:
        notes = run_probes(server, tmp_path / "host", "json_schema", "reasoning").data["notes"]
    assert notes[0].startswith("it puts the system prompt into the last question")
    assert "it deletes /no_think from a user's text, even in paths" in notes
    # this build sets preserve_thinking in every request
    assert "earlier thinking reaches the model only under `reasoning_content`" in notes


def test_all_apis_give_the_same_text_and_token_count(tiny: Path, tmp_path: Path) -> None:
    with servers.serving(tmp_path, tiny, *SMALL) as server:
        answers = {}
        for name, probe in table.API_PROBES.items():
            short = replace(probe, body={**probe.body, "max_tokens": 24})
            for streamed in (True, False):
                reply = send_probe(server, replace(short, streamed=streamed))
                # b11549 omits `message_start` in some streams; then the usage has no prompt
                prompt = None if reply.order_error else reply.body["usage"]["prompt_tokens"]
                answers[name, streamed] = reply.content, prompt
                assert fields.evaluate_tool_call(reply).verdict == "inconclusive", "random weights never end"
        texts, prompts = ({row[part] for row in answers.values()} - {None} for part in (0, 1))
        assert len(texts) == len(prompts) == 1 and texts != {""}
        assert table.evaluate_token_count(send_probe(server, table.COUNT_TOKENS_PROBE)).verdict == "proved"


def send_probe(server: servers.Server, probe: Probe) -> Reply:
    reply = probes.send_probe(Target(engine.get_engine("llama_cpp").http, server.base_url, "tiny"), probe)
    assert isinstance(reply, Reply) and reply.status == 200, reply
    return reply
