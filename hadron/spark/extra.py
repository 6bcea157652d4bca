"""Whether the `spark` extra is installed: looked at before anything is begun that needs it.

Imports none of it by itself, so that it can be asked without.
"""

from __future__ import annotations

import importlib
from typing import Final

from hadron.model.errors import ConfigurationError
from hadron.model.extras import install

INSTALL: Final = install("spark")
"""No package index has Hadron yet: the way is a clone, from inside it or by its path. Commands'
help and the README say the same (`test_extra`)."""

_MODULES: Final = ("numpy", "pandas", "pyarrow", "pyspark")


def check_extra() -> None:
    """Raises `ConfigurationError` when a package of the extra cannot be imported, or when there is
    no Java to run Spark on."""
    from hadron.spark.java import find_java

    missing: list[str] = []
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing.append(error.name or name)
        except ImportError as error:
            raise ConfigurationError(
                f"Spark's package {name} is installed and does not import: {error}", INSTALL
            ) from error
    if missing:
        raise ConfigurationError(
            f"Spark is not installed: there is no {', '.join(dict.fromkeys(missing))}", INSTALL
        )
    find_java()
