"""Ways to compute a view's contributions from the changes of a source. All give the same change table.

- rows: the functions that a plan generates, one row after the other. They are in `plan.py` and `operators/`.
- columns: `columns.py`, Arrow arrays of a whole batch at once. It needs pyarrow, the extra `batch`.

`choice.py` measures what each costs and takes the cheaper one.
"""
