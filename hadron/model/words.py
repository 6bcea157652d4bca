"""Words for people to read: numbers in sentences, and what exceptions say."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2,000 records`.

    Args:
        one: what is counted, and what follows that depends on how many there are.
        many: the same of several, or of none; "" for `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def with_article(name: str) -> str:
    """`a str`, `an int`: a type's name with its article, which a `u` as in `uint8` leaves an a."""
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def said_by(error: BaseException) -> str:
    """What an exception says of itself; nothing, where a class of a program's own raises when it is
    asked."""
    try:
        return f"{error}"
    except Exception:
        return ""
