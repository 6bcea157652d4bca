"""A node whose way to other nodes leads through a fault proxy.

    python -m hadron.testing.routed_node ROUTES --config FILE --name NODE

ROUTES is a JSON file: address as everybody knows it → address that this node dials instead. Nodes
of other replica sets are found by what they say of themselves, so no configuration file can send a
node another way to them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from hadron.model.errors import HadronError
from hadron.node.config import load_config
from hadron.node.main import run
from hadron.testing.cluster import Routes


def main() -> int:
    """Run the node until SIGTERM; says like `hadron node` why it could not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("routes", type=Path)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--name", required=True)
    given = parser.parse_args()
    routes = msgspec.json.decode(given.routes.read_bytes(), type=dict[str, str])
    try:
        return run(load_config(given.config, os.environ), given.name, network=Routes(routes))
    except HadronError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
