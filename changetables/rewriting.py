"""Expressions taken apart and put together again: what a query planner does with conditions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .compiler import Compiler, column_leaf
from .errors import DataError
from .expressions import Call, ColumnRef, Expression, Literal
from .types import Value

COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
#: Operators that see of a value only what it is equal to, not how it is written: 1.0 or 1.00, 0.0 or -0.0.
_BY_VALUE = COMPARISONS | {"in", "is_null", "is_not_null", "is_distinct", "is_not_distinct"}
#: Operators that are NULL as soon as one argument is.
_STRICT = COMPARISONS | {"+", "-", "*", "/", "%", "neg", "abs", "lower", "upper", "length", "||", "like", "cast", "not"}
#: Kinds whose equal values may be written differently.
_INEXACT = ("float", "decimal")
_INFIX = COMPARISONS | {"+", "-", "*", "/", "%", "||", "and", "or", "like"}
_INFIX_WORDS = {"is_distinct": "IS DISTINCT FROM", "is_not_distinct": "IS NOT DISTINCT FROM"}

#: What a hidden row id is called.
ROW_ID_NAME = "row id"
_SELECTIVITY = {"=": 0.01, "is_not_distinct": 0.01, "<": 0.3, "<=": 0.3, ">": 0.3, ">=": 0.3, "like": 0.1}


def conjuncts(condition: Expression | None) -> list[Expression]:
    """The conditions that AND connects, in their order."""
    if condition is None:
        return []
    if isinstance(condition, Call) and condition.op == "and":
        return [part for argument in condition.args for part in conjuncts(argument)]
    return [condition]


def positions(expression: Expression) -> set[int]:
    """The columns that an expression reads."""
    if isinstance(expression, ColumnRef):
        return {expression.position}
    if isinstance(expression, Call):
        return set().union(*map(positions, expression.args))
    return set()


def size(expression: Expression) -> int:
    """How many nodes the tree has."""
    return 1 + sum(map(size, expression.args)) if isinstance(expression, Call) else 1


def substituted(expression: Expression, columns: Sequence[Expression]) -> Expression:
    """The expression with each column replaced by what makes it."""
    if isinstance(expression, ColumnRef):
        return columns[expression.position]
    if isinstance(expression, Call):
        return replace(expression, args=tuple(substituted(argument, columns) for argument in expression.args))
    return expression


def moved(expression: Expression, offset: int) -> Expression:
    """The expression over rows with `offset` more columns in front."""
    if isinstance(expression, ColumnRef):
        return replace(expression, position=expression.position + offset)
    if isinstance(expression, Call):
        return replace(expression, args=tuple(moved(argument, offset) for argument in expression.args))
    return expression


def in_two_rows(expression: Expression, width: int) -> Expression:
    """The expression over the columns of two rows, as one over (left row, right row): sources 0 and 1."""
    if isinstance(expression, ColumnRef) and expression.position >= width:
        return replace(expression, source=1, position=expression.position - width)
    if isinstance(expression, Call):
        return replace(expression, args=tuple(in_two_rows(argument, width) for argument in expression.args))
    return expression


def is_safe(expression: Expression) -> bool:
    """Whether the expression cannot fail for any row. Only such a condition may run over rows that it would never see
    where it was written."""
    if not isinstance(expression, Call):
        return True
    return Compiler(column_leaf, {}).value(expression).safe


def constant(expression: Expression) -> Literal | None:
    """The value of an expression that reads no column; None if it does, or fails."""
    if isinstance(expression, Literal):
        return expression
    if positions(expression):
        return None
    compiler = Compiler(column_leaf, {})
    try:
        compiler.define(f"def constant():\n    return {compiler.value(expression).text}\n")
        function = compiler.namespace["constant"]
        assert callable(function), "it was defined just now"
        value: Value = function()
    except DataError:
        return None  # It fails where it stands, for the rows that reach it, as in SQL.
    return Literal(value, expression.type)


def rejects_null(condition: Expression, columns: Iterable[int]) -> bool:
    """Whether the condition is surely not TRUE if all of these columns are NULL."""
    return isinstance(condition, Call) and _is_null_with(condition, frozenset(columns))


def is_null(expression: Expression) -> bool:
    """Whether the expression is surely NULL, for any row."""
    return _is_null_with(expression, frozenset())


def _is_null_with(expression: Expression, columns: frozenset[int]) -> bool:
    if isinstance(expression, Literal):
        return expression.value is None
    if isinstance(expression, ColumnRef):
        return expression.position in columns
    if isinstance(expression, Call) and expression.op in _STRICT:
        return any(_is_null_with(argument, columns) for argument in expression.args)
    if isinstance(expression, Call) and expression.op == "in":
        return _is_null_with(expression.args[0], columns)
    return False


def sees_values_only(expression: Expression) -> bool:
    """Whether equal rows surely give the same result, however their values are written."""
    if isinstance(expression, ColumnRef):
        return expression.type.kind not in _INEXACT
    if isinstance(expression, Call):
        plain = expression.op in _BY_VALUE
        return all(
            (plain and isinstance(argument, ColumnRef)) or sees_values_only(argument) for argument in expression.args
        )
    return True


def described(expression: Expression, names: Sequence[str] = ()) -> str:
    """The expression as a reader of EXPLAIN knows it. `names`: of the columns, if they are not their own."""
    if isinstance(expression, Literal):
        return _literal_text(expression.value)
    if isinstance(expression, ColumnRef):
        return names[expression.position] if names else expression.name or ROW_ID_NAME
    texts = [described(argument, names) for argument in expression.args]
    if expression.op in _INFIX:
        return "(" + f" {expression.op.upper()} ".join(texts) + ")"
    if expression.op in _INFIX_WORDS:
        return f"({texts[0]} {_INFIX_WORDS[expression.op]} {texts[1]})"
    if expression.op in ("is_null", "is_not_null"):
        return f"({texts[0]} {expression.op.replace('_', ' ').upper()})"
    if expression.op == "in":
        return f"({texts[0]} IN ({', '.join(texts[1:])}))"
    if expression.op == "not":
        return f"(NOT {texts[0]})"
    if expression.op == "cast":
        return f"CAST({texts[0]} AS {expression.type})"
    return f"{expression.op}({', '.join(texts)})"


def selectivity(condition: Expression) -> float:
    """A guess: which part of all rows fulfils the condition."""
    if not isinstance(condition, Call):
        return 0.5
    if condition.op == "and":
        return math.prod(map(selectivity, condition.args))
    if condition.op == "or":
        return min(1.0, sum(map(selectivity, condition.args)))
    if condition.op == "in":
        return min(1.0, _SELECTIVITY["="] * (len(condition.args) - 1))
    return _SELECTIVITY.get(condition.op, 0.5)


def _literal_text(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int | float) or hasattr(value, "as_tuple"):
        return str(value)
    return f"'{value}'"
