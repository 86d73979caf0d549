"""A link over one ssh connection, with one exec per request and a time limit on every wait."""

from __future__ import annotations

import collections
import contextlib
import json
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import paramiko
from fabric import Connection
from paramiko.channel import Channel

from sparkwright.errors import Failed, Refused, SparkwrightError, Unreachable
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.event_reader import EventReader
from sparkwright.protocol.events import Event, event
from sparkwright.remote import runtime
from sparkwright.remote.ssh import connection as ssh_connection
from sparkwright.remote.ssh import ssh_config
from sparkwright.remote.ssh.connection import CHANNEL_TIMEOUT_S, CONNECT_TIMEOUT_S
from sparkwright.runner import request as requests
from sparkwright.secret import Secret
from sparkwright.shell import join
from sparkwright.transport.connection import Deadline, TimedOut
from sparkwright.visible import one_line

#: time limit without output, in seconds; the runner writes every 2 s
SILENCE_TIMEOUT_S = 15.0
#: time limit from the start of a command until the runner is ready, in seconds, even if the login shell keeps printing
READY_TIMEOUT_S = 120.0
#: time limit for unpacking the runtime on a busy disk, in seconds
UNPACK_TIMEOUT_S = 600.0
CHUNK_BYTES = 64 * 1024
#: limit on the events of one request: ten incident files of maximum size, which is more than any run produces
MAX_EVENTS_BYTES = 256 * 10**6


class _AnswerDeadline:
    """The time limit for a host's answer, which applies even if bytes keep arriving."""

    def __init__(self, seconds: float | None) -> None:
        self.set(seconds)

    def set(self, seconds: float | None) -> None:
        """Start a new limit. seconds: None for no limit."""
        self.seconds = seconds
        self._deadline = None if seconds is None else Deadline(seconds)

    def wait_s(self, silence_s: float | None) -> float | None:
        """Return how long to wait for the next bytes: at most `silence_s`, and not beyond the limit. Raises TimedOut."""
        if self._deadline is None:
            return silence_s
        remaining_s = self._deadline.remaining_s()
        return remaining_s if silence_s is None else min(remaining_s, silence_s)

    def is_over(self) -> bool:
        """Return True if the limit has passed."""
        try:
            self.wait_s(None)
        except TimedOut:
            return True
        return False


class SshLink:
    """A link to a host over ssh, which immediately starts a thread that connects and starts the host's runner.

    The runner imports its modules while the laptop is still planning, and then waits for the first request.

    Args:
        request_kind: kind of the requests that will follow.
    """

    def __init__(self, host: Host, request_kind: str = "engine") -> None:
        self._host = host
        # computed in this thread: the hash's many small reads would be slow in the connecting thread
        self._start_command = runtime.start_command(runtime.content_hash(), request_kind)
        self._closed = False
        self._connection: Future[Connection] = Future()
        self._notes: list[str] = []
        #: channel of the runner that waits for the first request
        self._ready_channel: Channel | None = None
        threading.Thread(target=self._connect, daemon=True).start()

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """Send a request; see `Link.request`. Uploads the runtime first if it is missing."""
        transport = self._transport()
        while self._notes:
            yield event("note", task="", text=self._notes.pop(0), detail=False)
        yield from self._send_request(transport, header, secrets, may_upload=True)

    def wait_until_connected(self) -> None:
        """Wait for the connection; see `Link.wait_until_connected`."""
        self._transport()

    def host_key(self) -> str:
        """Return the host's public key that this connection verified, as `ssh-ed25519 AAAA...`."""
        key = self._transport().get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

    def run(self, argv: Sequence[str]) -> Channel:
        """Start a program on the host, and return the channel of its standard input and output."""
        return self._exec(self._transport(), join(argv))

    def close(self) -> None:
        """Close the connection; see `Link.close`."""
        self._closed = True
        if self._connection.done() and self._connection.exception() is None:
            self._connection.result().close()

    def _connect(self) -> None:
        try:
            connection = ssh_connection.open_connection(
                ssh_config.resolve(self._host), self._host.name, self._notes.append
            )
            if connection.transport is not None:
                self._ready_channel = self._exec(connection.transport, self._start_command)
            self._connection.set_result(connection)
            if self._closed:
                connection.close()
        except SparkwrightError as error:
            self._connection.set_exception(error)
        except Exception as error:
            self._connection.set_exception(self._lost_connection_error(f"{type(error).__name__}: {error}"))

    def _transport(self) -> paramiko.Transport:
        try:
            transport: paramiko.Transport | None = self._connection.result(timeout=CONNECT_TIMEOUT_S * 4).transport
        except TimeoutError:
            raise self._lost_connection_error("the connection attempt timed out") from None
        assert transport is not None
        return transport

    def _send_request(
        self, transport: paramiko.Transport, header: dict[str, Any], secrets: Mapping[str, Secret], *, may_upload: bool
    ) -> Iterator[Event]:
        channel, self._ready_channel = self._ready_channel, None
        channel = channel or self._exec(transport, self._start_command)
        deadline = _AnswerDeadline(READY_TIMEOUT_S)
        events = self._events(channel, deadline)
        try:
            first_event = yield from self._await_start(events)
            deadline.set(requests.answer_timeout_s(header))
            if first_event["event"] == "ready":
                yield from self._exchange(channel, events, header, secrets)
                return
            with contextlib.suppress(OSError):
                channel.shutdown_write()  # there will be no request
            collections.deque(events, maxlen=0)  # read to the end, so that standard error is complete
            yield from self._upload_runtime(
                transport, first_event, runtime.failed_start_output(channel), may_upload=may_upload
            )
        finally:
            channel.close()
        yield from self._send_request(transport, header, secrets, may_upload=False)

    def _await_start(self, events: Iterator[Event]) -> Generator[Event, None, Event]:
        """Yield the output of the login shell, and return the first event of the runner or bootstrap.

        The request is sent only after that event: if the login shell starts another shell, that shell would execute the request.
        """
        last_line = ""
        try:
            for row in events:
                if row["event"] in ("ready", "runtime_missing", "no_python"):
                    return row
                if row["event"] == "raw" and row["text"].strip():
                    last_line = row["text"].strip()
                    yield row
        except Unreachable as error:
            command = f"{self._manual_login_command} true"
            error.fix = f"No run was started on the host. Check that `{command}` exits and prints nothing."
            raise
        printed = f", but printed: {one_line(last_line.rstrip('.'), max_chars=200)}" if last_line else ""
        raise Refused(
            f"the login shell did not run the command{printed}.",
            where=self._host.name,
            fix=f"`{self._manual_login_command} true` must exit with 0 and print nothing; check ~/.bashrc on the host.",
        )

    @property
    def _manual_login_command(self) -> str:
        return ssh_config.resolve(self._host).manual_login_command

    def _exchange(
        self, channel: Channel, events: Iterator[Event], header: dict[str, Any], secrets: Mapping[str, Secret]
    ) -> Iterator[Event]:
        request = {**header, "secrets": {name: secret.reveal() for name, secret in secrets.items()}}
        message = ""
        # the runner may have exited already; its last output still has to be read
        with contextlib.suppress(OSError, paramiko.SSHException):
            channel.sendall(json.dumps(request, default=str).encode() + b"\n")
            channel.shutdown_write()
        for row in events:
            if row["event"] in ("runtime_missing", "no_python"):
                raise self._lost_connection_error("the runner was killed", run_continues=True)
            message = str(row.get("text", ""))
            yield row
            if row["event"] == "recap":
                return  # the last event: don't wait for the process to exit
        code = channel.recv_exit_status() if channel.exit_status_ready() else -1
        if code != 0:
            raise self._lost_connection_error(f"the runner exited with {code}; {runtime.last_output(channel, message)}")

    def _exec(self, transport: paramiko.Transport, command: str) -> Channel:
        try:
            channel = transport.open_session(timeout=CHANNEL_TIMEOUT_S)
            channel.settimeout(SILENCE_TIMEOUT_S)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost_connection_error(
                f"no channel within {CHANNEL_TIMEOUT_S:g} s ({error or type(error).__name__})"
            ) from None
        return channel

    def _events(self, channel: Channel, deadline: _AnswerDeadline) -> Iterator[Event]:
        event_reader, size = EventReader(), 0
        for data in self._chunks(channel, deadline):
            size += len(data)
            if size > MAX_EVENTS_BYTES:
                raise Failed(f"the host's answer is longer than {MAX_EVENTS_BYTES // 10**6} MB.", where=self._host.name)
            yield from event_reader.feed(data)
        yield from event_reader.end()

    def _chunks(self, channel: Channel, deadline: _AnswerDeadline) -> Iterator[bytes]:
        """Yield a program's output as it arrives.

        Raises:
            Unreachable: the program was silent for too long, or the connection was lost.
            Failed: the program is still writing at the time limit.
        """
        silence_s = channel.gettimeout()
        while True:
            try:
                channel.settimeout(deadline.wait_s(silence_s))
                data = channel.recv(CHUNK_BYTES)
            except TimedOut:
                message = f"the host's answer took longer than {deadline.seconds:g} s."
                raise Failed(message, where=self._host.name) from None
            except TimeoutError:
                if deadline.is_over():
                    continue
                raise self._lost_connection_error(f"silent for {silence_s:g} s", run_continues=True) from None
            if not data:
                break
            yield data
        # only the missing exit code distinguishes a lost connection from the end of the output
        has_exited = channel.status_event.wait(timeout=2.0) and channel.exit_status >= 0
        if not has_exited or channel.get_transport() is None:
            raise self._lost_connection_error("the connection was lost", run_continues=True)

    def _upload_runtime(
        self, transport: paramiko.Transport, start_event: Event, start_failure: str, *, may_upload: bool
    ) -> Iterator[Event]:
        """Upload the runtime, which is missing or damaged. start_failure: its last output if it did not start."""
        if start_event["event"] == "no_python":
            fix = "Install it (Debian, Ubuntu: `sudo apt install python3`)."
            raise Refused("the host has no Python 3.11 or newer.", where=self._host.name, fix=fix)
        if not may_upload:
            message = start_failure or "it was removed in the meantime"
            fix = f"Run `rm -r ~/{runtime.BOOTSTRAP_FOLDER}` on the host, then try again."
            raise Refused(f"the runtime was uploaded but does not start: {message}", where=self._host.name, fix=fix)
        if start_failure:
            yield event("note", task="", text=f"the runtime on the host does not start: {start_failure}", detail=False)
        interpreter = runtime.parse_interpreter(start_event, self._host.name)
        try:
            yield from runtime.upload_runtime(
                lambda command: self._exec(transport, command),
                lambda channel: self._events(channel, _AnswerDeadline(UNPACK_TIMEOUT_S)),
                interpreter,
                self._host.name,
            )
        except TimeoutError:
            raise self._lost_connection_error("the upload of the runtime timed out") from None
        except (Unreachable, paramiko.SSHException) as error:  # a ProxyCommand that exits raises the latter
            known_error = error if isinstance(error, Unreachable) else None
            upload_error = known_error or self._lost_connection_error("the connection was lost")
            upload_error.fix = "The runtime was being uploaded; no run was started on the host. Repeat the command."
            raise upload_error from None

    def _lost_connection_error(self, reason: str, *, run_continues: bool = False) -> Unreachable:
        fix = f"The run continues on the host: `invoke attach --host {self._host.name}`." if run_continues else ""
        return Unreachable(f"unreachable: {reason}.", where=self._host.name, fix=fix)
