"""Recognizes secrets by the names of variables and the formats of tokens.

Used by the checks that refuse secrets in the user's files, and by secret_patterns.py, which redacts secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: names of secrets, by their last word
_SECRET_NAME_PATTERN = re.compile(
    r"(^|_)(KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|PAT)$|PASSWORD|SECRET"
)
#: further names that are masked in the output of other programs, where masking too much is better than too little
_POSSIBLE_SECRET_NAME_PATTERN = re.compile(
    r"(^|_)(PASS|PWD|AUTH|APIKEY|SECRETS|BEARER|JWT|COOKIE|SIGNATURE|SAS|DSN|WEBHOOK(_URL)?|REQUIREPASS|MASTERAUTH|BASICAUTH(_USERS)?|"
    r"(API|ACCESS|AUTH|SECRET|PRIVATE|MASTER)_?(KEYS?|TOKENS?))$|PASSWORD|PASSWD"
)
#: suffixes of names for the location or a property of a secret
_DESCRIPTIVE_SUFFIX_PATTERN = re.compile(
    r"_(FILE|PATH|DIR|FOLDER|URL|URI|NAME|ID|ENV|TTL|TYPE|LENGTH|SIZE|LIMIT|COUNT|TOKENS)$"
)
#: keys and tokens that are public
_PUBLIC_NAME_PATTERN = re.compile(
    r"(^|_)(PUBLIC|CACHE|SORT|PRIMARY|FOREIGN|PARTITION|GROUP|INDEX|BASELINE|HOST|PAD|EOS|BOS|UNK|MASK|SEP|STOP|START|END|"
    r"IMPLICIT)_(KEY|TOKEN)$"
)
#: values that can't be secrets: numbers, switches, empty
_SETTING_PATTERN = re.compile(r"[+-]?[0-9]{0,7}([.][0-9]*)?|true|false|yes|no|on|off|none|null|auto", re.I)
#: tokens in formats documented by their issuers: Hugging Face, OpenAI, Anthropic, Groq, GitHub, GitLab, Slack, NVIDIA, AWS,
#: Google, Stripe, SendGrid, npm, PyPI, Replicate; JSON web tokens; URLs of Slack and Discord webhooks
TOKEN_PATTERN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|sk_live_|sk_test_|rk_live_|gsk_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|xapp-|nvapi-|AKIA|ASIA|AIza|"
    r"ya29\.|SG\.|npm_|pypi-|r8_|eyJ[A-Za-z0-9_-]{8,500}\.|(?<=hooks\.slack\.com/services/)T|(?<=discord\.com/api/webhooks/)\d)"
    r"[A-Za-z0-9_./+=-]{14,2000}"
)
#: a line of a settings file: NAME=VALUE, NAME: VALUE or "NAME": "VALUE",
_ASSIGNMENT_PATTERN = re.compile(
    r"""^\s*(?:-\s+|export\s+)?["']?([A-Za-z_][\w.-]{0,100})["']?\s*[:=]\s*"""
    r"""["']?([^\s"',#{}\[\]()]{8,500})["']?\s*(?:,\s*)?(?:#.*)?$"""
)
#: a URL with a password, such as a proxy's
_URL_WITH_PASSWORD_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/?#\s:@]*:([^/?#\s@]+)@")
#: an expression or shell variable, which may refer to a secret
_REFERENCE_PATTERN = re.compile(r"\A(?:(?:\{\{[^{}]*\}\})+|\$\{?\w+\}?)\Z")
#: the secret with the user's password for sudo
BECOME_PASSWORD = "BECOME_PASSWORD"
#: the secret with the token for copying a model or an image from a peer
PEER_TOKEN = "NEIGHBOUR_TOKEN"
#: proxy variables; their URLs may contain a password, and they are set in the environment of sparkwright's process on the host
PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})


def _normalize_name(name: str) -> str:
    """Convert any spelling, such as apiKey or api-key, to API_KEY."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").replace(".", "_").upper()


def is_secret_name(name: str) -> bool:
    """Return True for the name of a secret, such as HF_TOKEN; False for MAX_TOKENS, KEY_FILE or TOKENIZERS_PARALLELISM."""
    normalized = _normalize_name(name)
    return (
        bool(_SECRET_NAME_PATTERN.search(normalized))
        and not _DESCRIPTIVE_SUFFIX_PATTERN.search(normalized)
        and not _PUBLIC_NAME_PATTERN.search(normalized)
    )


def is_secret(name: str, value: object) -> bool:
    """Return True if a value with this name is a secret, False if it is a setting or a reference to a secret."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    if not _REFERENCE_PATTERN.fullmatch(text) and url_password(text):
        return True
    if not is_secret_name(name):
        return bool(TOKEN_PATTERN.fullmatch(text))
    return not is_setting(text)


def is_possible_secret_name(name: str) -> bool:
    """Return True if values with this name are masked in other programs' output. Broader than `is_secret_name`."""
    normalized = _normalize_name(name)
    is_possible = (
        bool(_POSSIBLE_SECRET_NAME_PATTERN.search(normalized))
        and not _PUBLIC_NAME_PATTERN.search(normalized)
        and normalized not in ("PWD", "OLDPWD")
    )
    return is_secret_name(name) or (
        is_possible and (normalized.endswith("WEBHOOK_URL") or not _DESCRIPTIVE_SUFFIX_PATTERN.search(normalized))
    )


def is_setting(value: str) -> bool:
    """Return True if a value can't be a secret: a number, a switch, a reference or the name of a secret, as in
    `token_secret: HF_TOKEN`."""
    text = value.strip()
    is_variable = re.fullmatch(r"[A-Z]+(_[A-Z]+)+", text) is not None and is_secret_name(text)
    return is_variable or bool(_SETTING_PATTERN.fullmatch(text) or _REFERENCE_PATTERN.fullmatch(text))


def url_password(url: str) -> str:
    """Return the password in a URL (http://user:PASSWORD@proxy:3128), still encoded; empty if absent or an expression."""
    match = _URL_WITH_PASSWORD_PATTERN.match(url.strip())
    return match[1] if match and not _REFERENCE_PATTERN.fullmatch(match[1]) else ""


def find_plain_secrets(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths (keys and indexes) of the secrets in a YAML value. An item's name is the name of its list."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from find_plain_secrets(child, (*path, name))
    elif isinstance(value, list | tuple):
        for n, child in enumerate(value):
            yield from find_plain_secrets(child, (*path, n))
    elif is_secret(next((name for name in reversed(path) if isinstance(name, str)), ""), value):
        yield path


def has_secret(line: str) -> bool:
    """Return True if a line contains a secret: a token in a known format, or a value assigned to a secret's name."""
    if TOKEN_PATTERN.search(line):
        return True
    match = _ASSIGNMENT_PATTERN.match(line)
    return match is not None and is_secret(match[1], match[2])
