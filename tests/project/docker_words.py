"""The meaning of Docker's words, row by row: the engine's answer to a spelling, and a recipe's.

A row: the field, the spelling, whether `docker create` takes it (None: not asked, its meaning is the recipe's own), and a part of
the sentence with which a recipe refuses it; empty when it is taken. A recipe refuses whatever Docker refuses; what only a recipe
refuses has its reason beside it.
"""

from dataclasses import dataclass

CHANCE = "does not set the host's port"  # no client would find the server
RANGE = "is a range"  # one server has one port
PLAIN = "is not a port"  # docker writes it otherwise, so that every deploy would differ
PROTOCOL = "the protocol must be"  # the same
COUNT = "is not a choice of GPUs"  # "" is none, `all` is all, and no host has a thousand
OPTIONS = "is not a choice of GPUs"  # docker's own list in quotes; the recipe's spelling is `device=0,1`
GO = "is not a size"  # a number as Go writes it
IPC = "is not an IPC mode"  # the engine takes any word and fails at the start; an id in place of a name differs at every deploy
LIMIT = "is not a limit"
TWO = "is not a mount"
RELATIVE = "is not a folder of the host"  # relative to nothing that a deploy knows; one letter is a drive to docker
OPTION = "is not a mount option"


@dataclass(frozen=True)
class Word:
    """One row."""

    field: str
    text: str
    docker: bool | None
    message: str = ""


def make_rows(field: str, *rows: tuple[str, bool | None, str]) -> list[Word]:
    return [Word(field, *row) for row in rows]


WORDS = [
    *make_rows(
        "ports",
        ("8000:8000", True, ""),
        ("127.0.0.1:8000:8000", True, ""),
        ("0.0.0.0:8000:8000", True, ""),
        ("[::1]:8000:8000", True, ""),
        ("::1:8000:8000", True, ""),
        ("[2001:DB8::1]:80:80", True, ""),
        ("[127.0.0.1]:80:80", True, ""),
        ("8000:8000/tcp", True, ""),
        ("8000:8000/udp", True, ""),
        ("8000:8000/sctp", True, ""),
        ("65535:1", True, ""),
        ("8000", True, CHANCE),
        ("8000/tcp", True, CHANCE),
        (":8000", True, CHANCE),
        ("0:8000", True, CHANCE),
        ("127.0.0.1::8000", True, CHANCE),
        ("127.0.0.1:0:8000", True, CHANCE),
        ("8000-8001:8000-8001", True, RANGE),
        ("8000-8001:8000", True, RANGE),
        ("8000:8000-8000", True, RANGE),
        ("8000:8000-8001", False, RANGE),
        ("08000:8000", True, PLAIN),
        ("8000:0", True, PLAIN),
        ("8000:8000/TCP", True, PROTOCOL),
        ("8000:8000/", True, PROTOCOL),
        ("8000:8000/icmp", False, PROTOCOL),
        ("65536:8000", False, PLAIN),
        ("8000:99999", False, PLAIN),
        ("-1:8000", False, PLAIN),
        ("a:8000", False, PLAIN),
        ("8000:", False, PLAIN),
        (" 8000:8000", False, PLAIN),
        ("8000 :8000", False, PLAIN),
        ("0.0.0.0:80", False, PLAIN),
        ("lan:8000:8000", False, "is not an IP address"),
        ("999.1.1.1:8000:8000", False, "is not an IP address"),
        ("1.2.3.4.5:8000:8000", False, "is not an IP address"),
        ("127.1:8000:8000", False, "is not an IP address"),
        ("127.0.0.01:80:80", False, "is not an IP address"),
        ("127.0.0.1:8000:8000:8000", False, "is not an IP address"),
        ("[::1:8000:8000", False, "is not an IP address"),
        ("::8000:8000", False, "is not an IP address"),
        ("[fe80::1%eth0]:80:80", False, "is not an IP address"),
    ),
    *make_rows(
        "shm_size",
        ("64gb", True, ""),
        ("64g", True, ""),
        ("64GiB", True, ""),
        ("1.5 g", True, ""),
        ("64 GIB", True, ""),
        (".5g", True, ""),
        ("5.g", True, ""),
        ("64kb", True, ""),
        ("100b", True, ""),
        ("1048576", True, ""),
        ("1048576 ", True, ""),
        ("0", True, ""),
        ("1t", True, ""),
        ("", None, ""),
        ("1e9", True, GO),
        ("+1g", True, GO),
        ("1_0g", True, GO),
        ("-1g", False, GO),
        ("64gbx", False, GO),
        ("64ib", False, GO),
        ("64gi", False, GO),
        ("64  g", False, GO),
        ("1,5g", False, GO),
        ("64eb", False, GO),
        ("0x10", False, GO),
        ("inf", False, GO),
        ("9999999999999g", False, "is too large"),
    ),
    *make_rows(
        "gpus",
        ("all", True, ""),
        ("1", True, ""),
        ("device=0", True, ""),
        ("device=GPU-1a", True, ""),
        ("device=nvidia.com/gpu=0", True, ""),
        ("device=0,1", None, ""),  # docker's own means a device and a count; the recipe's is two devices
        ("", None, ""),
        ("0", True, COUNT),
        ("-1", True, COUNT),
        ("1000", True, COUNT),
        ('"device=0,1"', True, OPTIONS),
        ("count=1", True, OPTIONS),
        ("driver=nvidia", True, OPTIONS),
        ("device=", True, OPTIONS),
        ("device=0 1", True, OPTIONS),
        ("none", False, COUNT),
        ("ALL", False, COUNT),
        (" all", False, COUNT),
        ("1.5", False, COUNT),
    ),
    *make_rows(
        "ipc",
        ("host", True, ""),
        ("private", True, ""),
        ("shareable", True, ""),
        ("none", True, ""),
        ("", None, ""),
        ("HOST", True, IPC),
        ("hots", True, IPC),
        ("container:", True, IPC),
        ("container:missing", False, IPC),
    ),
    *make_rows(
        "ulimits",
        ("memlock=-1", True, ""),
        ("memlock=-1:-1", True, ""),
        ("nofile=1024", True, ""),
        ("nofile=1024:2048", True, ""),
        ("nofile=1024:-1", True, ""),
        ("stack=67108864", True, ""),
        ("core=0", True, ""),
        ("nofile=-2", True, LIMIT),
        ("nofile=2048:1024", False, "the soft limit is above the hard limit"),
        ("nofile=-1:1024", False, "the soft limit is above the hard limit"),
        ("memlock=unlimited", False, LIMIT),
        ("nofile=1:2:3", False, LIMIT),
        ("nofile=1:", False, LIMIT),
        ("nofile=1.5", False, LIMIT),
        ("nofile=99999999999999999999", False, LIMIT),
        ("nofile=9999999999999999999", False, LIMIT),
        ("nofile=", False, LIMIT),
        ("as=1", False, "is not a limit of Docker"),
        ("NOFILE=1", False, "is not a limit of Docker"),
        ("foo=1", False, "is not a limit of Docker"),
    ),
    *make_rows(
        "volumes",
        ("/data:/b", True, ""),
        ("/data:/b:ro", True, ""),
        ("/data:/b:rw", True, ""),
        ("/data:/b:ro,z", True, ""),
        ("/data:/b:ro,z,rshared,cached", True, ""),
        ("/data/../a:/b/../c/", True, ""),
        ("/da ta:/b b", True, ""),
        ("~/data:/b", None, ""),
        ("words-test:/b", True, ""),
        ("words-test:/b:ro,nocopy", True, ""),
        ("words-test:/b:Z", True, ""),
        ("/data", True, TWO),
        ("./a:/b", True, RELATIVE),
        ("..:/b", True, RELATIVE),
        ("n:/b", True, RELATIVE),
        ("/a:/b:ro:z", False, TWO),
        ("/a:", False, "is not a folder of the container"),
        (":/b", False, RELATIVE),
        ("a/b:/b", False, RELATIVE),
        ("_n:/b", False, RELATIVE),
        ("/a:b", False, "is not a folder of the container"),
        ("/a:/", False, "is the root of the container"),
        ("/a:/b/..", False, "is the root of the container"),
        ("/a:/b:", False, OPTION),
        ("/a:/b:foo", False, OPTION),
        ("/a:/b:RO", False, OPTION),
        ("/a:/b:readonly", False, OPTION),
        ("/a:/b:ro,rw", False, OPTION),
        ("/a:/b:ro,", False, OPTION),
        ("/a:/b:z,Z", False, OPTION),
        ("/a:/b:cached,delegated", False, OPTION),
        ("/a:/b:nocopy", False, OPTION),
        ("words-test:/b:rshared", False, OPTION),
    ),
    *make_rows(
        "name",
        ("a1", True, ""),
        ("A_b.c-d", True, ""),
        ("a", False, "2 or more letters"),
        ("_a", False, "2 or more letters"),
        ("a b", False, "2 or more letters"),
        ("a/b", False, "2 or more letters"),
    ),
    *make_rows(
        "restart",
        ("no", True, ""),
        ("always", True, ""),
        ("unless-stopped", True, ""),
        ("on-failure", True, ""),
        ("on-failure:3", True, "'no', 'always'"),  # a crash loop is broken and reported; docker's counter would hide it
        ("never", False, "'no', 'always'"),
    ),
    *make_rows(
        "env",
        ("A=b", True, ""),
        ("A=", True, ""),
        ("A B=c", True, ""),
        ("1A=a=b", True, ""),
        ("=b", False, "can't be an environment variable"),
    ),
    *make_rows(
        "labels",
        ("a=b", True, ""),
        ("a=", True, ""),
        ("a b=c", False, "is not a label's name"),
        ("=b", False, "a label needs a name"),
    ),
]
