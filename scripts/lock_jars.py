"""Write src/kept/local/broker.lock and spark.lock anew: needs Maven, which resolves the broker's dependencies."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

KAFKA = "4.3.1"
ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
SPARK = "4.2.0"
# Named one by one: pyspark has the rest, and the token provider of 4.2 is not on every mirror (that of 4.0 fits).
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
LOCKS = Path(__file__).parents[1] / "src/kept/local"
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
NO_OTHERS = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lock</groupId>'
    "<artifactId>lock</artifactId><version>1</version><dependencies>{}</dependencies></project>"
)


def resolved(roots: tuple[str, ...], others: str = "") -> list[tuple[str, Path]]:
    """Every coordinate Maven puts on the runtime class path, with its file."""
    with tempfile.TemporaryDirectory() as directory:
        pom, listing = Path(directory, "pom.xml"), Path(directory, "list.txt")
        pom.write_text(POM.format("".join(DEPENDENCY.format(*root.split(":"), others) for root in roots)))
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:list", "-DincludeScope=runtime",
             "-DoutputAbsoluteArtifactFilename=true", f"-DoutputFile={listing}"],
            check=True,
        )  # fmt: skip
        rows = re.findall(r"([\w.-]+):([\w.-]+):jar:([\w.-]+):\w+:(/\S+\.jar)", listing.read_text())
    return sorted((f"{group}:{artifact}:{version}", Path(file)) for group, artifact, version, file in rows)


def write(name: str, title: str, jars: list[tuple[str, Path]]) -> None:
    """One lock file."""
    lines = [f"# {title}: coordinate, bytes, sha256.", "# Written by scripts/lock_jars.py; do not edit."]
    for coordinate, file in jars:
        lines.append(f"{coordinate} {file.stat().st_size} {hashlib.sha256(file.read_bytes()).hexdigest()}")
    (LOCKS / name).write_text("\n".join(lines) + "\n")


def main() -> None:
    """Print nothing, write the locks."""
    write("broker.lock", f"The jars of the embedded broker (Kafka {KAFKA})", resolved(ROOTS))
    title = f"Spark's connector to Kafka (Spark {SPARK}), beside what pyspark brings"
    write("spark.lock", title, resolved(CONNECTOR, NO_OTHERS))


if __name__ == "__main__":
    main()
