"""What hosts say of their models and servers, as far as it is what they should say: a host that answers otherwise fails alone."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkwright.errors import Failed
from sparkwright.trust.model_files import FILES_AT_MOST
from sparkwright.visible import one_line

FOLDERS_AT_MOST = 10_000


class Answer(BaseModel):
    """What a module returns, in its own types: no text is taken for a number."""

    model_config = ConfigDict(strict=True)
    about: ClassVar[str] = "its models"


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


class Server(Answer):
    """What a client's settings need of the answer of `inspect_server`. models: the length of each one's context."""

    about: ClassVar[str] = "its server"
    models: dict[str, Annotated[int, Field(ge=1)] | None] = Field(max_length=FOLDERS_AT_MOST)
    port: int = Field(ge=1, le=65535)
    loopback: bool
    server_key: bool
    image: str


def read(kind: type[Answer], found: object) -> dict[str, Any]:
    """An answer. Raises Failed that names what is not as it should be."""
    try:
        return kind.model_validate(found).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = one_line(".".join(str(part) for part in first["loc"]), at_most=80)
        raise Failed(f"the host's answer about {kind.about} is not valid: `{place}`.") from None
