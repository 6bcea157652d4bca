"""Which server a command talks to: options, environment, named contexts, default, in this order.

The root command and each command that connects take the same --server, --context and --debug, so
that people may write them where they think of them; the innermost one given wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from hadron.client.sync import SyncClient

DEFAULT_URL: Final = "hadron://127.0.0.1:7000"
LOCAL_CLUSTER: Final = "hadron-cluster/cluster.yaml"
"""What `hadron cluster up` writes: in its directory, commands find every node by themselves."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """What the command line said about the server.

    Attributes:
        server: the URL from --server, or None.
        context: the name from --context, or None.
        debug: whether tracebacks are wanted.
    """

    server: str | None = None
    context: str | None = None
    debug: bool = False

    @property
    def url(self) -> str:
        """The server's URL. Raises `ConfigurationError` for an unknown context."""
        from hadron.cli.contexts import Contexts

        if self.server:
            return self.server
        if self.context:
            return Contexts.load().url(self.context)
        if url := os.environ.get("HADRON_URL"):
            return url
        contexts = Contexts.load()
        name = os.environ.get("HADRON_CONTEXT") or contexts.current
        return contexts.url(name) if name else _default_url()

    def connect(
        self, *, namespace: str = "", timeout_s: float | None = None
    ) -> AbstractContextManager[SyncClient]:
        """A blocking client of the server; use it as a context manager.

        Args:
            namespace: in place of the one in the URL; "" for that one.
            timeout_s: how long to connect and to wait for an answer, when it is not to be as usual.
        """
        from hadron.cli.patience import connected_sync

        url = self.url
        if namespace:
            url = urlsplit(url)._replace(path=f"/{namespace}").geturl()
        return connected_sync(url, timeout_s)


def _default_url() -> str:
    """All nodes of the cluster that `hadron cluster up` made in this directory, else one node."""
    path = Path(LOCAL_CLUSTER)
    if not path.is_file():
        return DEFAULT_URL
    from hadron.node.config import load_config
    from hadron.node.supervision.cluster import cluster_url

    return cluster_url(load_config(path, os.environ))


def is_local_cluster(url: str) -> bool:
    """Whether it is the cluster that other commands mean as well, when nothing else is said."""
    return Path(LOCAL_CLUSTER).is_file() and url == _default_url()


def session_of(ctx: click.Context) -> Session:
    """The session of this command line, made on first use."""
    return ctx.find_root().ensure_object(Session)


def _remember(attribute: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value:
            session = session_of(ctx)
            setattr(session, attribute, value)
            if attribute == "server":
                session.context = None
            elif attribute == "context":
                session.server = None
        return value

    return callback


def connects(function: _Function) -> _Function:
    """Give a command --server, --context and --debug; read them with `session_of`."""
    for decorate in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.",
                     callback=_remember("debug")),
        click.option("--context", metavar="NAME", expose_value=False,
                     help="A named context to connect to.", callback=_remember("context")),
        click.option("--server", metavar="URL", expose_value=False,
                     help="hadron://[token@]host1,host2[/namespace]; without a context, the "
                          "default is ./hadron-cluster if there is one, else 127.0.0.1:7000.",
                     callback=_remember("server")),
    ):
        function = decorate(function)
    return function
