"""The modules file, template, command and package: idempotence, check mode and refusals."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host.state import write_atomically
from sparkwright.modules.system.command import Command
from sparkwright.modules.system.host_settings import File, Package, Template
from sparkwright.protocol.signature import FileMode
from tests.modules.context import RecordingContext


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    return RecordingContext(tmp_path)


def test_a_file_is_written_only_once(context: RecordingContext) -> None:
    args = File.Args(path="~/a/note", content="x\n", mode=FileMode("0600"))
    first, second = File().run(args, context), File().run(args, context)
    assert (first.changed, second.changed) == (True, False)
    path = context.machine.home / "a/note"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("x\n", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_become_is_recommended_for_a_path_that_may_not_be_read(context: RecordingContext, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(Failed, match="no permission to read") as excinfo:
            File().run(File.Args(path=str(tmp_path / "closed/note"), content="x"), context)
    finally:
        os.seteuid(0)
    assert "become: true" in excinfo.value.fix


def test_a_change_of_the_mode_does_not_replace_the_file(context: RecordingContext) -> None:
    File().run(File.Args(path="~/note", content="x"), context)
    before = (context.machine.home / "note").stat().st_ino
    result = File().run(File.Args(path="~/note", content="x", mode=FileMode("640")), context)
    assert [(item.field, item.before, item.after) for item in result.diff] == [("mode", "0644", "640")]
    assert (context.machine.home / "note").stat().st_ino == before


def test_check_mode_reports_a_change_and_writes_nothing(context: RecordingContext) -> None:
    context.check = True
    result = File().run(File.Args(path="~/note", content="x"), context)
    assert result.changed
    assert not (context.machine.home / "note").exists()


def test_a_folder_is_not_replaced_by_a_file(context: RecordingContext) -> None:
    (context.machine.home / "note/deep").mkdir(parents=True)
    with pytest.raises(Failed, match="note"):
        File().run(File.Args(path="~/note", content="x"), context)


def test_a_folder_is_created_and_removed(context: RecordingContext) -> None:
    args = File.Args(path="~/a/b", state="directory", mode=FileMode("0700"))
    assert File().run(args, context).changed
    assert (context.machine.home / "a/b").stat().st_mode & 0o777 == 0o700
    assert not File().run(args, context).changed
    absent = File.Args(path="~/a", state="absent")
    assert File().run(absent, context).changed
    assert not File().run(absent, context).changed


def test_a_folder_with_content_is_refused(context: RecordingContext) -> None:
    with pytest.raises(Refused, match="a directory has no `content`"):
        File().run(File.Args(path="~/a", state="directory", content="x"), context)
    assert not (context.machine.home / "a").exists()


def test_a_template_that_fails_its_validation_does_not_replace_the_file(context: RecordingContext) -> None:
    Template().run(Template.Args(content="good", dest="~/conf"), context)
    with pytest.raises(Failed, match="grep rejects the new"):
        Template().run(Template.Args(content="bad", dest="~/conf", validate=["grep", "good"]), context)
    assert (context.machine.home / "conf").read_text() == "good"


def test_the_result_of_a_command_has_its_output_and_exit_code(context: RecordingContext) -> None:
    result = Command().run(Command.Args(cmd="sh -c 'echo out; echo err >&2; exit 3'"), context)
    assert (result.failed, result.data["code"], result.data["out"]) == (True, 3, "out")
    assert "err" in result.msg


def test_a_command_with_an_open_quote_fails_with_the_reason(context: RecordingContext) -> None:
    result = Command().run(Command.Args(cmd="echo 'x"), context)
    assert (result.failed, result.msg) == (True, "`cmd` can't be split into words: no closing quotation.")


def test_a_command_is_skipped_if_its_result_exists(context: RecordingContext) -> None:
    (context.machine.home / "existing").touch()
    assert not Command().run(Command.Args(cmd="false", creates="~/existing"), context).changed
    assert not Command().run(Command.Args(cmd="false", removes="~/missing"), context).changed


def test_a_command_ends_at_its_time_limit(context: RecordingContext) -> None:
    with pytest.raises(Failed, match="timed out after 0.2 s"):
        Command().run(Command.Args(cmd="sleep 30", timeout_s=0.2), context)


@pytest.mark.parametrize("name", ["nvidia-driver-580-open", "linux-image-6.14-nvidia", "cuda-toolkit-13-0"])
def test_driver_kernel_and_cuda_packages_are_refused(context: RecordingContext, name: str) -> None:
    with pytest.raises(Refused, match="apt can leave it mismatched"):
        Package().run(Package.Args(name=name), context)


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    """A user who may write to the folder could predict the name, and make root write elsewhere."""
    outside = tmp_path / "shadow"
    outside.write_text("secret")
    outside.chmod(0o600)
    (tmp_path / f".note.{os.getpid()}.tmp").symlink_to(outside)
    write_atomically(tmp_path / "note", b"mine", mode=0o644)
    assert outside.read_text() == "secret" and outside.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "note").read_text() == "mine"


def test_a_link_that_replaces_a_file_after_its_inspection_is_not_followed(tmp_path: Path) -> None:
    outside, path = tmp_path / "shadow", tmp_path / "note"
    for item in (outside, path):
        item.write_text("x")
        item.chmod(0o600)
    state = files.FileState.read(path)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(Failed, match="was replaced with a symlink"):
        files.apply(files.IntendedState("file", "0644", content="x"), state)
    assert outside.stat().st_mode & 0o777 == 0o600


def test_owner_group_and_mode_are_set_on_new_and_existing_files(tmp_path: Path) -> None:
    path, user, group = tmp_path / "note", pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    for content, mode in (("x", "0640"), ("x", "2750"), ("y", "0604")):
        files.apply(files.IntendedState("file", mode, user, group, content), files.FileState.read(path))
        assert files.FileState.read(path) == files.FileState(path, "file", mode, user, group, content)
    files.apply(files.IntendedState("directory", "0711", user), files.FileState.read(tmp_path / "d"))
    assert files.FileState.read(tmp_path / "d").mode == "0711"
    with pytest.raises(Failed, match="no such group: 'nobody-has-this'"):
        files.apply(files.IntendedState("file", group="nobody-has-this"), files.FileState.read(path))
