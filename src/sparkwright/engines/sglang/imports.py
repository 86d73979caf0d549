"""Other people's ways to start SGLang. Sources: spark-arena/recipe-registry@3075780, scitrera/oss-spark-run@3190eb7;
server_args.py of 0.5.23."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.engines.imports import Imports
from sparkwright.engines.sglang import flags, http, options

#: prefixes of names that argparse completes, as guides write them
SHORT = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size"}


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the words with long names, as `--tp-size 2` for `--tp 2`."""
    return [SHORT.get(word, word) for word in words]


IMPORTS = Imports(
    image=f"lmsysorg/sglang:v{options.SOURCE}",
    port_inside=http.PORT,
    names=("sglang", "sglang.launch_server"),
    program=("sglang", "serve"),
    host=flags.HOST,
    key=flags.KEYS,
    tensor="tp-size",
    pipeline="pp-size",
    backends=("nnodes", "node-rank", "dist-init-addr"),
    replicas=("dp-size",),
    revisions=("revision",),
    files=("chat-template", "config"),
    further_models={"speculative-draft-model-path": "", "tokenizer-path": ""},
    downloads=("download-dir",),
    spelled_out=spelled_out,
    served_name=flags.SERVED_NAME,
)
