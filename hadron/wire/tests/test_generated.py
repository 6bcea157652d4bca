"""The generated code in hadron/wire/_pb is what `make proto` makes of proto/ today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import hadron.wire

GENERATED = Path(hadron.wire.__file__).parent / "_pb"
PROTO = GENERATED.parents[2] / "proto"
# protoc writes the package of the .proto files; the modules live inside hadron.wire.
OUTSIDE = re.compile(r"^from hadron\.v1 import", re.MULTILINE)


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("hadron/v1/*.proto"))
    assert sources, f"no .proto files under {PROTO}"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *sources]
    subprocess.run(command, check=True)
    wanted = {
        path.name: OUTSIDE.sub("from hadron.wire._pb import", path.read_text())
        for path in (tmp_path / "hadron" / "v1").iterdir()
    }
    wanted["__init__.py"] = ""
    present = {path.name: path.read_text() for path in GENERATED.glob("*.py*")}
    assert sorted(present) == sorted(wanted), "run `make proto`"
    stale = [name for name in sorted(wanted) if present[name] != wanted[name]]
    assert not stale, f"run `make proto`: {', '.join(stale)} do not match proto/"
