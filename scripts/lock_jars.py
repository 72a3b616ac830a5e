"""Write src/kept/local/broker.lock anew: needs Maven, which resolves the broker's runtime dependencies."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

KAFKA = "4.3.1"
ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
LOCK = Path(__file__).parents[1] / "src/kept/local/broker.lock"
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lock</groupId>'
    "<artifactId>lock</artifactId><version>1</version><dependencies>{}</dependencies></project>"
)


def resolved() -> list[tuple[str, Path]]:
    """Every coordinate Maven puts on the runtime class path, with its file."""
    with tempfile.TemporaryDirectory() as directory:
        pom, listing = Path(directory, "pom.xml"), Path(directory, "list.txt")
        pom.write_text(POM.format("".join(DEPENDENCY.format(*root.split(":")) for root in ROOTS)))
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:list", "-DincludeScope=runtime",
             "-DoutputAbsoluteArtifactFilename=true", f"-DoutputFile={listing}"],
            check=True,
        )  # fmt: skip
        rows = re.findall(r"([\w.-]+):([\w.-]+):jar:([\w.-]+):\w+:(/\S+\.jar)", listing.read_text())
    return sorted((f"{group}:{artifact}:{version}", Path(file)) for group, artifact, version, file in rows)


def main() -> None:
    """Print nothing, write the lock."""
    lines = [f"# The jars of the embedded broker (Kafka {KAFKA}): coordinate, bytes, sha256.",
             "# Written by scripts/lock_jars.py; do not edit."]  # fmt: skip
    for coordinate, file in resolved():
        lines.append(f"{coordinate} {file.stat().st_size} {hashlib.sha256(file.read_bytes()).hexdigest()}")
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
