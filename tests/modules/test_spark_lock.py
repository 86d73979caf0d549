"""The lock's entry of a repository of GGUF files: the files of one quantisation."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.llama_cpp import advice, gguf
from sparkwright.engines.model.chat_template import fact_lines, validate_entry
from sparkwright.errors import Refused
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.spark_lock import LockModel
from sparkwright.sandbox.hub import CHAT_TEMPLATE, GGUF_VALUES, gguf_header
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

#: 36 layers of 8 heads of 64 + 64, two bytes each
KV_BYTES_PER_TOKEN = 36 * 8 * (64 + 64) * 2
QUANTISATIONS = ["BF16", "Q2_K", "Q3_K_M", "Q3_K_S", "Q4_0", "Q4_K_M", "Q4_K_S", "Q5_0", "Q5_K_M", "Q6_K", "Q8_0"]
SHARDS = [f"big/m-UD-0000{n}-of-00002.gguf" for n in (1, 2)]
#: stands before the chat template, like in real files, and is larger than the part that is read for the shape
VOCABULARY: dict[str, Any] = {"tokenizer.ggml.tokens": [f"<token {n}>" for n in range(20_000)]}
CHAT: dict[str, Any] = {
    "tokenizer.chat_template": CHAT_TEMPLATE,
    "general.sampling.temp": 0.6,
    "general.sampling.top_k": 20,
    "general.sampling.penalty_repeat": float("nan"),
}
FILES = {
    "README.md": b"#",
    "config.json": b"{}",
    "mmproj-F16.gguf": b"p",
    **{f"m-{name}.gguf": bytes(n + 1) for n, name in enumerate(QUANTISATIONS)},
    **dict.fromkeys(SHARDS, b"half"),
    "plain.gguf": gguf_header(GGUF_VALUES) + bytes(1 << 17),
    "chat.gguf": gguf_header({**GGUF_VALUES, **VOCABULARY, **CHAT}) + bytes(1 << 17),
    "cut.gguf": gguf_header({**GGUF_VALUES, **VOCABULARY, **CHAT})[:-50],
    "hostile.gguf": gguf_header({**GGUF_VALUES, gguf.ARCHITECTURE_KEY: "a b\x1b" * 99}),
}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RecordingContext]:
    hub = LoopbackHub(FILES, lfs=lambda path: path.endswith(".gguf"))
    (tmp_path / "home").mkdir()
    yield RecordingContext(tmp_path / "home", hub_url=hub.url)
    hub.close()


def lock_model(context: RecordingContext, **fields: Any) -> dict[str, Any]:
    return dict(LockModel().run(LockModel.Args(id=MODEL, engine="llama_cpp", **fields), context).data)


def model_args(entry: dict[str, Any]) -> HfModel.Args:
    return HfModel.Args(id=MODEL, commit=COMMIT, files=entry["files"], dir="~/m", transfer="plain")


def test_pattern_selects_one_model_with_hashes(context: RecordingContext) -> None:
    entry = lock_model(context, file="*Q4_K_M.gguf")
    assert entry["commit"] == COMMIT
    assert [file["path"] for file in entry["files"]] == ["m-Q4_K_M.gguf"]
    assert all(file["sha256"] for file in entry["files"])


def test_shards_and_mmproj_are_included(context: RecordingContext) -> None:
    entry = lock_model(context, file="*UD*.gguf", mmproj="mmproj*")
    assert [file["path"] for file in entry["files"]] == [*SHARDS, "mmproj-F16.gguf"]


def test_ambiguous_pattern_lists_all_models_with_sizes(context: RecordingContext) -> None:
    with pytest.raises(Refused, match=f"{MODEL} has 12 models that match .*: name one of ") as excinfo:
        lock_model(context, file="*m-*.gguf")
    assert all(f"m-{name}.gguf (0.0 GiB)" in str(excinfo.value) for name in QUANTISATIONS)
    assert "2 files)" in str(excinfo.value)


def test_pattern_without_a_match_lists_the_models(context: RecordingContext) -> None:
    with pytest.raises(Refused, match=r"\*Q7\*.gguf matches no model in lab/tiny, which has .*m-Q8_0.gguf"):
        lock_model(context, file="*Q7*.gguf")


def test_gguf_header_is_stored_and_its_cache_counts_as_memory(context: RecordingContext) -> None:
    entry = lock_model(context, file="plain.gguf")
    assert entry["config"][gguf.ARCHITECTURE_KEY] == "gpt-oss"
    small, large = (advice.memory({"ctx-size": tokens, "parallel": 1}, entry).bytes for tokens in (8192, 16384))
    assert large - small == 8192 * KV_BYTES_PER_TOKEN


@pytest.mark.parametrize("file", ["hostile.gguf", "m-Q8_0.gguf"])
def test_file_without_a_gguf_header_is_locked_without_config(context: RecordingContext, file: str) -> None:
    entry = lock_model(context, file=file)
    assert entry["config"] is None
    assert [item["path"] for item in entry["files"]] == [file]


def test_chat_template_and_sampling_defaults_are_read_after_the_vocabulary(context: RecordingContext) -> None:
    chat = validate_entry(lock_model(context, file="chat.gguf")["chat"])
    assert chat is not None
    facts = dict(fact_lines(chat))
    assert facts["thinking"] == 'on by default; per request: "chat_template_kwargs": {"enable_thinking": false}'
    assert facts["sampling"] == "GGUF file: temperature 0.6, top_k 20"


def test_truncated_header_has_no_chat_template(context: RecordingContext) -> None:
    assert lock_model(context, file="cut.gguf")["chat"] is None


def test_local_copy_gives_the_same_chat_template_if_the_hub_is_down(context: RecordingContext) -> None:
    pinned = lock_model(context, file="chat.gguf")
    HfModel().run(model_args(pinned), context)
    offline = RecordingContext(context.machine.home, hub_url="http://127.0.0.1:1")
    assert lock_model(offline, file="chat.gguf", or_here=True)["chat"] == pinned["chat"]


def test_changed_chat_template_is_reported_before_the_download(context: RecordingContext) -> None:
    before, after = lock_model(context, file="plain.gguf"), lock_model(context, file="chat.gguf")
    HfModel().run(model_args(before), context)
    context.check = True
    args = replace(model_args(after), commit="b" * 40, chat=after["chat"], engine="llama_cpp")
    diff = {row.field: (row.before, row.after) for row in HfModel().run(args, context).diff}
    assert [text.split(" by default")[0] for text in diff["chat template: thinking"]] == ["off", "on"]
    assert diff["sampling defaults"][1] == "GGUF file: temperature 0.6, top_k 20"
