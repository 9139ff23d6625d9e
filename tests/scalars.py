"""Scalar expressions for tests: bound from SQL text over named columns, compiled, and walked by the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from viewtide.changetables.algebra import Field
from viewtide.changetables.compiler import Code, Compiler, column_leaf
from viewtide.changetables.errors import DataError
from viewtide.changetables.evaluate import evaluate
from viewtide.changetables.expressions import Expression
from viewtide.changetables.sql import bind_scalar, parse_expression
from viewtide.changetables.types import Row, Type, Value, type_of

#: What stands for any DataError where values are compared.
ERROR = "DataError"


def bound(text: str, columns: Mapping[str, Type | str] | None = None, *, nullable: bool = True) -> Expression:
    """The expression over one row with these columns, in their order."""
    fields = [Field(name, type_of(spec), nullable) for name, spec in (columns or {}).items()]
    source, node = parse_expression(text)
    return bind_scalar(node, fields, source)


def compiled(expression: Expression) -> tuple[Callable[[Row], Value], Code]:
    compiler = Compiler(leaf=column_leaf, namespace={})
    code = compiler.value(expression)
    compiler.define(f"def run(r0):\n    return {code.text}\n")
    run = compiler.namespace["run"]
    assert callable(run)
    return run, code


def outcome(run: Callable[[], Value]) -> Value:
    """The value, or ERROR."""
    try:
        return run()
    except DataError:
        return ERROR


def value(text: str, columns: Mapping[str, Type | str] | None = None, row: Row = ()) -> Value:
    """The value that both ways of evaluating give; a DataError of both is raised."""
    expression = bound(text, columns)
    run, code = compiled(expression)
    by_oracle = outcome(lambda: evaluate(expression, row))
    by_code = run(row) if by_oracle != ERROR else outcome(lambda: run(row))
    assert exact(by_code) == exact(by_oracle), f"{text}: compiled {by_code!r}, oracle {by_oracle!r}"
    assert by_code is not None or code.nullable, f"{text}: NULL although the code says never"
    return run(row)


def exact(given: Value) -> tuple[str, str]:
    """A form that differs wherever two values differ visibly: 1.0 and 1.00, 0.0 and -0.0, True and 1."""
    return type(given).__name__, repr(given)
