"""Spellings of the options of `docker run`: those that Docker accepts, and those that a recipe accepts.

A recipe refuses all that Docker refuses. Where it refuses more, a comment gives the reason.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """A value of a container's field.

    docker: whether `docker create` accepts it; None if only a recipe gives it this meaning. message: a part of the recipe's
    refusal; empty if the recipe accepts it.
    """

    field: str
    text: str
    docker: bool | None
    message: str = ""


def accepted(field: str, *texts: str) -> list[Spelling]:
    return [Spelling(field, text, True) for text in texts]


def recipe_only(field: str, *texts: str) -> list[Spelling]:
    return [Spelling(field, text, None) for text in texts]


def recipe_refuses(field: str, message: str, *texts: str) -> list[Spelling]:
    return [Spelling(field, text, True, message) for text in texts]


def refused(field: str, message: str, *texts: str) -> list[Spelling]:
    return [Spelling(field, text, False, message) for text in texts]


SPELLINGS = [
    *accepted("ports", "8000:8000", "127.0.0.1:8000:8000", "0.0.0.0:8000:8000", "[::1]:8000:8000", "::1:8000:8000",
      "[2001:DB8::1]:80:80", "[127.0.0.1]:80:80", "8000:8000/tcp", "8000:8000/udp", "8000:8000/sctp", "65535:1"),
    # clients cannot know a random port
    *recipe_refuses("ports", "does not set the host's port", "8000", "8000/tcp", ":8000", "0:8000", "127.0.0.1::8000",
      "127.0.0.1:0:8000"),
    # a server listens on one port
    *recipe_refuses("ports", "is a range", "8000-8001:8000-8001", "8000-8001:8000", "8000:8000-8000"),
    *refused("ports", "is a range", "8000:8000-8001"),
    # Docker reports these in another form, so every deploy would find a difference
    *recipe_refuses("ports", "is not a port", "08000:8000", "8000:0"),
    *recipe_refuses("ports", "the protocol must be", "8000:8000/TCP", "8000:8000/"),
    *refused("ports", "the protocol must be", "8000:8000/icmp"),
    *refused("ports", "is not a port", "65536:8000", "8000:99999", "-1:8000", "a:8000", "8000:", " 8000:8000", "8000 :8000",
      "0.0.0.0:80"),
    *refused("ports", "is not an IP address", "lan:8000:8000", "999.1.1.1:8000:8000", "1.2.3.4.5:8000:8000",
      "127.1:8000:8000", "127.0.0.01:80:80", "127.0.0.1:8000:8000:8000", "[::1:8000:8000", "::8000:8000",
      "[fe80::1%eth0]:80:80"),
    *accepted("shm_size", "64gb", "64g", "64GiB", "1.5 g", "64 GIB", ".5g", "5.g", "64kb", "100b", "1048576", "1048576 ",
      "0", "1t"),
    *recipe_only("shm_size", ""),
    *recipe_refuses("shm_size", "is not a size", "1e9", "+1g", "1_0g"),
    *refused("shm_size", "is not a size", "-1g", "64gbx", "64ib", "64gi", "64  g", "1,5g", "64eb", "0x10", "inf"),
    *refused("shm_size", "is too large", "9999999999999g"),
    *accepted("gpus", "all", "1", "device=0", "device=GPU-1a", "device=nvidia.com/gpu=0"),
    # two devices in a recipe; a device and a count in Docker, which needs quotes for two devices
    *recipe_only("gpus", "device=0,1", ""),
    # use "" for no GPU and `all` for all
    *recipe_refuses("gpus", "is not a choice of GPUs", "0", "-1", "1000", '"device=0,1"', "count=1", "driver=nvidia",
      "device=", "device=0 1"),
    *refused("gpus", "is not a choice of GPUs", "none", "ALL", " all", "1.5"),
    *accepted("ipc", "host", "private", "shareable", "none"),
    *recipe_only("ipc", ""),
    # Docker accepts any word and fails at the start; it replaces a container's name by its id, a difference at every deploy
    *recipe_refuses("ipc", "is not an IPC mode", "HOST", "hots", "container:"),
    *refused("ipc", "is not an IPC mode", "container:missing"),
    *accepted("ulimits", "memlock=-1", "memlock=-1:-1", "nofile=1024", "nofile=1024:2048", "nofile=1024:-1",
      "stack=67108864", "core=0"),
    *recipe_refuses("ulimits", "is not a limit", "nofile=-2"),
    *refused("ulimits", "the soft limit is above the hard limit", "nofile=2048:1024", "nofile=-1:1024"),
    *refused("ulimits", "is not a limit", "memlock=unlimited", "nofile=1:2:3", "nofile=1:", "nofile=1.5",
      "nofile=99999999999999999999", "nofile=9999999999999999999", "nofile="),
    *refused("ulimits", "is not one of Docker's limits", "as=1", "NOFILE=1", "foo=1"),
    *accepted("volumes", "/data:/b", "/data:/b:ro", "/data:/b:rw", "/data:/b:ro,z", "/data:/b:ro,z,rshared,cached",
      "/data/../a:/b/../c/", "/da ta:/b b", "words-test:/b", "words-test:/b:ro,nocopy", "words-test:/b:Z"),
    *recipe_only("volumes", "~/data:/b"),
    *recipe_refuses("volumes", "is not a mount", "/data"),
    # a deploy has no folder that a relative path could start from; to Docker, one letter is a drive
    *recipe_refuses("volumes", "is not a folder on the host", "./a:/b", "..:/b", "n:/b"),
    *refused("volumes", "is not a mount", "/a:/b:ro:z"),
    *refused("volumes", "is not a folder in the container", "/a:", "/a:b"),
    *refused("volumes", "is not a folder on the host", ":/b", "a/b:/b", "_n:/b"),
    *refused("volumes", "is the root of the container", "/a:/", "/a:/b/.."),
    *refused("volumes", "is not a mount option", "/a:/b:", "/a:/b:foo", "/a:/b:RO", "/a:/b:readonly", "/a:/b:ro,rw",
      "/a:/b:ro,", "/a:/b:z,Z", "/a:/b:cached,delegated", "/a:/b:nocopy", "words-test:/b:rshared"),
    *accepted("name", "a1", "A_b.c-d"),
    *refused("name", "2 or more letters", "a", "_a", "a b", "a/b"),
    *accepted("restart", "no", "always", "unless-stopped", "on-failure"),
    # sparkwright reports a crash loop, which Docker's counter would hide
    *recipe_refuses("restart", "'no', 'always'", "on-failure:3"),
    *refused("restart", "'no', 'always'", "never"),
    *accepted("env", "A=b", "A=", "A B=c", "1A=a=b"),
    *refused("env", "can't be an environment variable", "=b"),
    *accepted("labels", "a=b", "a="),
    *refused("labels", "is not a label's name", "a b=c"),
    *refused("labels", "a label needs a name", "=b"),
    *accepted("network", "host", "bridge"),
    *recipe_only("network", ""),
    *recipe_refuses("network", "nothing can reach the server", "none"),
    *recipe_refuses("network", "leave it out", "default"),
    # Docker stores the id of another container, a difference at every deploy
    *recipe_refuses("network", "is not a network", "container:x", "a b", "name=n,ip=10.0.0.1"),
    *refused("network", "only networks made with", "name=host,alias=a"),
    *refused("network", "is not a network", "alias=a"),
    *accepted("hostname", "spark1", "spark1.lan"),
    *recipe_only("hostname", ""),
    *recipe_refuses("hostname", "is not a host name", "-a", "a b", "a_b", "a" * 64),
    *accepted("extra_hosts", "hub:10.0.0.1", "hub:::1", "hub:[::1]", "hub=10.0.0.1", "me:host-gateway"),
    *refused("extra_hosts", "is not a host", "hub", "hub:", ":10.0.0.1", "hub:10.0.0", "hub:lan"),
    *accepted("dns", "10.0.0.1", "::1", "2001:DB8::1"),
    *refused("dns", "is not a name server", "10.0.0", "lan"),
    *accepted("user", "1000", "1000:1000", "ops:video"),
    *recipe_only("user", ""),
    *recipe_refuses("user", "is not a user", "a b", "1000:", "1:2:3"),
    *accepted("group_add", "44", "video"),
    *recipe_refuses("group_add", "is not a group", "", "a b"),
    *accepted("cap_add", "SYS_PTRACE", "cap_sys_ptrace", "ALL"),
    *refused("cap_add", "is not a capability", "SYS_PTRACES", ""),
    *accepted("security_opt", "no-new-privileges", "no-new-privileges:true", "no-new-privileges=false", "seccomp=unconfined",
      "seccomp:unconfined", "apparmor=unconfined", "label=disable", "label:disable", "label=level:s0:c1"),
    *refused("security_opt", "is not a security option", "no-new-privileges:maybe", "unconfined", "foo=bar"),
    *refused("security_opt", "a profile file is not supported", "seccomp=missing.json"),
    *accepted("devices", "/dev/null", "/dev/null:/dev/x", "/dev/null:/dev/x:rw", "/dev/null:r"),
    *refused("devices", "is not a device", "dev/null", "/dev/null:x", "/dev/a:/dev/b:r:w"),
    *refused("devices", "each at most once", "/dev/null:/dev/x:rr", "/dev/null:/dev/x:rwx"),
    *accepted("pid", "host"),
    *recipe_only("pid", ""),
    *refused("pid", "is not a PID mode", "private", "container:x"),
    *accepted("working_dir", "/srv", "/srv/../a/"),
    *refused("working_dir", "is not a folder in the container", "srv"),
    *accepted("stop_signal", "SIGINT", "int", "2"),
    *refused("stop_signal", "is not a signal", "SIGFOO", "0"),
    *recipe_refuses("stop_signal", "is not a signal", "99"),
    *accepted("tmpfs", "/t", "/t:size=64m,mode=1777,noexec", "/t:rw", "/t:size=50%"),
    *refused("tmpfs", "is not a folder in the container", "t"),
    # Docker creates the container but cannot start it
    *recipe_refuses("tmpfs", "is not a tmpfs option", "/t:foo", "/t:size"),
    *refused("tmpfs", "is the root of the container", "/"),
    *accepted("memory", "64m", "1g", "6m"),
    *recipe_only("memory", ""),
    *refused("memory", "Docker's minimum", "5m"),
    # 0 means no limit, as leaving it out does
    *recipe_refuses("memory", "Docker's minimum", "0"),
    *refused("memory", "is not a size", "a"),
    *accepted("cpuset_cpus", "0", "0-1", "1,0"),
    *refused("cpuset_cpus", "is not a set of CPUs", "0-", "1-0", "a"),
    *accepted("sysctls", "net.core.somaxconn=1024", "net.ipv4.conf.all.forwarding=1", "kernel.shmmax=1024",
      "fs.mqueue.msg_max=10"),
    # newer engines report it elsewhere
    *recipe_refuses("sysctls", "is a setting of one interface", "net.ipv4.conf.eth0.forwarding=1"),
    *refused("sysctls", "can't be set for a container", "kernel.hostname=a", "vm.swappiness=1"),
    *accepted("log_driver", "json-file", "local", "journald"),
    *refused("log_driver", "is not a log driver", "a b"),
]  # fmt: skip
