"""Has tasks of Spark that raise end by themselves, without their job and its other tasks.

Spark fails a job with its first task that fails for good. What keeps a task from it has to run in
Java, and a package of Python's brings no Java class: it is compiled when it is first wanted, by the
compiler that Spark has for its own generated code, and sent to the executors as a jar.
"""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hadron.spark.session import scratch_directory

if TYPE_CHECKING:
    from pyspark import SparkContext

_SOURCE: Final = Path(__file__).with_name("Caught.java")
_CLASS: Final = "hadron.Caught"


@functools.lru_cache(maxsize=1)
def caught(context: SparkContext) -> Any:
    """What Spark's `JavaRDD.mapPartitions` takes: see `Caught.java`. Blocks while it is compiled,
    for as long as it takes only once in a session."""
    internal: Any = context
    compiler = internal._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE.read_text())
    jar = scratch_directory() / "caught.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    internal._jsc.addJar(str(jar))
    nothing = internal._gateway.new_array(internal._jvm.java.lang.Class, 0)
    made = compiler.getClassLoader().loadClass(_CLASS).getDeclaredConstructor(nothing)
    return made.newInstance(internal._gateway.new_array(internal._jvm.java.lang.Object, 0))
