"""The files of a repository that a GGUF recipe gets, and the message if none can be selected."""

import pytest

from sparkwright.engines import engine
from sparkwright.engines.llama_cpp.files import NoSingleModel, SelectedFiles, resolve_files
from sparkwright.errors import Refused
from sparkwright.units import GIB, MIB

QUANTS = ("IQ2_M", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
TWELVE = {f"Coder-30B-{quant}.gguf": (number + 8) * GIB for number, quant in enumerate(QUANTS)}
OTHER_FILES = {"README.md": 9000, "imatrix.gguf": MIB, "mmproj-F16.gguf": GIB, "mmproj-F32.gguf": 2 * GIB}
SHARDS = {f"UD-Q4/Big-UD-Q4-{number:05}-of-00003.gguf": 20 * GIB for number in (1, 2, 3)}


def read_refusal(*arguments: object, **options: str) -> str:
    with pytest.raises(NoSingleModel) as excinfo:
        resolve_files(*arguments, **options)  # type: ignore[arg-type]
    return str(excinfo.value)


def test_a_single_model_needs_no_pattern() -> None:
    assert resolve_files({"a-Q8_0.gguf": GIB, "imatrix.gguf": MIB, "README.md": 1}) == SelectedFiles(("a-Q8_0.gguf",))


def test_a_model_is_selected_by_pattern() -> None:
    assert resolve_files(TWELVE | OTHER_FILES, ["*-Q4_K_M.gguf"]).all_paths == ("Coder-30B-Q4_K_M.gguf",)


def test_all_shards_of_a_model_are_selected_and_the_first_is_served() -> None:
    selection = resolve_files(SHARDS | TWELVE, ["*UD-Q4*"])
    assert selection.model == tuple(SHARDS)
    assert selection.served_path == "UD-Q4/Big-UD-Q4-00001-of-00003.gguf"
    assert resolve_files(SHARDS | TWELVE, ["UD-Q4/*"]) == resolve_files(SHARDS | TWELVE, ["*-00001-of-*"]) == selection


def test_a_projector_and_a_draft_model_are_selected_by_pattern() -> None:
    files = TWELVE | OTHER_FILES | {"Coder-30B-draft-Q8_0.gguf": GIB}
    assert resolve_files(files, ["*-Q4_K_M.gguf", "mmproj-F16.gguf"]).mmproj == "mmproj-F16.gguf"
    selection = resolve_files(files, ["*-Q6_K.gguf"], mmproj="mmproj-F32*", draft="*draft*")
    assert selection.all_paths == ("Coder-30B-Q6_K.gguf", "mmproj-F32.gguf", "Coder-30B-draft-Q8_0.gguf")
    assert resolve_files({"a.gguf": GIB, "mmproj-a.gguf": MIB}).mmproj == ""


def test_models_are_listed_with_sizes_if_none_is_selected() -> None:
    message = read_refusal(TWELVE | OTHER_FILES, repository="o/Coder-30B-GGUF")
    assert message.startswith("o/Coder-30B-GGUF has 12 models: name one of Coder-30B-IQ2_M.gguf (8.0 GiB), ")
    assert all(quant in message for quant in QUANTS) and "mmproj" not in message and "imatrix" not in message
    assert message.endswith("Coder-30B-BF16.gguf (19.0 GiB) as `model.file`.")


def test_several_matching_models_are_named() -> None:
    message = read_refusal(TWELVE | SHARDS, ["*Q8_0*", "*UD-Q4*"])
    assert "has 2 models that match *Q8_0*, *UD-Q4*" in message
    assert "Coder-30B-Q8_0.gguf (18.0 GiB), Big-UD-Q4-*.gguf (60.0 GiB, 3 files)" in message


def test_a_pattern_without_a_match_lists_the_models() -> None:
    message = read_refusal({"a-Q8_0.gguf": GIB} | OTHER_FILES, ["*Q4_0*"], repository="o/a")
    assert message == "*Q4_0* matches no model in o/a, which has a-Q8_0.gguf (1.0 GiB)."


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_shard_is_refused(number: int) -> None:
    other_shards = {name: size for name, size in SHARDS.items() if f"-{number:05}-of" not in name}
    assert (
        read_refusal(other_shards)
        == f"UD-Q4/Big-UD-Q4 in the repository lacks shard {number} of 3: it cannot be loaded."
    )


def test_a_repository_without_a_model_is_refused() -> None:
    message = read_refusal({"config.json": 1, "model-00001-of-00002.safetensors": GIB}, repository="Qwen/Qwen3-8B")
    assert "Qwen/Qwen3-8B has no .gguf file: its weights are .safetensors files, which llama.cpp cannot read" in message
    assert "no model among its .gguf files: mmproj-F16.gguf." in read_refusal({"mmproj-F16.gguf": GIB})
    assert "it has 1 other file." in read_refusal({"README.md": 1})


def test_an_ambiguous_or_missing_projector_is_refused() -> None:
    message = read_refusal({"a.gguf": GIB} | OTHER_FILES, [], mmproj="*mmproj*")
    assert "*mmproj* matches 2 files (mmproj-F16.gguf, mmproj-F32.gguf) for the mmproj" in message
    assert "nothere* matches no file for the draft model" in read_refusal({"a.gguf": GIB}, [], draft="nothere*")


FILES = engine.get_engine("llama_cpp").files
LOCKED = [
    *({"path": f"m-Q4_K_M-0000{number}-of-00002.gguf", "size_bytes": 10 * GIB} for number in (1, 2)),
    {"path": "m-Q8_0.gguf", "size_bytes": 30 * GIB},
    {"path": "mmproj-F16.gguf", "size_bytes": GIB},
    {"path": "README.md", "size_bytes": 100},
]


def test_the_lock_gets_the_needed_files_and_the_command_their_paths() -> None:
    assert FILES
    selection = FILES.select_files(LOCKED, "*Q4_K_M*", mmproj="mmproj*")
    assert list(selection.rows) == [*LOCKED[:2], LOCKED[3]]
    assert selection.flags == {"model": "m-Q4_K_M-00001-of-00002.gguf", "mmproj": "mmproj-F16.gguf"}
    assert FILES.select_files(selection.rows, "*Q4_K_M*", mmproj="mmproj*") == selection


def test_several_models_are_refused() -> None:
    assert FILES
    with pytest.raises(Refused, match=r"\(20.0 GiB, 2 files\), m-Q8_0.gguf \(30.0 GiB\) as `model.file`"):
        FILES.select_files(LOCKED, "*.gguf")
