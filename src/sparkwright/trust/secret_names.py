"""Which names stand for a secret, and which only look like one. Data.

What refuses a secret in the wrong place asks here, and hidden.py, which shows none.
"""

from __future__ import annotations

import re

#: the last word, or the last two, of a name that holds a secret itself
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|PAT)$|PASSWORD|SECRET")
#: ends that say where a secret is, or something about it
_ABOUT = re.compile(r"_(FILE|PATH|DIR|FOLDER|URL|URI|NAME|ID|ENV|TTL|TYPE|LENGTH|SIZE|LIMIT|COUNT|TOKENS)$")
#: keys and tokens that everybody may see
_OPEN = re.compile(
    r"(^|_)(PUBLIC|CACHE|SORT|PRIMARY|FOREIGN|PARTITION|GROUP|INDEX|BASELINE|HOST|PAD|EOS|BOS|UNK|MASK|SEP|STOP|START|END|"
    r"IMPLICIT)_(KEY|TOKEN)$"
)
#: values that are settings, whatever the name: numbers, switches, nothing
_SETTING = re.compile(r"[+-]?[0-9]{0,7}([.][0-9]*)?|true|false|yes|no|on|off|none|null|auto", re.I)
#: tokens that say by themselves what they are: Hugging Face, OpenAI and its kin, GitHub, GitLab, Slack, NVIDIA, AWS
_TOKEN = re.compile(r"(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abp]-|nvapi-|AKIA)[A-Za-z0-9_-]{16,}")
#: an expression or a shell's variable names a secret, and holds none
_VARIABLE = re.compile(r"\$\{?\w+\}?")


def names_a_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret: HF_TOKEN does; MAX_TOKENS, KEY_FILE and TOKENIZERS_PARALLELISM don't."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").replace(".", "_").upper()
    return bool(_SECRET.search(plain)) and not _ABOUT.search(plain) and not _OPEN.search(plain)


def is_secret(name: str, value: object) -> bool:
    """Whether a value given under this name is a secret itself, not a setting and not a reference to one."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    if not names_a_secret(name):
        return bool(_TOKEN.fullmatch(text))
    return not (_SETTING.fullmatch(text) or _is_reference(text) or _is_variable(text))


def _is_reference(text: str) -> bool:
    """An expression, or a variable that something else fills in."""
    return bool((text.startswith("{{") and text.endswith("}}")) or _VARIABLE.fullmatch(text))


def _is_variable(text: str) -> bool:
    """Whether a text is the name of a secret, as in `token_secret: HF_TOKEN`."""
    return re.fullmatch(r"[A-Z]+(_[A-Z]+)+", text) is not None and names_a_secret(text)
