"""A script for spark-submit: it runs the order that it is given, on the Spark that it is given."""

from __future__ import annotations

import sys

import kept.spark
from tests.spark.drivers import Order


def main(order: str) -> None:
    spark = kept.spark.session("submitted")
    print("master", spark.sparkContext.master, flush=True)
    ran = Order.of(order).pipeline(spark).run()
    print("rows", ran.rows, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
