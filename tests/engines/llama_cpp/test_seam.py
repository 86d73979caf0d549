"""llama.cpp behind what every engine answers: its files, its key and its image's version."""

import pytest

from sparkwright.engines import engine
from sparkwright.errors import Refused

LLAMA = engine.get_engine("llama_cpp")
FILES = [
    *({"path": f"m-Q4_K_M-0000{n}-of-00002.gguf", "size_bytes": 10 * 2**30} for n in (1, 2)),
    {"path": "m-Q8_0.gguf", "size_bytes": 30 * 2**30},
    {"path": "mmproj-F16.gguf", "size_bytes": 2**30},
    {"path": "README.md", "size_bytes": 100},
]


def test_the_lock_gets_the_needed_files_and_the_command_their_paths() -> None:
    assert LLAMA.files
    selection = LLAMA.files.select_files(FILES, "*Q4_K_M*", mmproj="mmproj*")
    assert [row["path"] for row in selection.rows] == [FILES[0]["path"], FILES[1]["path"], "mmproj-F16.gguf"]
    assert selection.flags == {"model": "m-Q4_K_M-00001-of-00002.gguf", "mmproj": "mmproj-F16.gguf"}
    again = LLAMA.files.select_files(selection.rows, "*Q4_K_M*", mmproj="mmproj*")
    assert again == selection, "from the lock, which holds no other file"


def test_several_quantisations_are_refused() -> None:
    assert LLAMA.files
    with pytest.raises(
        Refused, match=r"m-Q4_K_M-\*.gguf \(20.0 GiB, 2 files\), m-Q8_0.gguf \(30.0 GiB\) as `model.file`"
    ):
        LLAMA.files.select_files(FILES, "*.gguf")


def test_a_repository_of_another_format_is_refused() -> None:
    assert LLAMA.files
    with pytest.raises(Refused, match="no .gguf file: its weights are .safetensors files, which llama.cpp cannot read"):
        LLAMA.files.select_files([{"path": "model.safetensors", "size_bytes": 1}], "*.gguf")


def test_the_key_is_stored_in_a_file_with_its_own_suffix() -> None:
    key, defaults = LLAMA.key, engine.get_engine("vllm").key
    assert key and defaults
    assert key.words == ("--api-key-file", "/run/sparkwright/engine.key")
    assert key.key_of(key.text("spk-0123456789abcdef")) == "spk-0123456789abcdef"
    assert key.suffix != defaults.suffix, "the file of the server before, which a container has mounted, stays as it is"


def test_the_build_is_parsed_from_the_image() -> None:
    assert LLAMA.image
    assert LLAMA.image.parse_version("version: 11434 (7e4c0a9)\nbuilt with GNU 11.4.0 for Linux aarch64\n") == "b11434"
    assert LLAMA.image.parse_version("no version here: 7 (x)") is None
