"""A self-signed certificate for loopback."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_self_signed(
    folder: Path, *, begin_days: float = -1, end_days: float = 1, address: str = "127.0.0.1"
) -> tuple[Path, Path]:
    """Write a certificate for localhost and an address into a folder. Return the paths of certificate and key.

    begin_days, end_days: its validity, in days from now.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=begin_days))
        .not_valid_after(now + datetime.timedelta(days=end_days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certificate_path, key_path = folder / "cert.pem", folder / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(pem))
    key_path.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return certificate_path, key_path
