"""`kept prepare`: fetch once what the local cluster runs on."""

from __future__ import annotations

import click

from kept.cli.output import download_bar, say
from kept.errors import FixMachine


@click.command()
def prepare() -> None:
    """Get Java and the jars of brokers and Spark, so that `kept up` and `kept run` start at once.

    Java comes from JAVA_HOME or PATH; where there is none it is installed (by apt-get as root on Debian or Ubuntu,
    into kept's cache otherwise).
    """
    from kept.local.class_archive import make_archive
    from kept.local.java import install_java
    from kept.local.runtime import prepared

    java = install_java(say)
    with download_bar() as progress:
        runtime = prepared(say, progress)
    make_archive(runtime, say)
    _prepare_spark()
    say(f"ready: Java {java.version} at {java.executable}, {len(runtime.jars)} jars verified")


def _prepare_spark() -> None:
    """Where kept[spark] is installed."""
    from kept.local.jars import fetch, spark_jars
    from kept.local.places import cache_directory
    from kept.local.runtime import in_words

    try:
        from kept.spark.class_archive import make_archive
    except FixMachine:
        return
    with download_bar() as progress:
        fetch(spark_jars(), cache_directory() / "jars", progress or in_words(say, "Spark's jars"))
    make_archive(say)
