"""Reads and validates a gateway's certificate and key on the laptop."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.models import TlsFile
from sparkwright.trust.names import expand_home

MAX_CERTIFICATE_BYTES = 256 * 1024


def check(project: Path, gateway: Gateway) -> None:
    """Raise Refused with file and line if the certificate or its key can't be used."""
    if gateway.file.tls != "none":
        read_pem(project, gateway)


def read_pem(project: Path, gateway: Gateway) -> str:
    """Return certificate, chain and key as one PEM text for HAProxy; empty without TLS. Raises Refused like `check`."""
    if gateway.file.tls == "none":
        return ""
    where, tls = gateway.where("tls"), gateway.file.tls
    certificate = _read_certificate(project, tls, where)
    key = secret_source.read_secret(f"{gateway.name}.gateway.tls.key", tls.key)
    if not key:
        source = secret_source.describe_source(tls.key)
        raise Refused(f"`tls.key`: {source} provides no key.", where=where, fix="Set it, or write `tls: none`.")
    _refuse_mismatch(certificate, key.reveal(), visible.display_name(tls.certificate), where)
    return f"{certificate.rstrip()}\n{key.reveal().strip()}\n"


def _read_certificate(project: Path, tls: TlsFile, where: str) -> str:
    path = project / expand_home(tls.certificate)
    name = visible.display_name(tls.certificate)
    try:
        with path.open("rb") as file:
            return file.read(MAX_CERTIFICATE_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not PEM text"
        raise Refused(f"`tls.certificate`: cannot read {name}: {reason}.", where=where) from None


def _refuse_mismatch(certificate: str, key: str, name: str, where: str) -> None:
    encoding = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        parsed_certificate = x509.load_pem_x509_certificate(certificate.encode())
        certificate_public_key = parsed_certificate.public_key().public_bytes(*encoding)
    except (ValueError, UnsupportedAlgorithm):
        raise Refused(
            f"`tls.certificate`: {name} contains no certificate.", where=where, fix="It must be in PEM format."
        ) from None
    try:
        derived_public_key = load_pem_private_key(key.encode(), None).public_key().public_bytes(*encoding)
    except TypeError:
        fix = "Use one without a password: `openssl pkey -in KEY -out PLAIN`."
        raise Refused("`tls.key`: the key is encrypted.", where=where, fix=fix) from None
    except (ValueError, UnsupportedAlgorithm):
        raise Refused("`tls.key`: not a private key.", where=where, fix="It must be in PEM format.") from None
    if derived_public_key != certificate_public_key:
        fix = "Use the certificate's own key."
        raise Refused(f"`tls`: the key does not match the certificate {name}.", where=where, fix=fix)
    _refuse_dates(parsed_certificate.not_valid_before_utc, parsed_certificate.not_valid_after_utc, name, where)


def _refuse_dates(valid_from: datetime.datetime, valid_until: datetime.datetime, name: str, where: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if now > valid_until:
        raise Refused(f"`tls.certificate`: {name} expired on {valid_until:%Y-%m-%d}.", where=where, fix="Renew it.")
    if now < valid_from:
        raise Refused(f"`tls.certificate`: {name} is not valid before {valid_from:%Y-%m-%d %H:%M} UTC.", where=where)
