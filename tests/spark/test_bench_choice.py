"""The bench of the choice between evaluators runs, and its figures are about what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from bench import choice
from bench.__main__ import parser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_evaluator_and_the_choice_are_measured(spark: SparkSession) -> None:
    result = choice.run(parser().parse_args(["choice", "--sizes", "1000"]))
    rows = cast("list[dict[str, object]]", result["rows"])
    assert [(row["what"], row["size"], row["chosen"]) for row in rows] == [
        ("contents", 1000, "rows"),
        ("step", 1000, "rows"),
    ]
    for row in rows:
        seconds = [cast(float, row[f"{name}_s"]) for name in choice.EVALUATORS]
        assert min(seconds) > 0
        assert row["ratio"] == cast(float, row["chosen_s"]) / min(seconds)
        assert cast(float, row["spark_s"]) > cast(float, row["rows_s"]), "a job takes longer than a thousand rows"
