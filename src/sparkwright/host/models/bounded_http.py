"""HTTP to an untrusted hub: answers are limited in bytes and time; redirects are few, and to http or https only.

A token goes only to the host it is for: requests removes it when redirected to another one, and so does hf_transfer
(tests/modules/test_hostile_hub.py checks both).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from sparkwright.errors import Failed
from sparkwright.host.output import within

#: limit of an answer read into memory: metadata, an error, a redirect. A model of 20,000 files is described in 8 MB
ANSWER_BYTES = 16 * 2**20
REDIRECTS = 10
SILENCE_S, ANSWER_S = 30.0, 120.0


def patient(retries: int, *, connect: int | None = None) -> Retry:
    """Return the retry policy for a busy hub: pauses of 0.5, 1, 2 s, whatever Retry-After says.

    Args:
        retries: after an answer of 429, 500 and the like.
        connect: after a refused connection; None: as many.
    """
    return Retry(
        total=None,
        connect=retries if connect is None else connect,
        read=0,
        other=0,
        status=retries,
        status_forcelist=(429, 500, 502, 503, 504),
        backoff_factor=0.5,
        respect_retry_after_header=False,
        raise_on_status=False,
    )


def session(retries: Retry | int = 0) -> requests.Session:
    """Return a session whose answers are limited in size, except for files that are streamed to the disk."""
    session = requests.Session()
    session.max_redirects = REDIRECTS
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Bounded(max_retries=retries))
    return session


def get(url: str, headers: Mapping[str, str]) -> requests.Response:
    """Request a short answer, with retries while the hub is busy. Raises requests.RequestException, Failed if it is too long."""
    headers = {**headers, "Accept-Encoding": "identity"}

    def ask() -> requests.Response:
        with session(patient(2, connect=0)) as http:
            return http.get(url, headers=headers, timeout=SILENCE_S)

    try:
        return within(ANSWER_S, ask)  # an occasional byte keeps each read alive: only a deadline ends that
    except TimeoutError as error:
        raise requests.Timeout(str(error)) from None


class _Bounded(HTTPAdapter):
    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any
    ) -> requests.Response:
        response = super().send(request, stream, *args, **kwargs)
        if not stream or response.is_redirect or not response.ok:
            response.raw = _AtMost(response.raw, ANSWER_BYTES)
        return response


class _AtMost:
    """A response body that raises an error after a number of bytes."""

    def __init__(self, raw: Any, at_most: int) -> None:
        self._raw = raw
        self._left = at_most

    def stream(self, amount: int, decode_content: bool | None = None) -> Iterator[bytes]:
        for data in self._raw.stream(amount, decode_content=decode_content):
            self._left -= len(data)
            if self._left < 0:
                self._raw.close()
                raise Failed(f"the response exceeds {ANSWER_BYTES // 2**20} MiB.")
            yield data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
