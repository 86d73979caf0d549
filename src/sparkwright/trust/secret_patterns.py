"""Redaction of secrets whose values are unknown, which are found by their names and formats and replaced with dots.

It is used for everything that is shown of other people's containers, commands and logs: arguments, shell text, JSON, YAML, URLs
and headers, nested and quoted at any depth. It hides too much rather than too little. redact.py hides known values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.trust.redact import DOTS
from sparkwright.trust.secret_names import TOKEN, is_secret, is_setting, may_name_a_secret

_PEM = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL)
#: a URL's password, or everything before its @
_IN_URL = re.compile(
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
_USER = re.compile(
    r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)"
    r"(?P<next>\\{0,8}[\"']\s{0,8},\s{0,8}|\s{0,8}\n\s{0,40}-\s{1,8}|\s{1,8}(?:\\\n\s{0,40})?|(?<![a-z]{2})|=)"
    r"(?:(?P<slashes>\\{0,8})(?P<mark>[\"'])[^:\"'/\r\n]{1,200}|[^\s:\"'/\\]{1,200}):"
)
_PLAIN = re.compile(r"[^\s\"']{0,500}")
#: one-letter options that take a password, with the programs where they do
_PROGRAMS = {"-p": frozenset(("login", "sshpass")), "-a": frozenset(("redis-cli",))}
_USERS = ("-u", "--user", "--proxy-user", "-U")
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
BACK_CHARS, ON_CHARS = 4096, 16384
_ENDS = frozenset(";&|<>)}]\r\n\t ")


def text(given: str, mask: str = DOTS) -> str:
    """Return a text (a log, a message, a script, a file) with secrets masked."""
    given = _PEM.sub(rf"\1{mask}\2", given)
    given = _IN_URL.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, given)
    given = _HEADER.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, given)
    given = _BEARER.sub(rf"\1{mask}", given)
    given = _LOGIN.sub(lambda found: found[0] if is_setting(found[2]) else found[1] + mask, given)
    given = _logins(given, mask)
    return TOKEN.sub(mask, _named(given, mask))


def shown(given: Any, name: str = "", mask: str = DOTS) -> Any:
    """Return a JSON value with secrets masked, by the names of its fields and by format.

    Args:
        given: for example an inspection of a container, its settings, labels, or a command.
        name: name of the value.
    """
    if isinstance(given, Mapping):
        return _fields(given, mask)
    if isinstance(given, list | tuple):
        return mask_words(given, mask, name)
    if not isinstance(given, str) or not given:
        return given
    return mask if _is_secret(name, given) else text(given, mask)


def leaves(given: Any, mask: str = DOTS) -> Any:
    """Return a value of our own, such as an event, with its texts masked by `text`. Field names need no check."""
    if isinstance(given, Mapping):
        return {key: leaves(value, mask) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [leaves(item, mask) for item in given]
    return text(given, mask) if isinstance(given, str) else given


def variables(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment or labels with secrets masked."""
    return {name: shown(value, name) for name, value in env.items()}


def pairs(env: Sequence[str]) -> list[str]:
    """Return an environment in Docker's format, NAME=VALUE, with secrets masked."""
    return [_pair(item, DOTS) if _PAIR.match(item) else text(item) for item in env]


def words(command: Sequence[str]) -> list[str]:
    """Return a command line with secrets masked, in --flag=VALUE, --flag VALUE VALUE, and a script in one argument."""
    return mask_words(command, DOTS)


def mask_words(command: Sequence[Any], mask: str, name: str = "") -> list[Any]:
    """Return the arguments of a command or the items of a list with secrets masked. name: name of the list."""
    found: list[Any] = []
    hide = False
    for n, word in enumerate(command):
        if not isinstance(word, str):
            found.append(shown(word, name, mask))
            continue
        if (login := _PASSWORD_IN.fullmatch(word)) and not is_setting(login[2]):
            found.append(login[1] + mask)
        elif word.startswith("-") and not word[1:2].isspace():
            flag, equals, _ = word.partition("=")
            secret = may_name_a_secret(flag.lstrip("-")) or not _PROGRAMS.get(flag, frozenset()).isdisjoint(
                map(str, command[:n])
            )
            hide = secret and not equals
            found.append(f"{flag}={mask}" if secret and equals else text(word, mask))
        elif hide:
            found.append(word if is_setting(word) else mask)
        elif n and command[n - 1] in _USERS and (login := _PASSWORD_OF.fullmatch(word)) and not is_setting(login[2]):
            found.append(login[1] + mask)
        elif _PAIR.match(word) and "\n" not in word:
            found.append(_pair(word, mask))
        else:
            found.append(shown(word, name, mask))
    return found


def value(name: str, reported: Any) -> Any:
    """Return the value of a container's field or of a flag (--name) with secrets masked, for a diff."""
    if reported is None or reported == "":
        return reported
    if isinstance(reported, Mapping):
        return variables(reported)
    if name.startswith("-") and may_name_a_secret(name.lstrip("-")):
        return DOTS
    return " ".join(words(reported.split(" "))) if isinstance(reported, str) else shown(reported)


def _fields(given: Mapping[Any, Any], mask: str) -> dict[Any, Any]:
    """Return an object with its fields masked. In a variable such as {"name": ..., "value": ...}, the name decides."""
    lower = {str(key).lower(): value for key, value in given.items()}
    named = next((str(lower[key]) for key in ("name", "key") if isinstance(lower.get(key), str)), "")
    named = named if "value" in lower else ""
    return {
        key: shown(value, named if named and str(key).lower() == "value" else str(key), mask)
        if not (named and str(key).lower() in ("name", "key"))
        else value
        for key, value in given.items()
    }


def _pair(pair: str, mask: str) -> str:
    name, _, value = pair.partition("=")
    return f"{name}={shown(value, name, mask)}"


def _is_secret(name: str, given: str) -> bool:
    return is_secret(name, given) or (may_name_a_secret(name) and not is_setting(given))


# -- names in a text -------------------------------------------------------------------------------------------------


def _logins(given: str, mask: str) -> str:
    """Mask the passwords in USER:PASSWORD, up to the end of the quotes."""
    done: list[str] = []
    at = 0
    for found in _USER.finditer(given):
        begin, mark, depth = found.end(), found["mark"], len(found["slashes"] or "")
        if begin < at:
            continue
        opening = given[found.start() - 1 : found.start()]
        if not mark and found["next"] in ("", "=") and opening in ("'", '"'):  # "--user=name:a password"
            mark, depth = opening, _slashes_before(given, found.start() - 1)
        plain = _PLAIN.match(given, begin)
        end = _closed(given, begin, mark, depth) - 1 - depth if mark else plain.end() if plain else begin
        if end > begin and not given.startswith("$(", begin) and not is_setting(given[begin:end]):
            done += [given[at:begin], mask]
            at = end
    return "".join([*done, given[at:]])


def _named(given: str, mask: str) -> str:
    """Mask values that have a secret's name."""
    done: list[str] = []
    at = 0
    for found in _NAMED.finditer(given):
        if found.start() < at or not may_name_a_secret(found["name"]) or (found["next"] and not found["dashes"]):
            continue
        begin, quote = found.end(), given[found.start() - 1 : found.start()]
        if quote in ("'", '"') and not found["dashes"] and quote not in found["between"]:  # 'NAME=a value'
            end = _closed(given, begin, quote, _slashes_before(given, found.start() - 1)) - 1
        else:
            end = _end(
                given, begin, multiline=bool(found["next"]) and found["next"].isspace() and "\n" not in found["next"]
            )
        opened = len(given[begin:end]) - len(given[begin:end].lstrip("\\\"'"))
        held = given[begin + opened : end].rstrip("\\\"'")
        if held and held[0] != "{" and not is_setting(held):
            closing = end - len(given[begin:end]) + len(given[begin:end].rstrip("\\\"'"))
            done += [given[at : begin + opened], mask]
            at = closing
    return "".join([*done, given[at:]])


def _end(given: str, begin: int, *, multiline: bool) -> int:
    """Return the end of the value that begins here. multiline: include the following words, up to the next option."""
    at, size = begin, len(given)
    inside = max(given.rfind("\n", max(begin - BACK_CHARS, 0), begin) + 1, begin - BACK_CHARS, 0)
    while at < size:
        letter = given[at]
        quoted = at + _slashes(given, at)
        if quoted < size and given[quoted] in "\"'":
            mark, depth = given[quoted], quoted - at
            if at > begin and _odd(given[inside:begin], mark):
                return at  # end of the enclosing quotes
            at = _closed(given, quoted + 1, mark, depth)
        elif letter == "," and (at + 1 == size or given[at + 1] in " \t\r\n\"'\\"):
            return at
        elif letter == " " and multiline and at + 1 < size and given[at + 1] not in "-;&|<>#\\ \"'":
            at += 1
        elif letter in _ENDS:
            return at
        else:
            at += 2 if letter == "\\" else 1
    return min(at, size)


def _closed(given: str, at: int, mark: str, depth: int) -> int:
    """Return the end of quotes with this depth of escaping, or the end of the text."""
    limit = min(at + ON_CHARS, len(given))
    while (at := given.find(mark, at, limit)) >= 0:
        if _slashes_before(given, at) == depth or (mark == "'" and not depth):
            return at + 1
        at += 1
    return limit


def _slashes(given: str, at: int) -> int:
    end = at
    while end < len(given) and given[end] == "\\":
        end += 1
    return end - at


def _slashes_before(given: str, at: int) -> int:
    begin = at
    while begin and given[begin - 1] == "\\":
        begin -= 1
    return at - begin


def _odd(given: str, mark: str) -> bool:
    """Return True if a quote is still open at the end of this part of a line."""
    return len(re.findall(rf"(?<!\\){mark}", given)) % 2 == 1
