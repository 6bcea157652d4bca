"""Named contexts: the clusters that a person uses, in one YAML file of theirs.

The file is `$XDG_CONFIG_HOME/hadron/contexts.yaml` (else under `~/.config`). URLs may hold tokens,
so it is written for its owner only, and tokens are never printed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hadron.model.errors import ConfigurationError, NotFoundError


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
            servers = {str(name): str(entry["server"])
                       for name, entry in (document.get("contexts") or {}).items()}
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
