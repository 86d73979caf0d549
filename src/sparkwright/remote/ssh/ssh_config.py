"""The ssh configuration of a host, read with `ssh -G`, which supports Include, Match and aliases."""

from __future__ import annotations

import functools
import os
import pwd
import re
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkwright import visible
from sparkwright.defaults import FORKS
from sparkwright.errors import Refused
from sparkwright.project.inventory.host import Host
from sparkwright.shell import join
from sparkwright.visible import one_line

#: different spellings of boolean values in the output of ssh -G
BOOLEAN_SPELLINGS = {"true": "yes", "false": "no", "off": "no"}
_TOKEN_PATTERN = re.compile(r"%(.?)", re.DOTALL)
_TOKEN_OR_VARIABLE_PATTERN = re.compile(r"%(.?)|\$\{(\w+)\}", re.DOTALL)


def start_resolving(host: Host) -> None:
    """Start resolving a host in the background; `resolve` waits for the result."""
    _resolve_in_background(host.address, host.user or "", host.port or 0)


def resolve(host: Host) -> SshTarget:
    """Return the target of an inventory host. Raises Refused if ssh can't read its configuration."""
    return _resolve_in_background(host.address, host.user or "", host.port or 0).result()


def jump_target(spec: str) -> SshTarget:
    """Return the target of a ProxyJump hop. Raises Refused."""
    return _resolve(*parse_hop(spec))


@functools.lru_cache(maxsize=512)
def _resolve_in_background(address: str, user: str, port: int) -> Future[SshTarget]:
    return _pool().submit(_resolve, address, user, port)


@functools.lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=FORKS, thread_name_prefix="ssh -G")


def _resolve(address: str, user: str, port: int) -> SshTarget:
    command = ["ssh", "-G", *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", address]
    try:
        # paths may not be valid UTF-8
        result = subprocess.run(
            command, capture_output=True, text=True, errors="surrogateescape", timeout=10, check=False
        )
    except FileNotFoundError:
        raise Refused("there is no ssh on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        fix = "Check your ssh configuration for a `Match exec`."
        raise Refused(f"`ssh -G {address}` did not exit in time.", fix=fix) from None
    if result.returncode:
        reason = one_line(" ".join(result.stderr.split()), max_chars=400)
        raise Refused(f"ssh can't read its configuration for {address}: {reason}")
    return parse(result.stdout, address)


@dataclass(frozen=True)
class SshTarget:
    """The connection that ssh would open."""

    hostname: str
    user: str
    port: int
    #: address as the user wrote it, possibly an alias
    address: str = ""
    #: the hops of ProxyJump, in order
    jump: tuple[str, ...] = ()
    proxy_command: str = ""
    uses_public_keys: bool = True
    identity_files: tuple[Path, ...] = ()
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False
    #: socket of the agent, as ssh -G prints it; empty to use SSH_AUTH_SOCK
    identity_agent: str = ""
    #: known_hosts files, the user's first
    known_hosts_files: tuple[Path, ...] = ()
    #: known_hosts file to which new keys are added; None if no file is configured
    new_keys_file: Path | None = None
    hash_names: bool = False
    #: KnownHostsCommand, not split into arguments yet
    known_hosts_command: str = ""
    #: RevokedHostKeys
    revoked_keys_file: Path | None = None
    #: HostKeyAlias, the name of the host in known_hosts; empty if it is not set
    host_key_alias: str = ""
    check_ip: bool = False
    #: StrictHostKeyChecking: yes, ask, accept-new or no
    strict_checking: str = "ask"
    #: allowed host key algorithms; empty for all
    key_algorithms: tuple[str, ...] = ()
    #: minimum length of RSA keys
    min_rsa_bits: int = 0

    @property
    def host_key_name(self) -> str:
        """The host's name in known_hosts."""
        name = self.host_key_alias or self.hostname
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"

    @property
    def display_address(self) -> str:
        """USER@HOST:PORT, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"

    @property
    def manual_login_command(self) -> str:
        """The command for a manual login; ssh reads jump hosts from its configuration."""
        port = ["-p", self.port] if self.port != 22 else []
        return join(["ssh", *port, f"{self.user}@{self.address or self.hostname}"])

    @property
    def expanded_proxy_command(self) -> str:
        """ProxyCommand with its tokens replaced, which ssh -G does not do."""
        return fill_tokens("ProxyCommand", self.proxy_command, self.tokens, expand_variables=False)

    @property
    def tokens(self) -> dict[str, str]:
        """Values of ssh's tokens (%h and others), by letter."""
        return ssh_tokens(self.hostname, self.address, self.port, self.user, self.host_key_alias, ",".join(self.jump))


class _SshConfigOutput:
    """The values in the output of `ssh -G`, by key."""

    def __init__(self, text: str) -> None:
        self.values_by_key: dict[str, list[str]] = {}
        for line in text.split("\n"):
            key, _, value = line.partition(" ")
            self.values_by_key.setdefault(key, []).append(value)

    def first(self, key: str, default: str = "") -> str:
        value = self.values_by_key.get(key, [default])[0]
        return default if value == "none" else value

    def word(self, key: str, default: str = "no") -> str:
        return BOOLEAN_SPELLINGS.get(self.first(key, default), self.first(key, default))

    def words(self, key: str) -> tuple[str, ...]:
        return tuple(filter(None, self.first(key).split(",")))

    def files(self, option: str, tokens: dict[str, str]) -> tuple[Path, ...]:
        """Return the files of an option with one file per line. Their paths may contain spaces."""
        values = [value for value in self.values_by_key.get(option.lower(), []) if value not in ("", "none")]
        return tuple(_expand_home(fill_tokens(option, value, tokens)) for value in values)


def parse(text: str, address: str = "") -> SshTarget:
    """Parse the output of `ssh -G ADDRESS`. Raises Refused for an invalid value."""
    output = _SshConfigOutput(text)
    first, word = output.first, output.word
    hostname, user, port = first("hostname"), first("user"), _parse_number(first("port", "22"), "Port", 65535)
    alias, jump = first("hostkeyalias"), output.words("proxyjump")
    tokens = ssh_tokens(hostname, address, port, user, alias, ",".join(jump))
    if not hostname or not user:
        raise Refused(f"`ssh -G {visible.display_name(address)}` printed no host or no user.")
    if word("proxyusefdpass") == "yes":
        raise Refused("ProxyUseFdpass is not supported.", where=address, fix="Use `ProxyCommand ... -W %h:%p`.")
    user_files = _split_files(first("userknownhostsfile"))
    return SshTarget(
        hostname=hostname,
        user=user,
        port=port,
        address=address,
        jump=jump,
        proxy_command=first("proxycommand"),
        uses_public_keys=word("pubkeyauthentication", "yes") != "no",
        identity_files=tuple(path for path in output.files("IdentityFile", tokens) if _key_exists(path)),
        certificate_files=output.files("CertificateFile", tokens),
        identities_only=word("identitiesonly") == "yes",
        identity_agent=fill_tokens("IdentityAgent", output.values_by_key.get("identityagent", [""])[0], tokens),
        known_hosts_files=user_files + _split_files(first("globalknownhostsfile")),
        new_keys_file=user_files[0] if user_files else None,
        hash_names=word("hashknownhosts") == "yes",
        known_hosts_command=first("knownhostscommand"),
        revoked_keys_file=next(iter(output.files("RevokedHostKeys", tokens)), None),
        host_key_alias=alias,
        check_ip=word("checkhostip") == "yes",
        strict_checking=word("stricthostkeychecking", "ask"),
        key_algorithms=output.words("hostkeyalgorithms"),
        min_rsa_bits=_parse_number(first("requiredrsasize", "0"), "RequiredRSASize", 65536),
    )


def parse_hop(spec: str) -> tuple[str, str, int]:
    """Return the name, user and port of a ProxyJump hop; an empty user and port 0 if the hop does not set them. Raises Refused.

    A hop is [user@]host[:port] or [user@][::1][:port], optionally with ssh://.
    """
    user, _, address = spec.removeprefix("ssh://").rstrip("/").rpartition("@")
    match = re.fullmatch(
        r"\[(?P<v6>[^\[\]]+)\](?::(?P<port6>\d+))?|(?P<name>[^:\[\]]+)(?::(?P<port>\d+))?", address, re.A
    )
    if match is None and re.fullmatch(r"[0-9A-Fa-f:.]+(%\w+)?", address, re.A):
        return address, user, 0
    if match is None:
        raise Refused(f"ProxyJump: '{one_line(spec, max_chars=80)}' is not a host.", fix="Write [user@]host[:port].")
    port = match["port"] or match["port6"]
    return match["v6"] or match["name"], user, _parse_number(port, "ProxyJump port", 65535) if port else 0


def _parse_number(text: str, option: str, maximum: int) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text) and int(text) <= maximum:
        return int(text)
    raise Refused(f"ssh's {option} must be a number up to {maximum}, got '{one_line(text, max_chars=40)}'.")


def _split_files(value: str) -> tuple[Path, ...]:
    """Split a line into files. ssh -G prints no quotes, so words are joined if only together they name an existing file."""
    words, files = [word for word in value.split(" ") if word], []
    while words:
        lengths = (
            length for length in range(min(len(words), 16), 1, -1) if is_file(_expand_home(" ".join(words[:length])))
        )
        length = next(lengths, 1)
        files.append(_expand_home(" ".join(words[:length])))
        words = words[length:]
    return tuple(files)


def _expand_home(text: str) -> Path:
    """Return a path with `~` expanded. As in ssh, the home folder is the one in the password database, not HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir + text[1:]) if text == "~" or text.startswith("~/") else Path(text)


def is_file(path: Path) -> bool:
    """Return True if the path is a file; False if its name is invalid or it can't be accessed."""
    try:
        return path.is_file()
    except OSError:
        return False


def _key_exists(path: Path) -> bool:
    """Return True if a key file or its .pub file exists. For a key in an agent or on a card there may be only the latter."""
    return is_file(path) or is_file(Path(f"{path}.pub"))


def ssh_tokens(hostname: str, address: str, port: int, user: str, alias: str, jump_hosts: str) -> dict[str, str]:
    """Return the values of ssh's tokens, by letter.

    Args:
        address: the address as the user wrote it.
        alias: HostKeyAlias; empty if it is not set.
    """
    local_name, account = socket.gethostname(), pwd.getpwuid(os.getuid())
    return {
        "%": "%",
        "d": account.pw_dir,
        "h": hostname,
        "i": str(account.pw_uid),
        "j": jump_hosts,
        "k": alias or address,
        "L": local_name.partition(".")[0],
        "l": local_name,
        "n": address,
        "p": str(port),
        "r": user,
        "u": account.pw_name,
    }


def fill_tokens(option: str, text: str, tokens: Mapping[str, str], *, expand_variables: bool = True) -> str:
    """Return an option's value with its tokens replaced. Raises Refused for an unknown token or an unset variable.

    Args:
        expand_variables: replace environment variables, too.
    """

    def replace_match(match: re.Match[str]) -> str:
        if match[0].startswith("$"):
            if match[2] in os.environ:
                return os.environ[match[2]]
            raise Refused(f"ssh's {option} uses {one_line(match[0], max_chars=80)}, which is not set.")
        if match[1] in tokens:
            return tokens[match[1]]
        message = f"ssh's {option} has the token '{visible.display_name(match[0])}', which is not supported."
        raise Refused(message, fix="Replace it with its value.")

    return (_TOKEN_OR_VARIABLE_PATTERN if expand_variables else _TOKEN_PATTERN).sub(replace_match, text)
