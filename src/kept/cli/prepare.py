"""`kept prepare`: fetch once what the local cluster runs on."""

from __future__ import annotations

import click

from kept.cli.output import download_bar, say


@click.command()
def prepare() -> None:
    """Get Java and the broker's jars, so that `kept up` starts at once.

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
    say(f"ready: Java {java.version} at {java.executable}, {len(runtime.jars)} jars verified")
