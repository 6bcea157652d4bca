"""What went wrong in a stage, told so that the first line says it all.

The full text is kept with the instance; terminals show its first line.
"""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from typing import Final

from hadron.model.errors import RequestError
from hadron.model.words import said_by

_MAX_TEXT: Final = 2_000
"""Characters of an error: enough for Spark's own message, without pages of Java stack."""

_FRAME: Final = re.compile(r'^\s*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_LIBRARIES: Final = ("site-packages", "dist-packages", "pyspark.zip", f"{os.sep}pyspark{os.sep}")
_HERE: Final = os.path.dirname(os.path.abspath(__file__))
_CALLED: Final = re.compile(r"An error occurred while calling \S+\.\n: ")
"""py4j's words in front of an exception of Java's, which has a name of its own."""
TRACEBACK: Final = "Traceback (most recent call last)"


RAISED: Final = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What users' code may raise in a thread that signals come to. In another one it is whatever is
raised."""


class StageError(RequestError):
    """A stage function does not import, raised, or returned the wrong columns."""


def summary(error: BaseException) -> str:
    """An exception of the user's or Spark's without the Java stack.

    The first line is the exception with the file and line of the user's code, where known; what
    Spark says about it follows.
    """
    text = said_by(error).split("\n\nJVM stacktrace:")[0].split("\n\tat ")[0].strip()
    raised = _raised_in_worker(text)
    if raised:
        return f"{raised}\n{_cut(text)}"
    if called := _CALLED.match(text):
        return _cut(text[called.end() :])
    first, newline, rest = _cut(text).partition("\n")
    words = f": {first.rstrip(';')}" if first else ""
    return f"{type(error).__name__}{words}{_place(error)}{newline}{rest}"


def in_java(text: str) -> str:
    """The same of an exception that Java has told as text, with its causes."""
    raised = _raised_in_worker(text)
    return f"{raised}\n{_cut(text)}" if raised else _cut(text)


def brief(reason: str, limit: int = 300) -> str:
    """The first line of a reason that says something, in at most `limit` characters."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    if first.endswith(":") and len(lines) > 1:
        first = f"{first} {lines[1]}"
    return first if len(first) <= limit else f"{first[: limit - 1]}…"


def _cut(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    # Python's tracebacks say what happened at the end, Spark's messages at the beginning.
    return f"{text[:half]} … {text[-half:]}"


def _raised_in_worker(text: str) -> str:
    """`ValueError: message (file, line n, in name)` out of a worker's traceback, or ""."""
    start = text.rfind(TRACEBACK)
    if start < 0:
        return ""
    frames = list(_FRAME.finditer(text, start))
    if not frames:
        return ""
    after = text[frames[-1].end() :].splitlines()[1:]
    raised = next((line.strip() for line in after if line.strip() and not line[0].isspace()), "")
    if not raised:
        return ""
    own = [frame for frame in frames if _is_users(frame[1])]
    return f"{raised} ({own[-1][1]}, line {own[-1][2]}, in {own[-1][3]})" if own else raised


def _place(error: BaseException) -> str:
    """` (file, line n, in name)` of the user's code that raised in this process, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def _is_users(path: str) -> bool:
    if path.startswith("<") or any(part in path for part in _LIBRARIES):
        return False
    return os.path.dirname(os.path.abspath(path)) != _HERE
