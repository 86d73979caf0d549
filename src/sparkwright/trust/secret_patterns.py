"""Masks secrets whose values are unknown, found by their names and formats.

It applies to everything shown from containers, commands and logs: arguments, shell text, JSON, YAML, URLs and headers, nested
and quoted at any depth. It masks too much rather than too little. redact.py replaces known values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.trust.redact import MASK
from sparkwright.trust.secret_names import TOKEN_PATTERN, is_possible_secret_name, is_secret, is_setting

_PEM_PATTERN = re.compile(
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
#: a URL's password, or its user information if that has no password and is at least 16 characters long
_URL_PASSWORD_PATTERN = re.compile(
    r"(://(?:[^/?#\s:@\"'\\]{0,200}:(?=[^/?#\s:@\"'\\])|(?=[^/?#\s:@\"'\\]{16})))([^/?#\s:@\"'\\]{1,500})(?=@)"
)
#: an Authorization or Cookie header, with or without quotes; the secret is the rest of the line
_HEADER_PATTERN = re.compile(
    r"((?:authorization|cookie)\\{0,8}[\"']?\s{0,8}[:=]\s{0,8}\\{0,8}[\"']?(?:(?:bearer|basic|token|digest|apikey)\s{1,8})?)"
    r"([^\s\"'\\][^\"'\\\r\n]{0,4000})",
    re.IGNORECASE,
)
_BEARER_PATTERN = re.compile(
    r"(\b[Bb](?:earer|EARER)\s{1,8})(?=[a-z]{0,40}[A-Z0-9._~+/=-]|[a-z]{20})([A-Za-z0-9._~+/=:-]{6,4000})"
)
#: programs with a one-letter option for the password
_LOGIN_PATTERN = re.compile(
    r"(?<![\w-])(sshpass\s{1,8}-p\s{0,8}[\"']?|(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\s[^|;&\n]{0,200}?\s-p[\"']?|"
    r"redis-cli\s[^|;&\n]{0,200}?-a\s{1,8}[\"']?|login\s[^|;&\n]{0,200}?(?<!\S)-p\s{1,8}[\"']?)([^\s\"']{1,500})"
)
#: an option with USER:PASSWORD, such as curl's, up to the colon; the value is in the same word, next word or next list item
_USER_OPTION_PATTERN = re.compile(
    r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)"
    r"(?P<next>\\{0,8}[\"']\s{0,8},\s{0,8}|\s{0,8}\n\s{0,40}-\s{1,8}|\s{1,8}(?:\\\n\s{0,40})?|(?<![a-z]{2})|=)"
    r"(?:(?P<slashes>\\{0,8})(?P<quote>[\"'])[^:\"'/\r\n]{1,200}|[^\s:\"'/\\]{1,200}):"
)
_UNQUOTED_VALUE_PATTERN = re.compile(r"[^\s\"']{0,500}")
#: one-letter options for a password, and the programs that have them
_PASSWORD_PROGRAMS = {"-p": frozenset(("login", "sshpass")), "-a": frozenset(("redis-cli",))}
_USER_OPTIONS = ("-u", "--user", "--proxy-user", "-U")
_USER_PASSWORD_PATTERN = re.compile(r"([^:/\r\n]{1,200}:)(.{1,4000})", re.DOTALL)
_OPTION_USER_PASSWORD_PATTERN = re.compile(r"((?:-[uU]=?|--(?:proxy-)?user=)[^:/\r\n]{1,200}:)(.{1,4000})", re.DOTALL)
#: a name and the text between it and its value: an assignment with or without quotes, the space before a command's or list's next
#: word, or the text up to `value` in an object with `name`. "no token: the server hangs" is excluded.
_NAMED_VALUE_PATTERN = re.compile(
    r"(?<![A-Za-z0-9_.-])(?<!no )(?P<dashes>-{0,2})(?P<name>[A-Za-z_][A-Za-z0-9_.-]{1,100})"
    r"(?P<between>\\{0,8}[\"']?\s{0,8}(?:=|:(?!//))\s{0,8}\[?\s{0,8}"
    r"|\\{0,8}[\"']?\s{0,8},?\s{0,8}\\{0,8}[\"']?[Vv]alue\\{0,8}[\"']?\s{0,8}[:=]\s{0,8}"
    r"|(?P<next>\\{0,8}[\"']\s{0,8},\s{0,8}|\s{0,8}\n\s{0,40}-\s{1,8}|[ \t]{1,8}(?:\\\n\s{0,40})?))"
)
_PAIR_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,200}=")
#: maximum distances to search for an opening and a closing quote
MAX_LOOKBEHIND_CHARS, MAX_LOOKAHEAD_CHARS = 4096, 16384
_VALUE_END_CHARS = frozenset(";&|<>)}]\r\n\t ")


def mask_text(content: str, mask: str = MASK) -> str:
    """Mask secrets in a log, message, script or file."""

    def mask_second_group(match: re.Match[str]) -> str:
        return match[0] if is_setting(match[2]) else match[1] + mask

    content = _PEM_PATTERN.sub(rf"\1{mask}\2", content)
    content = _URL_PASSWORD_PATTERN.sub(mask_second_group, content)
    content = _HEADER_PATTERN.sub(mask_second_group, content)
    content = _BEARER_PATTERN.sub(rf"\1{mask}", content)
    content = _LOGIN_PATTERN.sub(mask_second_group, content)
    content = _mask_user_passwords(content, mask)
    return TOKEN_PATTERN.sub(mask, _mask_named_values(content, mask))


def mask_value(data: Any, name: str = "", mask: str = MASK) -> Any:
    """Mask secrets in a JSON value, such as a container's inspection, by field names and formats. name: name of the value."""
    if isinstance(data, Mapping):
        return _mask_fields(data, mask)
    if isinstance(data, list | tuple):
        return mask_words(data, mask, name)
    if not isinstance(data, str) or not data:
        return data
    is_masked = is_secret(name, data) or (is_possible_secret_name(name) and not is_setting(data))
    return mask if is_masked else mask_text(data, mask)


def mask_texts(data: Any, mask: str = MASK) -> Any:
    """Apply `mask_text` to all strings of a JSON value with sparkwright's field names, such as an event."""
    if isinstance(data, Mapping):
        return {key: mask_texts(value, mask) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [mask_texts(item, mask) for item in data]
    return mask_text(data, mask) if isinstance(data, str) else data


def mask_words(words: Sequence[Any], mask: str = MASK, name: str = "") -> list[Any]:
    """Mask secrets in the arguments of a command or the items of a list. name: name of the list.

    A secret is in --flag=VALUE, in all words after --flag up to the next option, in NAME=VALUE, or in a script in one argument.
    """
    masked: list[Any] = []
    is_after_secret_flag = False
    for n, word in enumerate(words):
        if not isinstance(word, str):
            masked.append(mask_value(word, name, mask))
            continue
        if (user_password := _OPTION_USER_PASSWORD_PATTERN.fullmatch(word)) and not is_setting(user_password[2]):
            masked.append(user_password[1] + mask)
        elif word.startswith("-") and not word[1:2].isspace():
            flag, equals, _ = word.partition("=")
            programs = _PASSWORD_PROGRAMS.get(flag, frozenset())
            is_secret_flag = is_possible_secret_name(flag.lstrip("-")) or not programs.isdisjoint(map(str, words[:n]))
            is_after_secret_flag = is_secret_flag and not equals
            masked.append(f"{flag}={mask}" if is_secret_flag and equals else mask_text(word, mask))
        elif is_after_secret_flag:
            masked.append(word if is_setting(word) else mask)
        elif (
            n
            and words[n - 1] in _USER_OPTIONS
            and (user_password := _USER_PASSWORD_PATTERN.fullmatch(word))
            and not is_setting(user_password[2])
        ):
            masked.append(user_password[1] + mask)
        elif _PAIR_PATTERN.match(word) and "\n" not in word:
            variable, _, value = word.partition("=")
            masked.append(f"{variable}={mask_value(value, variable, mask)}")
        else:
            masked.append(mask_value(word, name, mask))
    return masked


def mask_field(name: str, field_value: Any) -> Any:
    """Mask secrets in the value of a container's field or of a flag (--name), for a diff."""
    if field_value is None or field_value == "":
        return field_value
    if isinstance(field_value, Mapping):
        return {key: mask_value(value, key) for key, value in field_value.items()}
    if name.startswith("-") and is_possible_secret_name(name.lstrip("-")):
        return MASK
    return " ".join(mask_words(field_value.split(" "))) if isinstance(field_value, str) else mask_value(field_value)


def _mask_fields(fields: Mapping[Any, Any], mask: str) -> dict[Any, Any]:
    """Mask the fields of an object. In {"name": NAME, "value": VALUE}, NAME is the name of VALUE."""
    values_by_lower_name = {str(key).lower(): value for key, value in fields.items()}
    variable = next(
        (str(values_by_lower_name[key]) for key in ("name", "key") if isinstance(values_by_lower_name.get(key), str)),
        "",
    )
    variable = variable if "value" in values_by_lower_name else ""
    return {
        key: mask_value(value, variable if variable and str(key).lower() == "value" else str(key), mask)
        if not (variable and str(key).lower() in ("name", "key"))
        else value
        for key, value in fields.items()
    }


# -- names in a text -------------------------------------------------------------------------------------------------


def _mask_user_passwords(content: str, mask: str) -> str:
    """Mask the password in options with USER:PASSWORD, up to the closing quote or the next space."""
    parts: list[str] = []
    position = 0
    for match in _USER_OPTION_PATTERN.finditer(content):
        begin, quote, depth = match.end(), match["quote"], len(match["slashes"] or "")
        if begin < position:
            continue
        opening = content[match.start() - 1 : match.start()]
        if not quote and match["next"] in ("", "=") and opening in ("'", '"'):  # "--user=name:a password"
            quote, depth = opening, _count_backslashes_before(content, match.start() - 1)
        unquoted_value = _UNQUOTED_VALUE_PATTERN.match(content, begin)
        end = (
            _closing_quote_end(content, begin, quote, depth) - 1 - depth
            if quote
            else unquoted_value.end()
            if unquoted_value
            else begin
        )
        if end > begin and not content.startswith("$(", begin) and not is_setting(content[begin:end]):
            parts += [content[position:begin], mask]
            position = end
    return "".join([*parts, content[position:]])


def _mask_named_values(content: str, mask: str) -> str:
    """Mask values that are assigned to, or follow, the name of a secret."""
    parts: list[str] = []
    position = 0
    for match in _NAMED_VALUE_PATTERN.finditer(content):
        if (
            match.start() < position
            or not is_possible_secret_name(match["name"])
            or (match["next"] and not match["dashes"])
        ):
            continue
        begin, quote = match.end(), content[match.start() - 1 : match.start()]
        if quote in ("'", '"') and not match["dashes"] and quote not in match["between"]:  # 'NAME=a value'
            end = _closing_quote_end(content, begin, quote, _count_backslashes_before(content, match.start() - 1)) - 1
        else:
            is_next_word = bool(match["next"]) and match["next"].isspace() and "\n" not in match["next"]
            end = _value_end(content, begin, several_words=is_next_word)
        value = content[begin:end]
        secret = value.lstrip("\\\"'")
        secret_begin = end - len(secret)
        secret = secret.rstrip("\\\"'")
        if secret and secret[0] != "{" and not is_setting(secret):
            parts += [content[position:secret_begin], mask]
            position = secret_begin + len(secret)
    return "".join([*parts, content[position:]])


def _value_end(content: str, begin: int, *, several_words: bool) -> int:
    """Return the end of the value at `begin`. several_words: the value includes all words up to the next option."""
    position, size = begin, len(content)
    line_begin = max(
        content.rfind("\n", max(begin - MAX_LOOKBEHIND_CHARS, 0), begin) + 1, begin - MAX_LOOKBEHIND_CHARS, 0
    )
    while position < size:
        char = content[position]
        quote_at = position
        while quote_at < size and content[quote_at] == "\\":
            quote_at += 1
        if quote_at < size and content[quote_at] in "\"'":
            quote, depth = content[quote_at], quote_at - position
            if position > begin and _is_quote_open(content[line_begin:begin], quote):
                return position  # end of the enclosing quotes
            position = _closing_quote_end(content, quote_at + 1, quote, depth)
        elif char == "," and (position + 1 == size or content[position + 1] in " \t\r\n\"'\\"):
            return position
        elif char == " " and several_words and position + 1 < size and content[position + 1] not in "-;&|<>#\\ \"'":
            position += 1
        elif char in _VALUE_END_CHARS:
            return position
        else:
            position += 2 if char == "\\" else 1
    return min(position, size)


def _closing_quote_end(content: str, position: int, quote: str, depth: int) -> int:
    """Return the position after the closing quote, or the search limit if there is none.

    depth: number of backslashes before each of the two quotes.
    """
    limit = min(position + MAX_LOOKAHEAD_CHARS, len(content))
    while (position := content.find(quote, position, limit)) >= 0:
        if _count_backslashes_before(content, position) == depth or (quote == "'" and not depth):
            return position + 1
        position += 1
    return limit


def _count_backslashes_before(content: str, position: int) -> int:
    begin = position
    while begin and content[begin - 1] == "\\":
        begin -= 1
    return position - begin


def _is_quote_open(content: str, quote: str) -> bool:
    """Return True if a quote is still open at the end of this text."""
    return len(re.findall(rf"(?<!\\){quote}", content)) % 2 == 1
