"""Secrets: as long as they should be, safe in a URL, and never kept."""

from __future__ import annotations

import hashlib
import string

from hadron.model.tokens import SECRET_PREFIX, hash_secret, is_valid_hash, make_secret


class Bytes:
    """`ports.Random` that says what it was asked for."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.counts: list[int] = []

    def token_bytes(self, count: int) -> bytes:
        self.counts.append(count)
        return bytes([self.value]) * count

    def uniform(self, low: float, high: float) -> float:
        raise AssertionError((low, high))


def test_a_secret_has_256_bits_and_letters_for_urls() -> None:
    random = Bytes(0xFF)
    secret = make_secret(random)
    assert random.counts == [32]
    assert secret.startswith(SECRET_PREFIX)
    assert len(secret) == len(SECRET_PREFIX) + 43
    assert set(secret) <= {*string.ascii_letters, *string.digits, "-", "_"}
    assert secret != make_secret(Bytes(0xFE))


def test_only_its_sha_256_is_kept() -> None:
    secret = make_secret(Bytes(1))
    assert hash_secret(secret) == hashlib.sha256(secret.encode()).hexdigest()
    assert is_valid_hash(hash_secret(secret))


def test_what_is_not_a_hash() -> None:
    good = "0" * 64
    assert is_valid_hash(good)
    for bad in ("", good[1:], good + "0", "A" * 64, "g" * 64, good + "\n", make_secret(Bytes(2))):
        assert not is_valid_hash(bad)
