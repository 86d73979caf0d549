"""Redaction of secrets whose values are unknown, which are found by their names and formats and replaced with dots.

It is used for everything that is shown of other people's containers, commands and logs: arguments, shell text, JSON, YAML, URLs
and headers, nested and quoted at any depth. It hides too much rather than too little. redact.py hides known values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.trust.redact import MASK
from sparkwright.trust.secret_names import TOKEN, is_possible_secret_name, is_secret, is_setting

_PEM = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL)
#: a URL's password, or everything before its @
_URL_PASSWORD = re.compile(
    r"(://(?:[^/?#\s:@\"'\\]{0,200}:(?=[^/?#\s:@\"'\\])|(?=[^/?#\s:@\"'\\]{16})))([^/?#\s:@\"'\\]{1,500})(?=@)"
)
#: a header with any quotes and assignment, where the rest of the line is the secret
_HEADER = re.compile(
    r"((?:authorization|cookie)\\{0,8}[\"']?\s{0,8}[:=]\s{0,8}\\{0,8}[\"']?(?:(?:bearer|basic|token|digest|apikey)\s{1,8})?)"
    r"([^\s\"'\\][^\"'\\\r\n]{0,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(\b[Bb](?:earer|EARER)\s{1,8})(?=[a-z]{0,40}[A-Z0-9._~+/=-]|[a-z]{20})([A-Za-z0-9._~+/=:-]{6,4000})"
)
#: the password of programs that take it as a one-letter option
_LOGIN = re.compile(
    r"(?<![\w-])(sshpass\s{1,8}-p\s{0,8}[\"']?|(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\s[^|;&\n]{0,200}?\s-p[\"']?|"
    r"redis-cli\s[^|;&\n]{0,200}?-a\s{1,8}[\"']?|login\s[^|;&\n]{0,200}?(?<!\S)-p\s{1,8}[\"']?)([^\s\"']{1,500})"
)
#: the option with USER:PASSWORD of curl and others, up to the colon, in the same word, the next word or the next item of a list
_USER_OPTION = re.compile(
    r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)"
    r"(?P<next>\\{0,8}[\"']\s{0,8},\s{0,8}|\s{0,8}\n\s{0,40}-\s{1,8}|\s{1,8}(?:\\\n\s{0,40})?|(?<![a-z]{2})|=)"
    r"(?:(?P<slashes>\\{0,8})(?P<mark>[\"'])[^:\"'/\r\n]{1,200}|[^\s:\"'/\\]{1,200}):"
)
_PLAIN = re.compile(r"[^\s\"']{0,500}")
#: one-letter options that take a password, with the programs where they do
_PASSWORD_PROGRAMS = {"-p": frozenset(("login", "sshpass")), "-a": frozenset(("redis-cli",))}
_USER_OPTIONS = ("-u", "--user", "--proxy-user", "-U")
_PASSWORD_OF = re.compile(r"([^:/\r\n]{1,200}:)(.{1,4000})", re.DOTALL)
_PASSWORD_IN = re.compile(r"((?:-[uU]=?|--(?:proxy-)?user=)[^:/\r\n]{1,200}:)(.{1,4000})", re.DOTALL)
#: a name and the text before its value: an assignment in any quotes, the next word of a command or list, or the `value` of an
#: object with a `name`. "no token: the server hangs" is excluded.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?<!no )(?P<dashes>-{0,2})(?P<name>[A-Za-z_][A-Za-z0-9_.-]{1,100})"
    r"(?P<between>\\{0,8}[\"']?\s{0,8}(?:=|:(?!//))\s{0,8}\[?\s{0,8}"
    r"|\\{0,8}[\"']?\s{0,8},?\s{0,8}\\{0,8}[\"']?[Vv]alue\\{0,8}[\"']?\s{0,8}[:=]\s{0,8}"
    r"|(?P<next>\\{0,8}[\"']\s{0,8},\s{0,8}|\s{0,8}\n\s{0,40}-\s{1,8}|[ \t]{1,8}(?:\\\n\s{0,40})?))"
)
_PAIR = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,200}=")
#: how far to search for quotes, back to their start and forward to their end
MAX_LOOKBEHIND_CHARS, MAX_LOOKAHEAD_CHARS = 4096, 16384
_ENDS = frozenset(";&|<>)}]\r\n\t ")


def mask_text(content: str, mask: str = MASK) -> str:
    """Return a text (a log, a message, a script, a file) with secrets masked."""
    content = _PEM.sub(rf"\1{mask}\2", content)
    content = _URL_PASSWORD.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, content)
    content = _HEADER.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, content)
    content = _BEARER.sub(rf"\1{mask}", content)
    content = _LOGIN.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, content)
    content = _mask_logins(content, mask)
    return TOKEN.sub(mask, _mask_named_values(content, mask))


def mask_value(data: Any, name: str = "", mask: str = MASK) -> Any:
    """Return a JSON value with secrets masked, by the names of its fields and by format.

    Args:
        data: for example an inspection of a container, its settings, labels, or a command.
        name: name of the value.
    """
    if isinstance(data, Mapping):
        return _mask_fields(data, mask)
    if isinstance(data, list | tuple):
        return mask_words(data, mask, name)
    if not isinstance(data, str) or not data:
        return data
    return mask if _is_secret(name, data) else mask_text(data, mask)


def mask_texts(data: Any, mask: str = MASK) -> Any:
    """Return a value of our own, such as an event, with its texts masked by `mask_text`. Field names need no check."""
    if isinstance(data, Mapping):
        return {key: mask_texts(value, mask) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [mask_texts(item, mask) for item in data]
    return mask_text(data, mask) if isinstance(data, str) else data


def mask_variables(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment or labels with secrets masked."""
    return {name: mask_value(value, name) for name, value in env.items()}


def mask_pairs(env: Sequence[str]) -> list[str]:
    """Return an environment in Docker's format, NAME=VALUE, with secrets masked."""
    return [_mask_pair(item, MASK) if _PAIR.match(item) else mask_text(item) for item in env]


def mask_command(command: Sequence[str]) -> list[str]:
    """Return a command line with secrets masked, in --flag=VALUE, --flag VALUE VALUE, and a script in one argument."""
    return mask_words(command, MASK)


def mask_words(command: Sequence[Any], mask: str, name: str = "") -> list[Any]:
    """Return the arguments of a command or the items of a list with secrets masked. name: name of the list."""
    masked: list[Any] = []
    hide = False
    for n, word in enumerate(command):
        if not isinstance(word, str):
            masked.append(mask_value(word, name, mask))
            continue
        if (login := _PASSWORD_IN.fullmatch(word)) and not is_setting(login[2]):
            masked.append(login[1] + mask)
        elif word.startswith("-") and not word[1:2].isspace():
            flag, equals, _ = word.partition("=")
            secret = is_possible_secret_name(flag.lstrip("-")) or not _PASSWORD_PROGRAMS.get(
                flag, frozenset()
            ).isdisjoint(map(str, command[:n]))
            hide = secret and not equals
            masked.append(f"{flag}={mask}" if secret and equals else mask_text(word, mask))
        elif hide:
            masked.append(word if is_setting(word) else mask)
        elif (
            n
            and command[n - 1] in _USER_OPTIONS
            and (login := _PASSWORD_OF.fullmatch(word))
            and not is_setting(login[2])
        ):
            masked.append(login[1] + mask)
        elif _PAIR.match(word) and "\n" not in word:
            masked.append(_mask_pair(word, mask))
        else:
            masked.append(mask_value(word, name, mask))
    return masked


def mask_field(name: str, reported: Any) -> Any:
    """Return the value of a container's field or of a flag (--name) with secrets masked, for a diff."""
    if reported is None or reported == "":
        return reported
    if isinstance(reported, Mapping):
        return mask_variables(reported)
    if name.startswith("-") and is_possible_secret_name(name.lstrip("-")):
        return MASK
    return " ".join(mask_command(reported.split(" "))) if isinstance(reported, str) else mask_value(reported)


def _mask_fields(fields: Mapping[Any, Any], mask: str) -> dict[Any, Any]:
    """Return an object with its fields masked. In a variable such as {"name": ..., "value": ...}, the name decides."""
    lower = {str(key).lower(): value for key, value in fields.items()}
    variable = next((str(lower[key]) for key in ("name", "key") if isinstance(lower.get(key), str)), "")
    variable = variable if "value" in lower else ""
    return {
        key: mask_value(value, variable if variable and str(key).lower() == "value" else str(key), mask)
        if not (variable and str(key).lower() in ("name", "key"))
        else value
        for key, value in fields.items()
    }


def _mask_pair(pair: str, mask: str) -> str:
    name, _, value = pair.partition("=")
    return f"{name}={mask_value(value, name, mask)}"


def _is_secret(name: str, value: str) -> bool:
    return is_secret(name, value) or (is_possible_secret_name(name) and not is_setting(value))


# -- names in a text -------------------------------------------------------------------------------------------------


def _mask_logins(content: str, mask: str) -> str:
    """Mask the passwords in USER:PASSWORD, up to the end of the quotes."""
    parts: list[str] = []
    at = 0
    for match in _USER_OPTION.finditer(content):
        begin, mark, depth = match.end(), match["mark"], len(match["slashes"] or "")
        if begin < at:
            continue
        opening = content[match.start() - 1 : match.start()]
        if not mark and match["next"] in ("", "=") and opening in ("'", '"'):  # "--user=name:a password"
            mark, depth = opening, _count_backslashes_before(content, match.start() - 1)
        plain = _PLAIN.match(content, begin)
        end = _closing_quote_end(content, begin, mark, depth) - 1 - depth if mark else plain.end() if plain else begin
        if end > begin and not content.startswith("$(", begin) and not is_setting(content[begin:end]):
            parts += [content[at:begin], mask]
            at = end
    return "".join([*parts, content[at:]])


def _mask_named_values(content: str, mask: str) -> str:
    """Mask values that have a secret's name."""
    parts: list[str] = []
    at = 0
    for match in _NAMED.finditer(content):
        if match.start() < at or not is_possible_secret_name(match["name"]) or (match["next"] and not match["dashes"]):
            continue
        begin, quote = match.end(), content[match.start() - 1 : match.start()]
        if quote in ("'", '"') and not match["dashes"] and quote not in match["between"]:  # 'NAME=a value'
            end = _closing_quote_end(content, begin, quote, _count_backslashes_before(content, match.start() - 1)) - 1
        else:
            end = _value_end(
                content, begin, multiline=bool(match["next"]) and match["next"].isspace() and "\n" not in match["next"]
            )
        opened = len(content[begin:end]) - len(content[begin:end].lstrip("\\\"'"))
        secret = content[begin + opened : end].rstrip("\\\"'")
        if secret and secret[0] != "{" and not is_setting(secret):
            closing = end - len(content[begin:end]) + len(content[begin:end].rstrip("\\\"'"))
            parts += [content[at : begin + opened], mask]
            at = closing
    return "".join([*parts, content[at:]])


def _value_end(content: str, begin: int, *, multiline: bool) -> int:
    """Return the end of the value that begins here. multiline: include the following words, up to the next option."""
    at, size = begin, len(content)
    inside = max(content.rfind("\n", max(begin - MAX_LOOKBEHIND_CHARS, 0), begin) + 1, begin - MAX_LOOKBEHIND_CHARS, 0)
    while at < size:
        letter = content[at]
        quoted = at + _count_backslashes(content, at)
        if quoted < size and content[quoted] in "\"'":
            mark, depth = content[quoted], quoted - at
            if at > begin and _is_quote_open(content[inside:begin], mark):
                return at  # end of the enclosing quotes
            at = _closing_quote_end(content, quoted + 1, mark, depth)
        elif letter == "," and (at + 1 == size or content[at + 1] in " \t\r\n\"'\\"):
            return at
        elif letter == " " and multiline and at + 1 < size and content[at + 1] not in "-;&|<>#\\ \"'":
            at += 1
        elif letter in _ENDS:
            return at
        else:
            at += 2 if letter == "\\" else 1
    return min(at, size)


def _closing_quote_end(content: str, at: int, mark: str, depth: int) -> int:
    """Return the end of quotes with this depth of escaping, or the end of the text."""
    limit = min(at + MAX_LOOKAHEAD_CHARS, len(content))
    while (at := content.find(mark, at, limit)) >= 0:
        if _count_backslashes_before(content, at) == depth or (mark == "'" and not depth):
            return at + 1
        at += 1
    return limit


def _count_backslashes(content: str, at: int) -> int:
    end = at
    while end < len(content) and content[end] == "\\":
        end += 1
    return end - at


def _count_backslashes_before(content: str, at: int) -> int:
    begin = at
    while begin and content[begin - 1] == "\\":
        begin -= 1
    return at - begin


def _is_quote_open(content: str, mark: str) -> bool:
    """Return True if a quote is still open at the end of this part of a line."""
    return len(re.findall(rf"(?<!\\){mark}", content)) % 2 == 1
