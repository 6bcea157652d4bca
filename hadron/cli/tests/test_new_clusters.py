"""`hadron cluster up` where there is no cluster yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadron.cli.commands import cluster
from hadron.node.supervision import detached
from hadron.node.supervision.cluster import free_ports


def test_a_cluster_that_is_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped path would be one, without a word."""
    monkeypatch.setattr(detached, "_PORTS", free_ports(3))
    monkeypatch.setattr(detached, "_HTTP_PORTS", free_ports(3))
    monkeypatch.chdir(tmp_path)
    for given, named in ((Path("typodir"), "typodir"), (None, "hadron-cluster")):
        cluster._fleet(given, (), create=True)
        assert capsys.readouterr().err == f"new cluster in {named}\n"
        cluster._fleet(given, (), create=True)
        assert capsys.readouterr().err == ""
