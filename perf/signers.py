"""Who may sign baselines: public Ed25519 keys by name, and private keys as OpenSSH writes them (RFC 8032).

A file of signers has lines like ``allowed_signers`` of ssh-keygen(1): ``NAME ssh-ed25519 AAAA... [comment]``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class BadSigner(ValueError):
    """A key, a file of signers or a name that cannot be used; the message says which rule it breaks."""


def load_signers(path: Path) -> dict[str, list[Ed25519PublicKey]]:
    """Public keys by name, of lines ``NAME ssh-ed25519 AAAA... [comment]``; a name may have several keys.

    Keys that were replaced stay, since what they signed is verified with them. A missing file has no signers.

    Raises:
        BadSigner: a line is none, or two names share a key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    signers: dict[str, list[Ed25519PublicKey]] = {}
    owners: dict[bytes, str] = {}
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise BadSigner(f"{path.name}: is not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, kind, key = words[:3]
            public = load_ssh_public_key(f"{kind} {key}".encode())
        except Exception:  # cryptography raises half a dozen classes for half a dozen ways to be no key
            raise BadSigner(f"{path.name}:{number}: a line is NAME ssh-ed25519 AAAA...") from None
        if not isinstance(public, Ed25519PublicKey):
            raise BadSigner(f"{path.name}:{number}: {kind} of {name}: only ssh-ed25519 is read")
        if owners.setdefault(public.public_bytes_raw(), name) != name:
            raise BadSigner(f"{path.name}:{number}: {name} has the key of {owners[public.public_bytes_raw()]}")
        signers.setdefault(name, []).append(public)
    return signers


def load_private_key(path: Path, password: bytes | None = None) -> Ed25519PrivateKey:
    """An OpenSSH private key.

    Raises:
        BadSigner: it is readable by others, needs another password, or is no Ed25519 key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise BadSigner(f"{path.name}: others can read this private key: chmod 600")
    try:
        private = load_ssh_private_key(path.read_bytes(), password)
    except TypeError:
        raise BadSigner(f"{path.name}: the key has a passphrase and none was given, or has none") from None
    except UnsupportedAlgorithm as error:
        raise BadSigner(f"{path.name}: keys with a passphrase need the package bcrypt: {error}") from None
    except Exception:  # as for public keys
        raise BadSigner(f"{path.name}: no OpenSSH private key, or another passphrase") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise BadSigner(f"{path.name}: {type(private).__name__}: only Ed25519 keys sign")
    return private


def needs_password(path: Path) -> bool:
    """Whether an OpenSSH private key is encrypted."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        load_ssh_private_key(path.read_bytes(), None)
    except TypeError:
        return True
    except Exception:  # without bcrypt, or no key at all: whoever loads it says so
        return False
    return False


def make_key(name: str, path: Path, password: bytes | None = None) -> str:
    """Write a new private key that only its owner can read, and return the signer's line for it.

    Raises:
        BadSigner: the name has blanks or begins like a comment, or a passphrase is given and bcrypt is not installed.
        FileExistsError: a file is there; keys are never overwritten.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not name or len(name.split()) != 1 or name.startswith("#"):
        raise BadSigner(f"name {name!r}: a signer's name is one word")
    private = Ed25519PrivateKey.generate()
    sealing = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    try:
        text = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, sealing)
    except UnsupportedAlgorithm as error:
        raise BadSigner(f"{path.name}: a passphrase needs the package bcrypt: {error}") from None
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(text)
    return public_line(private, name)


def public_line(private: Ed25519PrivateKey, name: str = "NAME") -> str:
    """The line of ``signers`` for a key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return f"{name} {private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}"
