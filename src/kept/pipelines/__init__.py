"""Pipeline files and what is told of a running pipeline: everything about pipelines that needs no Spark."""
