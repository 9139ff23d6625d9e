"""Ways to compute a view's contributions from the changes of a source. All give the same change table.

- rows: the functions that a plan generates, one row after the other. They are in `plan.py` and `operators/`.
- columns: `columns.py`, Arrow arrays of a whole batch at once. It needs pyarrow, the extra `batch`.
- Spark: `spark.py`, many rows in many processes, with the code of the other two. It needs the extra `spark`.

`choice.py` measures what each costs and takes the cheaper one.
"""
