"""Reads and validates a gateway's certificate and key on the laptop."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.gateway.certificate import describe_dates_problem
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.models import TlsFile
from sparkwright.trust.names import expand_home

MAX_CERTIFICATE_BYTES = 256 * 1024


def check(project: Path, gateway: Gateway) -> None:
    """Raise Refused with file and line if the certificate or its key can't be used."""
    if gateway.file.tls != "none":
        read_pem(project, gateway)


def check_dates(project: Path, gateway: Gateway) -> None:
    """Raise Refused if the certificate is not valid now. A file that is not on this laptop is not checked."""
    tls = gateway.file.tls
    if tls != "none" and (project / expand_home(tls.certificate)).exists():
        where = gateway.where("tls")
        _refuse_dates(_read_certificate(project, tls, where), visible.display_name(tls.certificate), where)


def describe_name_mismatch(project: Path, gateway: Gateway, url: str) -> str:
    """Return why clients of a URL reject the certificate: it names other hosts. Empty if they do not, or if it can't be read."""
    tls, host = gateway.file.tls, urlsplit(url).hostname or ""
    if tls == "none":
        return ""
    try:
        certificate = x509.load_pem_x509_certificate(_read_certificate(project, tls, gateway.where("tls")).encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (Refused, ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return ""
    texts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    if {host, f"*.{host.partition('.')[2]}"} & {text.lower() for text in texts}:
        return ""
    listed_names = visible.one_line(visible.join_first(texts, 3), max_chars=200)
    return f"The certificate is for {listed_names}, not for {host}: clients must use a name of the certificate."


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
    _refuse_dates(certificate, name, where)


def _refuse_dates(certificate: str, name: str, where: str) -> None:
    if problem := describe_dates_problem(certificate):
        fix = "Renew it." if problem.startswith("expired") else "Check the clock, or use another certificate."
        raise Refused(f"`tls.certificate`: {name} {problem}.", where=where, fix=fix)
