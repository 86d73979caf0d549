"""Text on the screen: untrusted text is printed without markup, extra lines and control characters; long lines are wrapped."""

import io
import json
from pathlib import Path

import pytest
from rich.text import Text

from sparkwright.app.outcome import worst_exit_code
from sparkwright.app.queries import log_source
from sparkwright.bench import summary
from sparkwright.bench.results_file import Results
from sparkwright.console.command_output import print_json_line, print_prose, print_text, wrap_hanging
from sparkwright.console.events.lines import TaskLines, print_plain
from sparkwright.console.events.live_lines import LiveTaskLines
from sparkwright.console.events.summary import ServerSummary, Summary
from sparkwright.console.terminal import build_console
from sparkwright.errors import Failed
from tests.console.samples import print_events, task_event

MARKUP = "[/red] [bold]x[/bold] :smile: [link=http://evil]here[/link]"


def test_markup_in_progress_is_printed_as_text() -> None:
    out = io.StringIO()
    live = LiveTaskLines(console=build_console(file=out, force_terminal=True, width=200, force_interactive=True))
    live.set_hosts(["spark1"])
    progress = {"event": "progress", "host": "spark1", "time": 1.0, "task": "t", "unit": MARKUP}
    live.on({**progress, "done": 1, "total": 2, "text": MARKUP})
    live._progress.refresh()
    live.close()
    assert "[/red] [bold]x[/bold] :smile:" in Text.from_ansi(out.getvalue()).plain
    assert "\x1b]8" not in out.getvalue()


def test_text_of_a_host_can_not_imitate_a_line_of_another() -> None:
    printed: list[str] = []
    lines = TaskLines(write=lambda style, text: printed.extend(text.splitlines()))
    lines.set_hosts(["spark1", "spark2"])
    lines.on(task_event(msg="fine\nok       spark2  everything"))
    lines.on({"event": "note", "host": "spark1", "task": "", "text": "a\nfailed   spark2  no"})
    lines.on({"event": "raw", "host": "spark1", "text": "b\nspark2 : ok=1"})
    for name in ("spark2", "failed"):
        assert not any(line.split()[:1] == [name] and line[0] != " " for line in printed)
    assert all(line.startswith(" " * 17) for line in printed if "spark2" in line)


def test_diff_of_two_huge_texts_is_short() -> None:
    before, after = ("\n".join(f"{n % 7} {side}" for n in range(60_000)) for side in "ab")
    task = task_event(status="changed", diff=[{"field": "f", "before": before, "after": after}])
    assert len(print_events(lambda write: TaskLines(diff=True, write=write), ["spark1"], [task])) < 10


@pytest.mark.parametrize("name", ["/red] [bold]x", MARKUP, "$\\frac{1}{0"])
def test_markup_in_a_name_of_results_is_printed_as_text(name: str) -> None:
    out = io.StringIO()
    summary.print_results(Results.model_validate({"name": name, "experiment": "serve", "notes": [name]}), out)
    assert out.getvalue().count(name) == 2


def test_control_characters_are_escaped_and_json_stays_valid(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a\x1b]52;c;aGk=\x07\x9b")
    print_json_line({"\x1b": "\x9b\u202e", "n": float("nan")})
    text, data = capsys.readouterr().out.splitlines()
    assert text == "a\\x1b]52;c;aGk=\\x07\\x9b"
    assert json.loads(data) == {"\\x1b": "\\x9b\\u202e", "n": None}


def test_control_characters_in_an_error_are_escaped() -> None:
    error = Failed("the host said \x1b]0;x\x07.", where="spark1\x1b[2J", fix="\x9b")
    assert str(error) == "spark1\\x1b[2J: the host said \\x1b]0;x\\x07. \\x9b"


def test_colours_and_control_characters_of_a_saved_log_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(b"\x1b[36mINFO\x1b[0m ready\n10 %\r100 %\n\x1b]52;c;aGk=\x07\n")
    for line in log_source.read_file(str(tmp_path / "log"), 10):
        log_source.print_log(line, show_state=False, json=False, with_title=False)
    assert capsys.readouterr().out == "INFO ready\n10 %\n100 %\n\\x1b]52;c;aGk=\\x07\n"


@pytest.mark.parametrize("codes", [[99], [0, -1], [0, 7, 2]])
def test_unknown_exit_code_is_a_failure(codes: list[int]) -> None:
    assert worst_exit_code(codes) == 1


def test_control_characters_in_the_summary_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The served name comes from a recipe, which may be another user's."""
    out = io.StringIO()
    live = LiveTaskLines(console=build_console(file=out, width=200))
    name = "m\x1b]52;c;aGk=\x07\u202e"
    for write in (print_plain, live.write):
        panel = Summary(write)
        panel.set_server(ServerSummary("spark1", "r", "a:b", "o/m", "", name, "http://spark1:8000"))
        panel.on(task_event(module="verify_health", msg="serves"))
        panel.on(task_event(module="grant_restart", status="changed", diff=[{"field": "last good state"}]))
        panel.on({"event": "recap", "host": "spark1", "exit": 0})
        panel.close()
    live.close()
    for output in (capsys.readouterr().out, out.getvalue()):
        assert output.count("m\\x1b]52;c;aGk=\\x07\\u202e") == 1
        assert not set("\x1b\x07\u202e") & set(output)


def test_continuation_lines_of_a_finding_are_indented_and_a_command_is_not_split() -> None:
    line = "  info    recipes/a.yml:43: thinking is on. Why: `sparkwright explain reasoning-truncates-answers`."
    assert wrap_hanging(line, 60) == [
        "  info    recipes/a.yml:43: thinking is on. Why:",
        "          `sparkwright explain reasoning-truncates-answers`.",
    ]


def test_continuation_lines_of_a_table_begin_at_its_last_column_and_behind_its_bar() -> None:
    line = "     69.1  KV cache and computation  gpu-memory-utilization 0.85 of 119.7 GiB, less the weights"
    first, *rest = wrap_hanging(line, 76)
    assert first.endswith("0.85 of 119.7") and rest == [" " * 37 + "GiB, less the weights"]
    _, *rest = wrap_hanging(f"  | {line}", 82)
    assert rest == ["  | " + " " * 37 + "less the weights"]


def test_digest_that_is_longer_than_the_line_is_not_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    image = f"    vllm/vllm-openai@sha256:{'ab' * 32}"
    print_prose(f"served\n{image}")
    assert capsys.readouterr().out == f"served\n{image}\n"


def test_output_to_a_pipe_and_text_to_copy_are_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "word " * 30 + "end"
    print_prose(sentence)
    monkeypatch.setenv("COLUMNS", "40")
    print_text(sentence)
    assert capsys.readouterr().out == f"{sentence}\n{sentence}\n"
