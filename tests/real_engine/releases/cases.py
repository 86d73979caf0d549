"""Cases that tell releases apart, beside those of tests/real_engine/cases.py; nothing is expected of them but what the tables say."""

from tests.real_engine.cases import CASES, NO_CHUNKS, Case, Prediction

UNSAID = Prediction(None)
PREFIX = {"enable-prefix-caching": True}
#: a key that is no secret, to be looked for in the log
KEY = "spk-not-a-secret"
SWITCH_OFF = "enable-prefix-caching: false\n"

MORE: tuple[Case, ...] = (
    Case("hybrid-prefix-on", "gated_delta", UNSAID, PREFIX),
    Case("hybrid-prefix-on-chunked-off", "gated_delta", UNSAID, {**PREFIX, **NO_CHUNKS}),
    Case(
        "hybrid-prefix-on-block-over-budget",
        "gated_delta",
        UNSAID,
        {**PREFIX, "max-num-batched-tokens": 64, "max-num-seqs": 16},
    ),
    Case("mamba2-prefix-on", "mamba2", UNSAID, PREFIX),
    Case("mamba2-cache-all", "mamba2", UNSAID, {**PREFIX, "mamba-cache-mode": "all"}),
    Case("key-on-the-command-line", "dense", UNSAID, words=("--api-key", KEY)),
    Case("switch-off-in-a-config-file", "dense", UNSAID, words=("--config", "{folder}/switch-off.yaml")),
)

#: all that a release is asked
ALL = (*CASES, *MORE)
#: of these an engine is started in every release; of the newest, of all
STARTED = frozenset(("dense-defaults", "dense-chunked-off", "hybrid-defaults", "hybrid-chunked-off-prefix-off"))
