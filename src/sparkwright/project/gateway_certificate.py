"""A gateway's certificate and key: read and checked on the laptop."""

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
from sparkwright.trust.names import below_home

LARGEST_BYTES = 256 * 1024


def refuse(project: Path, gateway: Gateway) -> None:
    """Raise Refused with file and line for a certificate that cannot be used now."""
    if gateway.file.tls != "none":
        pem(project, gateway)


def pem(project: Path, gateway: Gateway) -> str:
    """Return certificate, chain and key in one text, as HAProxy reads them; empty without TLS. Raises Refused."""
    if gateway.file.tls == "none":
        return ""
    where, about = gateway.where("tls"), gateway.file.tls
    written = _certificate(project, about, where)
    key = secret_source.read("the gateway's key", about.key)
    if not key:
        named = secret_source.named(about.key)
        raise Refused(f"`tls.key`: {named} holds no key.", where=where, fix="Set it, or write `tls: none`.")
    _refuse_misfit(written, key.reveal(), visible.name(about.certificate), where)
    return f"{written.rstrip()}\n{key.reveal().strip()}\n"


def _certificate(project: Path, about: TlsFile, where: str) -> str:
    path = project / below_home(about.certificate)
    shown = visible.name(about.certificate)
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no PEM text"
        raise Refused(f"`tls.certificate`: cannot read {shown}: {reason}.", where=where) from None


def _refuse_misfit(certificate: str, key: str, shown: str, where: str) -> None:
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        read = x509.load_pem_x509_certificate(certificate.encode())
        theirs = read.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):
        raise Refused(f"`tls.certificate`: {shown} holds no certificate.", where=where, fix="It must be PEM.") from None
    try:
        ours = load_pem_private_key(key.encode(), None).public_key().public_bytes(*form)
    except TypeError:
        fix = "Hand over one without a password: `openssl pkey -in KEY -out PLAIN`."
        raise Refused("`tls.key`: the key is encrypted.", where=where, fix=fix) from None
    except (ValueError, UnsupportedAlgorithm):
        raise Refused("`tls.key`: this is not a private key.", where=where, fix="It must be PEM.") from None
    if ours != theirs:
        raise Refused(f"`tls`: the key does not match the certificate {shown}.", where=where, fix="Use its own key.")
    _refuse_dates(read.not_valid_before_utc, read.not_valid_after_utc, shown, where)


def _refuse_dates(begins: datetime.datetime, ends: datetime.datetime, shown: str, where: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if now > ends:
        raise Refused(f"`tls.certificate`: {shown} expired on {ends:%Y-%m-%d}.", where=where, fix="Renew it.")
    if now < begins:
        raise Refused(f"`tls.certificate`: {shown} is not valid before {begins:%Y-%m-%d %H:%M} UTC.", where=where)
