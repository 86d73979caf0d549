"""The arms of an experiment: one thing changes at a time, and what an engine refuses is foretold."""

from __future__ import annotations

import pytest

from sparkwright.bench import arms
from sparkwright.engines.vllm.advice import UNCHUNKED_LENGTH
from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.container import LAB_LABEL
from tests.bench.conftest import TOP, pinned


def test_chunked_prefill_off_takes_prefix_caching_with_it_in_both_arms(base: Recipe) -> None:
    on, off = arms.flag(base, "chunked-prefill", pinned())
    for arm in (on, off):
        assert arm.recipe.file.vllm["enable-prefix-caching"] is False
        assert arm.recipe.file.vllm["max-model-len"] == UNCHUNKED_LENGTH
        assert arms.refusal(arm, pinned()) is None
    assert arms.changed_flags(on, off) == ["enable-chunked-prefill", "max-num-batched-tokens"]
    effective = [arm.effective(pinned()) for arm in (on, off)]
    assert [one.chunked_prefill for one in effective] == [True, False]
    assert [one.budget for one in effective] == [4096, UNCHUNKED_LENGTH]


def test_a_dense_model_keeps_its_prefix_caching(base: Recipe) -> None:
    _, off = arms.flag(base, "chunked-prefill", pinned(model="dense"))
    assert off.recipe.file.vllm["enable-prefix-caching"] is True


def test_any_other_flag_is_with_and_without(base: Recipe) -> None:
    plain, with_it = arms.flag(base, "enable-chunked-prefill", pinned())
    assert plain.recipe.file.vllm == base.file.vllm
    assert with_it.changes == {"enable-chunked-prefill": True}
    _, fewer = arms.flag(base, "max-num-seqs=4", pinned())
    assert fewer.recipe.file.vllm["max-num-seqs"] == 4
    _, off = arms.flag(base, "no-enable-prefix-caching", pinned())
    assert off.recipe.file.vllm["enable-prefix-caching"] is False


def test_a_step_smaller_than_a_block_is_foretold_to_be_refused_where_it_is(base: Recipe) -> None:
    found = arms.sweep(base, (512, 2048, 4096))
    old = [arms.refusal(arm, pinned("0.19.2")) for arm in found]
    assert [one.rule if one else None for one in old][2] is None
    assert all(one is not None and "block" in one.sentence for one in old[:2])
    assert [arms.refusal(arm, pinned("0.32.0")) for arm in found] == [None, None, None]


def test_two_recipes_of_different_images_are_two_changes_at_once() -> None:
    frozen, other = (recipe.load(TOP, name) for name in ("examples/qwen3.5-35b-frozen", "qwen3.5-35b-unchunked"))
    with pytest.raises(Refused, match="two things would change at once"):
        arms.pair(frozen, other)


def test_an_arm_is_marked_as_the_labs_and_has_the_servers_name(base: Recipe) -> None:
    (arm,) = arms.sweep(base, (8192,))
    box = arms.named(arm, "production").recipe.file.container
    assert (box.name, box.labels[LAB_LABEL]) == ("production", "8192")


def test_whoever_uses_the_server_does_not_reach_an_arm(base: Recipe) -> None:
    (arm,) = arms.sweep(base, (8192,))
    assert arms.named(arm, "production").recipe.file.container.ports == ["127.0.0.1:8000:8000"]
