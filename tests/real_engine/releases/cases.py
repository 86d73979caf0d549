"""More cases, in which releases differ. Their expected outcomes are those of the tables for the release."""

from tests.real_engine.cases import CASES, NO_CHUNKS, Case, Prediction

UNSPECIFIED = Prediction(None)
PREFIX = {"enable-prefix-caching": True}
SMALL_BUDGET = {"max-num-batched-tokens": 64, "max-num-seqs": 16}
#: an example key to search for in the log
KEY = "spk-not-a-secret"
SWITCH_OFF = "enable-prefix-caching: false\n"

MORE: tuple[Case, ...] = (
    Case("hybrid-prefix-on", "gated_delta", UNSPECIFIED, PREFIX),
    Case("hybrid-prefix-on-chunked-off", "gated_delta", UNSPECIFIED, {**PREFIX, **NO_CHUNKS}),
    Case("hybrid-prefix-on-block-over-budget", "gated_delta", UNSPECIFIED, {**PREFIX, **SMALL_BUDGET}),
    Case("mamba2-prefix-on", "mamba2", UNSPECIFIED, PREFIX),
    Case("mamba2-cache-all", "mamba2", UNSPECIFIED, {**PREFIX, "mamba-cache-mode": "all"}),
    Case("key-on-the-command-line", "dense", UNSPECIFIED, words=("--api-key", KEY)),
    Case("switch-off-in-a-config-file", "dense", UNSPECIFIED, words=("--config", "{folder}/switch-off.yaml")),
)

ALL = (*CASES, *MORE)
#: cases for which an engine is started in every release; in the newest release it is started for all
STARTED = frozenset(("dense-defaults", "dense-chunked-off", "hybrid-defaults", "hybrid-chunked-off-prefix-off"))
