"""Programs of a host."""

from pathlib import Path

from sparkwright.host.machine import Machine


def test_a_program_that_cannot_be_executed_exits_with_126(tmp_path: Path) -> None:
    other_processor = tmp_path / "nvidia-smi"
    other_processor.write_bytes(b"\x7fELF\0")
    other_processor.chmod(0o755)
    not_executable = tmp_path / "notes"
    not_executable.write_text("")
    machine = Machine(home=tmp_path)
    for program, reason in ((other_processor, "exec format error"), (not_executable, "permission denied")):
        result = machine.run([str(program)])
        assert (result.code, result.err) == (126, f"{program}: {reason}")
    assert machine.run([str(tmp_path / "none")]).code == 127
