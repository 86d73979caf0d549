"""What hosts say of their models, as far as it is what they should say: a host that answers otherwise fails alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkwright.errors import Failed
from sparkwright.trust.model_files import FILES_AT_MOST
from sparkwright.trust.visible import one_line

FOLDERS_AT_MOST = 10_000


class Answer(BaseModel):
    """What a module returns, in its own types: no text is taken for a number."""

    model_config = ConfigDict(strict=True)


class Folder(Answer):
    """A model's folder, of the `models` module."""

    dir: str
    id: str
    commit: str
    files: int
    size_bytes: int = Field(ge=0)
    changed: list[str] = Field(max_length=FILES_AT_MOST)
    used_by: list[str]


class Models(Answer):
    """The answer of the `models` module."""

    models: list[Folder] = Field(max_length=FOLDERS_AT_MOST)


class Verified(Answer):
    """The answer of the `verify_model` module."""

    dir: str
    wrong: list[str]
    files: int
    size_bytes: int = Field(ge=0)


class Removed(Answer):
    """The answer of the `remove_model` module."""

    dir: str
    freed_bytes: int = Field(ge=0)
    left: int


def read(kind: type[Answer], found: object) -> dict[str, Any]:
    """An answer. Raises Failed that names what is not as it should be."""
    try:
        return kind.model_validate(found).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = one_line(".".join(str(part) for part in first["loc"]), at_most=80)
        raise Failed(f"the host's answer about its models is not valid: `{place}`.") from None
