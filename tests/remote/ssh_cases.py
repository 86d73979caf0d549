"""Configurations of ssh about trust and identity; for each, `ssh` decides if it connects.

<me> is the server's name in known_hosts, <ed> and <rsa> are its keys, <other> is another ed25519 key, <ecdsa> a key of a type that
the server does not have, <dir> the folder of files. Each case starts with new files.
"""

from dataclasses import dataclass, field

LOGIN_OPTIONS = "IdentityFile <dir>/id\nIdentitiesOnly yes\nIdentityAgent none"
KNOWN_KEY = "<me> <ed>\n"


@dataclass(frozen=True)
class Case:
    name: str
    config: str = ""
    known: str = KNOWN_KEY
    login: str = LOGIN_OPTIONS
    files: dict[str, str] = field(default_factory=dict)
    connects: bool = True
    #: why sparkwright refuses what ssh accepts
    stricter: str = ""
    #: a piece of sparkwright's refusal
    msg: str = ""
    server: str = "plain"
    before: str = ""


def refused_case(name: str, config: str = "", known: str = KNOWN_KEY, msg: str = "", **fields: object) -> Case:
    return Case(name, config, known, connects=False, msg=msg, **fields)  # type: ignore[arg-type]


def keys_command_case(name: str, commands: str, msg: str, known: str = KNOWN_KEY) -> Case:
    files = {"find": f"#!/bin/sh\n{commands}\n"}
    return refused_case(name, "KnownHostsCommand <dir>/find", known=known, files=files, msg=msg)


UNKNOWN_KEY, CHANGED_KEY = "is not known yet", "is not the known one"
ACCEPT_NEW, REVOKED_KEYS = "StrictHostKeyChecking accept-new", "RevokedHostKeys <dir>/gone"

CASES = [
    # -- known_hosts
    Case("a known key"),
    refused_case("an unknown key", known="", msg=UNKNOWN_KEY),
    refused_case("a changed key", known="<me> <other>\n", msg=CHANGED_KEY),
    refused_case("another port's key", known="[127.0.0.1]:1 <ed>\n", msg=UNKNOWN_KEY),
    Case("a line without the port", known="127.0.0.1 <ed>\n"),
    refused_case("another key without the port", known="127.0.0.1 <other>\n", msg=UNKNOWN_KEY),
    Case("two keys of one kind", known="<me> <other>\n<me> <ed>\n"),
    Case("only the RSA key is known", known="<me> <rsa>\n"),
    Case("a pattern", known="[127.0.0.?]:* <ed>\n"),
    refused_case("a negated pattern", known="!*127.0.0.1*,* <ed>\n", msg=UNKNOWN_KEY),
    Case("several names on a line", known="spark,<me>,other <ed> a comment\n"),
    Case("rubbish between the lines", known="# no\n\nrubbish\n<me> ssh-ed25519 ??\n<me> <ed>\n"),
    Case("an unknown type of key", known="<me> sk-<ed>\n<me> <ed>\n"),
    Case("a hashed name", known="<hashed> <ed>\n"),
    refused_case("a revoked key", known="<me> <ed>\n@revoked * <ed>\n", msg="is revoked in known_hosts: SHA256:"),
    Case("another key is revoked", known="<me> <ed>\n@revoked * <other>\n"),
    refused_case("a certificate authority, no certificate", known="@cert-authority * <ed>\n", msg="Host certificates"),
    Case(
        "a certificate of an authority",
        known="@cert-authority * <ca>\n",
        server="certified",
        stricter="paramiko can't check certificates of hosts",
        msg="Host certificates are not checked here.",
    ),
    Case("a certificate, and the plain key is known", server="certified"),
    # -- StrictHostKeyChecking
    refused_case("yes, unknown", "StrictHostKeyChecking yes", known="", msg=UNKNOWN_KEY),
    refused_case("ask, unknown", "StrictHostKeyChecking ask", known="", msg=UNKNOWN_KEY),
    Case("accept-new, unknown", ACCEPT_NEW, known=""),
    Case("no, unknown", "StrictHostKeyChecking no", known=""),
    Case("off, unknown", "StrictHostKeyChecking off", known="# mine\n"),
    Case("accept-new, hashed name", f"{ACCEPT_NEW}\nHashKnownHosts yes", known=""),
    refused_case("accept-new, changed", ACCEPT_NEW, known="<me> <other>\n", msg=CHANGED_KEY),
    refused_case("accept-new, revoked", ACCEPT_NEW, known="@revoked * <ed>\n", msg="is revoked"),
    refused_case("accept-new, known and revoked", ACCEPT_NEW, known="<me> <ed>\n@revoked * <ed>\n", msg="is revoked"),
    Case(
        "no, changed",
        "StrictHostKeyChecking no",
        known="<me> <other>\n",
        stricter="an attacker in the middle would get a plan with its secrets",
        msg=CHANGED_KEY,
    ),
    refused_case("accept-new, known by another type of key", ACCEPT_NEW, known="<me> <ecdsa>\n", msg=CHANGED_KEY),
    Case(
        "NoHostAuthenticationForLocalhost",
        "NoHostAuthenticationForLocalhost yes",
        known="",
        stricter="a tunnel's end on this machine is another machine",
        msg=UNKNOWN_KEY,
    ),
    # -- which files
    refused_case(
        "UserKnownHostsFile none, with a file of that name",
        "UserKnownHostsFile none",
        files={"none": KNOWN_KEY},
        msg=UNKNOWN_KEY,
    ),
    refused_case("UserKnownHostsFile none, accept-new", f"UserKnownHostsFile none\n{ACCEPT_NEW}", msg=UNKNOWN_KEY),
    Case("accept-new, a file that can't be written", f"UserKnownHostsFile /proc/no\n{ACCEPT_NEW}"),
    Case("two files, one with a space", 'UserKnownHostsFile <dir>/no "<dir>/my hosts"', files={"my hosts": KNOWN_KEY}),
    Case("UserKnownHostsFile with a token", "UserKnownHostsFile <dir>/known-%h", files={"known-127.0.0.1": KNOWN_KEY}),
    Case("GlobalKnownHostsFile", "GlobalKnownHostsFile <dir>/all", known="", files={"all": KNOWN_KEY}),
    refused_case("no global file", "GlobalKnownHostsFile none", known="", files={"none": KNOWN_KEY}, msg=UNKNOWN_KEY),
    # -- other options about the host's key
    Case("HostKeyAlias", "HostKeyAlias spark", known="spark <ed>\n"),
    refused_case("HostKeyAlias, known by the address only", "HostKeyAlias spark", msg=UNKNOWN_KEY),
    Case("CheckHostIP", "CheckHostIP yes"),
    refused_case("RevokedHostKeys", REVOKED_KEYS, files={"gone": "# old\n<ed>\n"}, msg="/gone (RevokedHostKeys)"),
    Case("RevokedHostKeys with another key", REVOKED_KEYS, files={"gone": "<other>\n"}),
    refused_case("RevokedHostKeys, a KRL", "RevokedHostKeys <dir>/krl", before="krl ed", msg="/krl (RevokedHostKeys)"),
    Case("RevokedHostKeys, a KRL with another key", "RevokedHostKeys <dir>/krl", before="krl other"),
    refused_case("RevokedHostKeys is missing", REVOKED_KEYS, msg="ssh's RevokedHostKeys can't be read"),
    refused_case("RevokedHostKeys: rubbish", REVOKED_KEYS, files={"gone": "no key\n"}, msg="contains an invalid key"),
    Case(
        "KnownHostsCommand",
        'KnownHostsCommand "<dir>/find it" %H %t "%I"',
        known="",
        files={
            "find it": '#!/bin/sh\n[ "$1" = "<me>" ] && { [ "$2" = ssh-ed25519 ] || [ "$3" = ORDER ]; } && echo "<me> <ed>"\nexit 0\n'
        },
    ),
    keys_command_case("KnownHostsCommand that prints another host", "echo 'spark <ed>'", UNKNOWN_KEY, known=""),
    keys_command_case("KnownHostsCommand that revokes", "echo '@revoked * <ed>'", "is revoked"),
    keys_command_case("KnownHostsCommand that fails", "exit 3", "ssh's KnownHostsCommand failed with 3"),
    Case("HostKeyAlgorithms", "HostKeyAlgorithms rsa-sha2-512", known="<me> <rsa>\n"),
    refused_case("HostKeyAlgorithms without the known type", "HostKeyAlgorithms rsa-sha2-256", msg=CHANGED_KEY),
    refused_case("RequiredRSASize", "RequiredRSASize 4096", known="<me> <rsa>\n", msg="RequiredRSASize requires 4096"),
    # -- who logs in
    Case("IdentityFile with a space", login='IdentityFile "<dir>/my key"', files={"my key": "<id>"}),
    Case("IdentityFile with tokens", login="IdentityFile <dir>/%h-%r-%p", files={"127.0.0.1-root-<port>": "<id>"}),
    Case("IdentityFile with a variable", login="IdentityFile ${LAB_DIR}/id"),
    refused_case("IdentityFile none", login="IdentityFile none\nIdentityAgent none", msg="there is no key to offer"),
    refused_case(
        "IdentityFile that others can read",
        login="IdentityFile <dir>/open\nIdentityAgent none",
        before="open",
        msg="is readable by others",
    ),
    refused_case("PubkeyAuthentication no", "PubkeyAuthentication no", msg="rejected every key"),
    Case("IdentityAgent with a space", login='IdentityFile none\nIdentityAgent "<dir>/an agent"'),
    Case("the agent of SSH_AUTH_SOCK", login="IdentityFile none"),
    Case("the agent of another variable", login="IdentityFile none\nIdentityAgent $LAB_AGENT"),
    refused_case("IdentitiesOnly", login="IdentityFile <dir>/nobody\nIdentitiesOnly yes", msg="rejected every key"),
    Case("IdentitiesOnly, the agent's key by its public part", login="IdentityFile <dir>/held.pub\nIdentitiesOnly yes"),
    Case("IdentitiesOnly, a passphrase that the agent knows", login="IdentityFile <dir>/locked\nIdentitiesOnly yes"),
    Case("CertificateFile", login=f'{LOGIN_OPTIONS.replace("/id", "/signed")}\nCertificateFile "<dir>/a cert.pub"'),
    Case("a certificate next to the key", login=LOGIN_OPTIONS.replace("/id", "/signed2")),
    refused_case("a certificate elsewhere", login=LOGIN_OPTIONS.replace("/id", "/signed"), msg="rejected every key"),
    Case("an expired certificate next to the key", login=LOGIN_OPTIONS.replace("/id", "/expired")),
    # -- the route
    Case("ProxyJump by address", "ProxyJump 127.0.0.1:<jump>"),
    Case("ProxyJump by IPv6 address", "ProxyJump [::1]:<jump>"),
    Case("ProxyJump with a user", "ProxyJump root@[::1]:<jump>"),
    Case("ProxyJump as ssh://", "ProxyJump ssh://root@127.0.0.1:<jump>"),
    Case("ProxyJump over two", "ProxyJump ssh://root@127.0.0.1:<jump>,root@[::1]:<jump>"),
    refused_case(
        "ProxyJump, unknown key of the jump host", "ProxyJump localhost:<jump>", msg="through localhost:<jump>"
    ),
    Case("ProxyCommand", "ProxyCommand ssh -W [%h]:%p root@127.0.0.1 -p <jump> 2>/dev/null"),
    Case("Match exec", "HostKeyAlias wrong\n", known="right <ed>\n", before="match"),
]
