"""The compile caches of a recipe's container: recipes that keep their own, and flags that make another folder."""

from __future__ import annotations

import pytest

from sparkwright.engines.caches import MOUNT, set_by_us
from sparkwright.engines.vllm.caches import CACHES


@pytest.mark.parametrize(
    ("env", "mounted", "theirs"),
    [
        ({}, ["/models/qwen35", "/root/.cache/huggingface"], False),
        ({"HF_HOME": "/hf"}, [], False),
        ({"VLLM_CACHE_ROOT": "/mine"}, [], True),
        ({}, ["/root/.cache/vllm"], True),
        ({}, ["/root/.cache/vllm/torch_compile_cache/"], True),
        ({}, ["/root/.cache"], True),
        ({}, ["/home/vllm/.triton/cache"], True),
        ({}, ["/home/vllm/.triton"], True),
        ({}, ["/root"], True),
        ({}, [MOUNT], True),
    ],
)
def test_a_recipe_that_sets_a_variable_or_mounts_their_place_keeps_them_itself(
    env: dict[str, str], mounted: list[str], theirs: bool
) -> None:
    assert CACHES.kept_elsewhere(env, mounted) is theirs


def test_flags_about_answers_do_not_matter_and_an_unknown_one_does() -> None:
    flags = {"port": 8001, "tool-call-parser": "hermes", "max-num-seqs": 8, "a-flag-of-tomorrow": True}
    assert CACHES.that_matter(flags) == {"max-num-seqs": 8, "a-flag-of-tomorrow": True}


def test_every_variable_points_below_the_mount_and_is_known_as_ours_again() -> None:
    assert set_by_us({**CACHES.environment, "HF_HOME": "/hf"}) == set(CACHES.variables)
    assert len(set(CACHES.environment.values())) == len(CACHES.variables)
