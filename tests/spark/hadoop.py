"""Hadoop without work for each job and file that no test needs."""

from __future__ import annotations

import functools
from typing import Any

from pyspark.sql import SparkSession

_CLASS = "org.apache.hadoop.fs.UnmodedLocalFileSystem"
_SOURCE = """
package org.apache.hadoop.fs;

import org.apache.hadoop.fs.permission.FsPermission;

public class UnmodedLocalFileSystem extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) {}
}
"""


def lighten(session: SparkSession) -> None:
    """Make Hadoop light for a new application: no modes of local files, no settings but those that were made.

    Hadoop starts a process for the mode of each file and directory, since its native library is not there.
    Its settings travel with each job; the thousand defaults, which its code has as well, take a twentieth
    of a second there, compressed one by one.
    """
    jvm: Any = session._jvm
    _define(jvm)
    # Both add to the defaults, whereupon all are read again.
    session._jsparkSession.sessionState().newHadoopConf()
    jvm.org.apache.hadoop.mapred.JobConf()
    settings = session.sparkContext._jsc.hadoopConfiguration()
    settings.clear()
    for name, value in session.sparkContext.getConf().getAll():
        if name.startswith("spark.hadoop."):
            settings.set(name.removeprefix("spark.hadoop."), value)
    settings.set("fs.file.impl", _CLASS)
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()


@functools.cache
def _define(jvm: Any) -> None:
    """Compile the class with Spark's own compiler, once in a JVM, beside the one that it extends."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE)
    parent = jvm.java.lang.Class.forName("org.apache.hadoop.fs.RawLocalFileSystem")
    handles = jvm.java.lang.invoke.MethodHandles
    handles.privateLookupIn(parent, handles.lookup()).defineClass(compiler.getBytecodes()[_CLASS])
