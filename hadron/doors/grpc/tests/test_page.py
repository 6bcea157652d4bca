"""docs/GRPC.md is true: its Python is run against a node, with code that protoc makes of proto/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hadron.node.supervision.cluster import LocalCluster

_ROOT = Path(__file__).parents[4]
PAGE = (_ROOT / "docs" / "GRPC.md").read_text()
PROGRAM = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_its_program_does_what_it_says(cluster: LocalCluster, tmp_path: Path) -> None:
    proto = _ROOT / "proto"
    sources = sorted(str(path.relative_to(proto)) for path in proto.glob("hadron/v1/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}"]
    command += [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", *sources]
    subprocess.run(command, check=True)
    # The page's program knows proto/ alone; here the package is installed, which has the same name.
    (tmp_path / "hadron" / "__init__.py").touch()
    assert cluster.config.leader.grpc is not None
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("localhost:7100", cluster.config.leader.grpc))
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
            f"exec(open({str(program)!r}).read())",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "local/p0 0"
    assert printed[1].startswith("0 {")
    assert printed[2].startswith("{")
    assert printed[3].endswith(" 2")
    assert printed[4:] == ['{"price": 6}', "eu.ibm 131.2 0 1"]
