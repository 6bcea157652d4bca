"""A mistake in a program that concerns all that it does: it ends the program, and fails nothing."""

from __future__ import annotations

from hadron.model.errors import RequestError


class UndeclaredOutputError(RequestError):
    """An output is given of a stage that declares none, and so has no place for it.

    It is the same for each instance, and what each attempt does before would be done again: no
    attempt is used up, and the invocation is given back.
    """
