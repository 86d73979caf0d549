"""The `--json` of `lock`."""

from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from sparkwright.app import json_output
from sparkwright.app.stores.lock_update import LockEntry

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(("answer", "expected"), [(True, DIGEST), (False, None), (None, None)])
def test_gone_is_the_pinned_digest_that_the_registry_no_longer_has(answer: bool | None, expected: str | None) -> None:
    unused = cast(Any, None)
    old_data = {"digest": DIGEST, "manifests": [{}]}
    entry = LockEntry("image", "a:b", unused, unused, Path(), old_data, {"gone": answer})
    row = entry.to_json()
    assert row["gone"] == expected
    jsonschema.validate(row, json_output.schema("json/lock"))
