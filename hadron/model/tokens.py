"""Secrets of tokens: how they are made, and what is kept of them.

A secret is 256 random bits, so one SHA-256 of it is all that has to be kept: nobody can try that
many, and slow or salted hashes, which protect what people choose, would only cost time at every
connection. It begins with a word, so that tools that look for leaked secrets can find it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from hadron.model.ports import Random

SECRET_PREFIX: Final = "hadron_"
SECRET_BYTES: Final = 32

_SHA256: Final = re.compile("[0-9a-f]{64}")


def make_secret(random: Random) -> str:
    """A new secret; its letters may stand in a URL (`hadron://SECRET@host`) as they are."""
    encoded = base64.urlsafe_b64encode(random.token_bytes(SECRET_BYTES))
    return SECRET_PREFIX + encoded.rstrip(b"=").decode()


def hash_secret(secret: str) -> str:
    """What is stored: the SHA-256 of the whole secret with its prefix, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_valid_hash(text: str) -> bool:
    """Whether it may be a `hash_secret`."""
    return _SHA256.fullmatch(text) is not None
