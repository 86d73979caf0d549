"""A gateway's certificate and its validity, read without a library, because hosts have none for certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

PEM_BEGIN, PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
#: DER tag of the version
_VERSION_TAG = 0xA0
#: formats by DER tag: UTCTime, GeneralizedTime
_TIME_FORMATS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def first_certificate(pem: str) -> bytes:
    """Return the first certificate of a PEM text as DER. Raises ValueError if there is none."""
    _, begin, remainder = pem.partition(PEM_BEGIN)
    body, end, _ = remainder.partition(PEM_END)
    return ssl.PEM_cert_to_DER_cert(begin + body + end)


def describe_dates_problem(pem: str) -> str:
    """Return a predicate such as "expired on 2026-11-29" for the first certificate; empty if it is valid or can't be read."""
    try:
        valid_from, valid_until = _read_dates(first_certificate(pem))
    except (ValueError, IndexError):  # HAProxy does not load it
        return ""
    now = datetime.now(UTC)
    if now > valid_until:
        return f"expired on {valid_until:%Y-%m-%d}"
    return f"is not valid before {valid_from:%Y-%m-%d %H:%M} UTC" if now < valid_from else ""


def _read_dates(der: bytes) -> tuple[datetime, datetime]:
    """Return the begin and the end of the validity. Raises ValueError or IndexError if the data is not a certificate."""
    _, start, _ = _read_element(der, 0)  # Certificate
    _, start, _ = _read_element(der, start)  # TBSCertificate
    tag, _, end = _read_element(der, start)
    # before the validity: serial number, signature algorithm, issuer; the version before them is optional
    for _ in range(3 if tag == _VERSION_TAG else 2):
        _, _, end = _read_element(der, end)
    _, start, _ = _read_element(der, end)  # Validity
    valid_from, end = _read_time(der, start)
    return valid_from, _read_time(der, end)[0]


def _read_time(der: bytes, offset: int) -> tuple[datetime, int]:
    tag, start, end = _read_element(der, offset)
    time_format = _TIME_FORMATS.get(tag)
    if time_format is None:
        raise ValueError("not a time")
    return datetime.strptime(der[start:end].decode("ascii"), time_format).replace(tzinfo=UTC), end


def _read_element(der: bytes, offset: int) -> tuple[int, int, int]:
    """Return the tag of a DER element, and the offsets of its content and its end."""
    tag, length, start = der[offset], der[offset + 1], offset + 2
    if length & 0x80:  # the length is in the following bytes
        start += length & 0x7F
        length = int.from_bytes(der[offset + 2 : start])
    return tag, start, start + length
