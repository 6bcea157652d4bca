"""Which server a command talks to: options, environment, named contexts, default, in this order.

The root command and each command that connects take the same --server, --context and --debug, so
that people may write them where they think of them; the innermost one given wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hadron.cli.completing import complete_contexts

if TYPE_CHECKING:
    from hadron.client import SyncClient

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """What the command line said about the server.

    Attributes:
        server: the URL from --server, or None.
        context: the name from --context, or None.
        debug: whether tracebacks are wanted.
        flags: options of the command that speaks to it, by the names of their parameters.
    """

    server: str | None = None
    context: str | None = None
    debug: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The server's URL; raises what `find_server` raises."""
        from hadron.client.connecting.contexts import find_server

        return find_server(self.server, self.context)

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
            from hadron.client.connecting.url import with_namespace

            url = with_namespace(url, namespace)
        return connected_sync(url, timeout_s)


def is_local_cluster(url: str) -> bool:
    """Whether it is the cluster that other commands mean as well, when nothing else is said."""
    from hadron.client.connecting.contexts import local_cluster

    return url == local_cluster()


def session_of(ctx: click.Context) -> Session:
    """The session of this command line, made on first use, for this command from here on."""
    from hadron.cli.flags import flags_of

    session = ctx.find_root().ensure_object(Session)
    session.flags = flags_of(ctx.command)
    return session


def _remember(attribute: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        # One that is "" was meant to name something; a flag that is not given is False.
        if value is not None and value is not False:
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
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            help="Show tracebacks.",
            callback=_remember("debug"),
        ),
        click.option(
            "--context",
            metavar="NAME",
            expose_value=False,
            shell_complete=complete_contexts,
            help="A named context to connect to.",
            callback=_remember("context"),
        ),
        click.option(
            "--server",
            metavar="URL",
            expose_value=False,
            help="hadron://[token@]host1,host2[/namespace]; without a context, the "
            "default is ./hadron-cluster if there is one, else 127.0.0.1:7000.",
            callback=_remember("server"),
        ),
    ):
        function = decorate(function)
    return function
