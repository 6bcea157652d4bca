"""Which server: the clusters that a person uses, by name, in one YAML file of theirs, and where
else a program or a command looks for one.

The file is `$XDG_CONFIG_HOME/hadron/contexts.yaml` (else under `~/.config`). URLs may hold tokens,
so it is written for its owner only, and tokens are never printed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hadron.client.connecting.url import DEFAULT_URL
from hadron.model.errors import ConfigurationError, NotFoundError, RequestError

LOCAL_CLUSTER: Final = "hadron-cluster/cluster.yaml"
"""What `hadron cluster up` writes: in its directory, every node is found by itself."""


def contexts_path() -> Path:
    """Where contexts are kept, by the XDG rules."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "hadron" / "contexts.yaml"


@dataclass(slots=True)
class Contexts:
    """The file's content: URLs by name, and the one in use."""

    path: Path
    current: str | None = None
    servers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """Read the file; an absent one is empty. Raises `ConfigurationError` when malformed."""
        path = contexts_path()
        try:
            text = path.read_text()
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        import yaml

        try:
            document = yaml.safe_load(text) or {}
            servers = {
                str(name): str(entry["server"])
                for name, entry in (document.get("contexts") or {}).items()
            }
            current = document.get("current")
        except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path} is malformed: {str(error).splitlines()[0]}",
                "repair it, or delete it and use `hadron context set NAME URL`",
            ) from error
        return cls(path, None if current is None else str(current), servers)

    def save(self) -> None:
        """Write the file, whole or not at all, readable by its owner only."""
        import yaml

        document = {
            "current": self.current,
            "contexts": {name: {"server": url} for name, url in sorted(self.servers.items())},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            yaml.safe_dump(document, file, sort_keys=False)
        draft.replace(self.path)

    def url(self, name: str) -> str:
        """Raises `NotFoundError` naming the contexts that exist."""
        if name not in self.servers:
            known = ", ".join(sorted(self.servers)) or "none yet"
            raise NotFoundError(
                f"there is no context {name!r}",
                f"known contexts: {known}; add one with `hadron context set {name} URL`",
            )
        return self.servers[name]


# --- which server -------------------------------------------------------------------------------


def find_server(url: str | None = None, context: str | None = None) -> str:
    """The URL of the server to talk to: the one place where programs, commands and the Spark
    connector look it up.

    The first of: `url`; the context called `context`; `$HADRON_URL`; the context called
    `$HADRON_CONTEXT`, or else the current one; every node of the cluster that `hadron cluster up`
    made in this directory; one node of this machine. Raises `NotFoundError` for an unknown context,
    `ConfigurationError` for a file that cannot be read, `RequestError` for a `url` that is "": who
    has read it from somewhere has a server in mind, and it may be another one.
    """
    if url == "":
        raise RequestError(
            "the server's URL is empty", "None, or leaving it out, looks the server up"
        )
    if url is not None:
        return url
    if context is not None:
        return Contexts.load().url(context)
    if found := os.environ.get("HADRON_URL"):
        return found
    contexts = Contexts.load()
    name = os.environ.get("HADRON_CONTEXT") or contexts.current
    return contexts.url(name) if name else local_cluster() or DEFAULT_URL


def local_cluster() -> str:
    """The URL of every node of the cluster that was made in this directory, and of no other that
    has its ports now; "" without one."""
    path = Path(LOCAL_CLUSTER)
    if not path.is_file():
        return ""
    import yaml

    try:
        made = yaml.safe_load(path.read_text())
        nodes = made["replica_set"]["nodes"]
        addresses = ",".join(str(node["address"]) for node in nodes)
        return f"hadron://{addresses}?cluster={made['cluster']}"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} does not tell the cluster's addresses: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}",
            "repair it, or name the server: HADRON_URL, or --server for commands",
        ) from error
