"""A secret is not in the output in any encoding; the text around it is unchanged."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.parse
from collections.abc import Callable

import pytest

from sparkwright.protocol.events import decode, encode, event
from sparkwright.trust.redact import DOTS, Redactor

SECRETS = (
    "hf_0123456789abcdef",
    "pässwört'\"\\ mit/+?>~~~ leer",
    "日本語の秘密のことば",
    "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n",
)

SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON with its letters": lambda secret: json.dumps({"key": secret}, ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret)),
    "repr": repr,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "shell": shlex.quote,
    "URL": lambda secret: urllib.parse.quote(secret, safe=""),
    "form": urllib.parse.quote_plus,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "basic authentication": lambda secret: base64.b64encode(f"user:{secret}".encode()).decode(),
    "base64 of a URL": lambda secret: base64.urlsafe_b64encode(f"ab{secret}yz".encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_every_spelling_becomes_dots(secret: str, spelling: str) -> None:
    written = SPELLINGS[spelling](secret)
    text = Redactor([secret]).text(f"before {written} after")
    assert text.startswith("before ") and text.endswith(" after")
    assert DOTS in text and written not in text


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS, ids=["token", "quotes", "no ASCII", "lines"])
def test_an_event_with_it_is_still_that_event(secret: str, spelling: str) -> None:
    written = SPELLINGS[spelling](secret)
    value = event("task_finished", task="t1", status="ok", msg=f"got {written}", data={written: [written, 7]})
    told = decode(encode(value, Redactor([secret])))
    assert (told["event"], told["task"], told["status"], told["time"]) == ("task_finished", "t1", "ok", value["time"])
    assert written not in json.dumps(told, ensure_ascii=False)
    assert told["msg"].startswith("got ") and next(iter(told["data"].values()))[1] == 7


def test_a_line_of_a_secret_of_several_is_hidden_too() -> None:
    assert Redactor([SECRETS[3]]).text("log: abcdefgh") == f"log: {DOTS}"


@pytest.mark.parametrize("secret", ["ok", "task_finished", "status", "event", "t1", "1", '"', ":", "true"])
def test_a_secret_that_is_a_common_word_leaves_every_event_readable(secret: str) -> None:
    value = event("task_finished", task="t1", status="ok", module="facts", exit=1, msg="ok", changed=True)
    told = decode(encode(value, Redactor([secret])))
    assert {key: told[key] for key in ("event", "task", "status", "module", "exit", "time")} == {
        key: value[key] for key in ("event", "task", "status", "module", "exit", "time")
    }


def test_without_secrets_nothing_changes() -> None:
    value = event("note", task="", text="a • b")
    assert encode(value, Redactor()) == encode(value) == encode(value, Redactor([""]))


def test_the_password_of_a_url_is_hidden_by_itself() -> None:
    hidden = Redactor(["http://ops:Tr0ub%40dor-3@proxy:3128"])
    login = base64.b64encode(b"ops:Tr0ub@dor-3").decode()
    said = hidden.text(f"a Tr0ub%40dor-3 b Tr0ub@dor-3 c {login} d http://ops:Tr0ub%40dor-3@proxy:3128 e ops proxy")
    assert "dor-3" not in said and login not in said and said.endswith("d •••• e ops proxy")
