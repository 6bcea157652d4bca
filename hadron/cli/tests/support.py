"""Commands as tests give them: in the tests' own process, without the half second that an
interpreter takes to start. What needs a process (signals, pipes, a closed stdin) starts one."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from hadron.cli import main


def run_bytes(*arguments: str, stdin: bytes = b"", **environment: str) -> CompletedProcess[bytes]:
    """Run one command line with these variables beside those that are set."""
    given, out, error = (
        io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (stdin, b"", b"")
    )
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "stdin", given)
        for name, value in environment.items():
            patch.setenv(name, value)
        # `hadron node` says where its log goes.
        patch.setattr(logging.root, "handlers", list(logging.root.handlers))
        patch.setattr(logging.root, "level", logging.root.level)
        status = main(arguments)
    return CompletedProcess(arguments, status, _written(out), _written(error))


def run_text(*arguments: str, stdin: str = "", **environment: str) -> CompletedProcess[str]:
    """The same of text."""
    done = run_bytes(*arguments, stdin=stdin.encode(), **environment)
    return CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def _written(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()
