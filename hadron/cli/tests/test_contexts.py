"""Which server is meant: flags, environment, contexts, default, in this order."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import hadron
from hadron.cli import main
from hadron.cli.session import Session
from hadron.client.connecting.contexts import LOCAL_CLUSTER, Contexts, contexts_path
from hadron.client.connecting.url import DEFAULT_URL, parse_url
from hadron.model.errors import ConfigurationError, NotFoundError, RequestError
from hadron.node.supervision.cluster import write_config
from hadron.spark.source.options import parse_options


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("HADRON_URL", "HADRON_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


def everybody_finds(url: str) -> bool:
    """Commands, programs of both kinds, and the Spark connector."""
    endpoint = parse_url(url)
    return (
        Session().url == url
        and hadron.connect()._session.endpoint == endpoint
        and hadron.connect_sync()._hold.template._session.endpoint == endpoint
        and parse_options({"stream": "s"}, streaming=False).url == url
    )


def test_all_look_a_server_up_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program talked to another cluster than the shell that had started it."""
    monkeypatch.chdir(tmp_path)
    assert everybody_finds(DEFAULT_URL)
    local = tmp_path / LOCAL_CLUSTER
    write_config(local, 2, "os", [7100, 7101])
    assert everybody_finds("hadron://127.0.0.1:7100,127.0.0.1:7101?cluster=local")
    assert main(["context", "set", "lab", "hadron://lab"]) == 0
    assert main(["context", "set", "home", "hadron://home/space"]) == 0
    assert everybody_finds("hadron://lab")
    monkeypatch.setenv("HADRON_CONTEXT", "home")
    assert everybody_finds("hadron://home/space")
    monkeypatch.setenv("HADRON_URL", "hadron://env:7001,env:7002")
    assert everybody_finds("hadron://env:7001,env:7002")
    assert hadron.connect("hadron://mine")._session.endpoint == parse_url("hadron://mine")
    monkeypatch.delenv("HADRON_URL")
    monkeypatch.setenv("HADRON_CONTEXT", "nowhere")
    for look in (hadron.connect, hadron.connect_sync, lambda: Session().url):
        with pytest.raises(NotFoundError, match="there is no context 'nowhere'"):
            look()
    monkeypatch.delenv("HADRON_CONTEXT")
    contexts_path().unlink()
    for text in ("", "- a", "replica_set: {}", "replica_set: {nodes: [{name: n1}]}", "a: ["):
        local.write_text(text)
        with pytest.raises(ConfigurationError, match="does not tell the cluster's addresses"):
            hadron.connect_sync()


def test_a_server_without_a_name_is_no_other_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program whose variable was empty wrote to whatever runs on this machine."""
    for look in (
        lambda: hadron.connect(""),
        lambda: hadron.connect_sync(""),
        lambda: Session(server="").url,
        lambda: parse_options({"stream": "s", "server": ""}, streaming=False),
    ):
        with pytest.raises(RequestError, match="the server's URL is empty"):
            look()
    for words in (["--server", "", "get", "streams"], ["get", "streams", "--server", ""]):
        assert main(words) == 1
        assert "the server's URL is empty" in capsys.readouterr().err
    for words in (["--context", "", "get", "streams"], ["get", "streams", "--context", ""]):
        assert main(words) == 1
        assert "there is no context ''" in capsys.readouterr().err
    # A variable that is empty is not set.
    monkeypatch.setenv("HADRON_URL", "")
    assert hadron.connect()._session.endpoint == parse_url(DEFAULT_URL)


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Session().url == DEFAULT_URL
    assert main(["context", "set", "lab", "hadron://lab"]) == 0
    assert main(["context", "set", "home", "hadron://home"]) == 0
    assert Session().url == "hadron://lab"
    assert main(["context", "use", "home"]) == 0
    assert Session().url == "hadron://home"
    monkeypatch.setenv("HADRON_CONTEXT", "lab")
    assert Session().url == "hadron://lab"
    monkeypatch.setenv("HADRON_URL", "hadron://env")
    assert Session().url == "hadron://env"
    assert Session(context="home").url == "hadron://home"
    assert Session(server="hadron://flag", context="home").url == "hadron://flag"


def test_tokens_are_kept_private(shown: Callable[[], str]) -> None:
    assert main(["context", "set", "lab", "hadron://secret@lab:7001"]) == 0
    assert stat.S_IMODE(contexts_path().stat().st_mode) == 0o600
    assert Contexts.load().url("lab") == "hadron://secret@lab:7001"
    shown()
    assert main(["context", "list"]) == 0
    text = shown()
    assert "secret" not in text
    assert "hadron://***@lab:7001" in text


def test_a_token_is_read_alike_with_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--server", "hadron://se#cret@127.0.0.1:0", "create", "namespace", "x"]
    assert main(given) == 1
    alone = capsys.readouterr().err
    assert main([*given[:2], "create", "stream", "x", "--namespace", "billing"]) == 1
    assert capsys.readouterr().err == alone
    assert "cret" not in alone


def test_removing_the_current_one_leaves_none() -> None:
    assert main(["context", "set", "lab", "hadron://lab"]) == 0
    assert main(["context", "remove", "lab"]) == 0
    assert Session().url == DEFAULT_URL
    assert Contexts.load().servers == {}


def test_a_context_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["set", "", "hadron://lab"], ["use", ""]):
        assert main(["context", *words]) == 2
        assert "a context's name cannot be empty" in capsys.readouterr().err
    assert Contexts.load().servers == {}


def test_unknown_names_and_bad_urls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "set", "lab", "http://lab"]) == 1
    assert "write it as hadron://lab" in capsys.readouterr().err
    assert main(["context", "set", "door", "grpc://lab"]) == 0
    assert main(["context", "use", "nowhere"]) == 1
    assert "there is no context 'nowhere'" in capsys.readouterr().err
    with pytest.raises(NotFoundError):
        _ = Session(context="nowhere").url


@pytest.mark.parametrize("text", ["- a list", "contexts: {lab: 1}", "a: [", "contexts: 3"])
def test_a_malformed_file_is_named(text: str) -> None:
    contexts_path().parent.mkdir()
    contexts_path().write_text(text)
    with pytest.raises(ConfigurationError, match=r"contexts\.yaml is malformed"):
        Contexts.load()
