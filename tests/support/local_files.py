"""``python -m tests.support.local_files FOLDER``: a jar with which Spark's Java sets the rights of local files itself.

Without its native library, which no package brings, Hadoop starts a ``chmod`` for each file and folder that it makes,
for the checksum beside each file too, and a ``readlink`` for each that it renames. A batch that keeps state makes
hundreds: half of its time was these programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

JAR = "local-files.jar"
_SOURCE = Path(__file__).with_name("java") / "LocalFiles.java"
_PROPERTIES = {"fs.file.impl": "LocalFiles", "fs.AbstractFileSystem.file.impl": "LocalFiles$InContext"}


def behind(folder: Path) -> dict[str, str]:
    """The environment of a Spark that has a folder's jar behind its own; of one as it is, without a jar.

    An archive of classes fits as long as its own jars come first. A ``core-site.xml`` in a folder of configuration
    comes first, too: where one is, all is as without the jar.
    """
    jar = folder / JAR
    return {"SPARK_DIST_CLASSPATH": str(jar)} if jar.exists() else {}


def main(folder: Path) -> None:
    """Make it, whole from the moment that it is there: a Spark may start meanwhile, or have an older one open. By the
    module of Java's compiler: whoever has it need not have ``javac`` on PATH."""
    import pyspark

    folder.mkdir(parents=True, exist_ok=True)
    jars = os.pathsep.join(map(str, Path(pyspark.__path__[0], "jars").glob("*.jar")))
    with tempfile.TemporaryDirectory() as made:
        compiler = ["java", "--module", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17", "-nowarn"]
        subprocess.run([*compiler, "-proc:none", "-cp", jars, "-d", made, str(_SOURCE)], check=True)
        named = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in _PROPERTIES.items()
        )
        unfinished = folder / f"{JAR}.unfinished"
        with ZipFile(unfinished, "w") as jar:
            jar.writestr("core-site.xml", f"<configuration>{named}</configuration>")
            for path in sorted(Path(made).iterdir()):
                jar.write(path, path.name)
        unfinished.replace(folder / JAR)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
