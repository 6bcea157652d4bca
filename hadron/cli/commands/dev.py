"""`hadron dev`: one node in the foreground, everything on, nothing to configure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

_HTTP_ABOVE: Final = 200


@click.command("dev", short_help="Run one node in the foreground, with nothing to configure.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("hadron-data"),
    show_default=True,
    metavar="DIR",
    help="Where its files are kept.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    default=7000,
    show_default=True,
    help="The port of 127.0.0.1 to listen on.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=None,
    help="The port of 127.0.0.1 for HTTP; 0 is none.  [default: 200 above --port]",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="The port of 127.0.0.1 for gRPC; 0 is none, as by default.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def command(
    ctx: click.Context, data: Path, port: int, http_port: int | None, grpc_port: int, debug: bool
) -> int:
    """Run a cluster of one node until Ctrl-C; its data stays in DIR.

    \b
    Examples:
      hadron dev
      hadron dev --data /tmp/try --port 7999
    """
    from hadron.cli.session import session_of
    from hadron.node.main import run
    from hadron.node.replica_set import single_node_config
    from hadron.node.settings import settings_from_environment
    from hadron.storage.identity import read_epoch

    session_of(ctx).debug |= debug
    address = f"127.0.0.1:{port}"
    # First: whoever starts a second one here, and chooses another port, comes no further.
    _check_data(data)
    _check_port(address, "--port")
    http, note = _http(port, http_port)
    grpc = f"127.0.0.1:{grpc_port}" if grpc_port else None
    if grpc is not None:
        _check_port(grpc, "--grpc-port")
    _check_apart({"--port": address, "--http-port": http, "--grpc-port": grpc})
    # `hadron restore --data` begins an epoch.
    config = single_node_config(
        data,
        address,
        settings=settings_from_environment(os.environ),
        epoch=max(1, read_epoch(data)),
        http=http,
        grpc=grpc,
    )
    greeting = _greeting(address, config.leader.data, http) + note
    return run(config, config.leader.name, on_listening=lambda _node: click.echo(greeting))


def _check_data(data: Path) -> None:
    """Raises `DataDirectoryError` for a directory that another process uses."""
    from hadron.model.errors import DataDirectoryError
    from hadron.node.world import SystemDisk
    from hadron.storage.identity import LOCK, DirectoryLock

    if not (data / LOCK).is_file():
        return
    try:
        DirectoryLock(data, SystemDisk()).release()
    except DataDirectoryError as error:
        raise DataDirectoryError(
            error.message, "stop that node first, or choose another directory with --data"
        ) from error


def _http(port: int, given: int | None) -> tuple[str | None, str]:
    """Where HTTP is served, if it is, and what to say where it is not. A port that nobody has
    chosen keeps no node from starting."""
    from hadron.model.errors import ConfigurationError

    chosen = port + _HTTP_ABOVE if given is None else given
    if not 0 < chosen <= 65535:
        return None, ""
    address = f"127.0.0.1:{chosen}"
    try:
        _check_port(address, "--http-port")
    except ConfigurationError:
        if given is not None:
            raise
        return None, f"HTTP is not served: port {chosen} is in use (--http-port chooses another)\n"
    return address, ""


def _check_apart(addresses: dict[str, str | None]) -> None:
    """Raises `ConfigurationError` when two options have one port."""
    from hadron.model.errors import ConfigurationError

    first: dict[str, str] = {}
    for option, address in addresses.items():
        if address is not None and (other := first.setdefault(address, option)) != option:
            raise ConfigurationError(
                f"{other} and {option} are one port: {address.rpartition(':')[2]}",
                f"choose another one with {option}",
            )


def _check_port(address: str, option: str) -> None:
    """Before anything is created: a port in use must not leave a data directory behind."""
    from hadron.model.errors import ConfigurationError
    from hadron.node.supervision.cluster import check_ports
    from hadron.node.supervision.processes import ClusterError

    try:
        check_ports([("dev", address)])
    except ClusterError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: another process uses the port",
            f"stop that process, or choose another port with {option}",
        ) from error


def _greeting(address: str, data: Path, http: str | None) -> str:
    url = f"hadron://{address}"
    over_http = f"  curl http://{http}/v1/streams/hello/records\n" if http else ""
    server = "" if address.endswith(":7000") else f" --server {url}"
    return f"""\
one node at {url}, data in {data}; Ctrl-C stops it. In another terminal:

  hadron create stream hello{server}
  hadron pub hello first second third{server}
  hadron sub hello --from earliest{server}
{over_http}"""
