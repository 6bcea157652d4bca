"""Where a measurement keeps its cluster's files: gone when it ends, whoever ends it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hadron.node.supervision.ending import ended_by_signals


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for this block, which SIGTERM and SIGHUP end as Ctrl-C does."""
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory:
        yield Path(directory)
