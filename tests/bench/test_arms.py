"""The arms of an experiment: one thing changes at a time, and what an engine refuses is foretold."""

from __future__ import annotations

from dataclasses import replace

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
    found = arms.sweep(base, (512, 2048, 4096), pinned())
    old = [arms.refusal(arm, pinned("0.19.2")) for arm in found]
    assert [one.rule if one else None for one in old][2] is None
    assert all(one is not None and "block" in one.sentence for one in old[:2])
    assert [arms.refusal(arm, pinned("0.32.0")) for arm in found] == [None, None, None]


def expecting(base: Recipe, chunked_prefill: str) -> Recipe:
    expect = base.file.expect.model_copy(update={"chunked_prefill": chunked_prefill})
    return replace(base, file=base.file.model_copy(update={"expect": expect}))


def test_an_arm_runs_with_what_a_deploy_of_its_recipe_would() -> None:
    """What a recipe expects of chunked prefill decides a flag."""
    unchunked = recipe.load(TOP, "qwen3.5-35b-unchunked")
    chunked = expecting(unchunked, "any")
    found = [arm.effective(pinned()).chunked_prefill for arm in arms.pair(chunked, unchunked)]
    assert found == [True, False]
    both = arms.flag(unchunked, "max-num-seqs=2", pinned())
    assert [arm.effective(pinned()).chunked_prefill for arm in both] == [False, False]
    assert arms.changed_flags(*both) == ["max-num-seqs"]
    (large,) = arms.sweep(unchunked, (262144,), pinned())
    assert large.effective(pinned()).chunked_prefill is False


def test_a_change_does_not_make_possible_what_the_recipe_goes_without(base: Recipe) -> None:
    """With prefix caching chunked prefill can't be off, and the recipe goes on with it; one flag is one change."""
    both = arms.flag(expecting(base, "disabled"), "no-enable-prefix-caching", pinned())
    assert [arm.effective(pinned()).chunked_prefill for arm in both] == [True, True]


def test_two_recipes_of_different_images_are_two_changes_at_once() -> None:
    frozen, other = (recipe.load(TOP, name) for name in ("examples/qwen3.5-35b-frozen", "qwen3.5-35b-unchunked"))
    with pytest.raises(Refused, match="two things would change at once"):
        arms.pair(frozen, other)


def test_an_arm_is_marked_as_the_labs_and_has_the_servers_name(base: Recipe) -> None:
    (arm,) = arms.sweep(base, (8192,), pinned())
    box = arms.named(arm, "production").recipe.file.container
    assert (box.name, box.labels[LAB_LABEL]) == ("production", "8192")


def test_whoever_uses_the_server_does_not_reach_an_arm(base: Recipe) -> None:
    (arm,) = arms.sweep(base, (8192,), pinned())
    assert arms.named(arm, "production").recipe.file.container.ports == ["127.0.0.1:8000:8000"]
