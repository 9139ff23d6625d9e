"""The builder: a view as Python objects instead of SQL text, giving the same relation.

    query(JoinTable("events", "e"), JoinTable("products", "p"), on=[JoinEdge("e.product", "p.id")],
          where="e.cost > 0", group_by=["p.category"], select={"cost": sum("e.cost"), "n": count()})

Texts inside are expressions of SQL; aliases in them fold to lower case unless quoted. A query is a plain value: it is
checked for its form here, and bound to tables with `bind`, which is when SQL is first read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .algebra import Relation
from .errors import InterfaceError, ProgrammingError
from .schema import Table

JOIN_KINDS = ("inner", "left", "right", "full")


@dataclass(frozen=True, slots=True)
class JoinTable:
    """A table of the query. Without an alias, columns are named by the name of the table."""

    table: str
    alias: str | None = None

    def __post_init__(self) -> None:
        _require_text("the table of a JoinTable", self.table)
        if self.alias is not None:
            _require_text("the alias of a JoinTable", self.alias)


@dataclass(frozen=True, slots=True)
class JoinEdge:
    """An equality between columns of two tables, each as "alias.column". `kind`: which side keeps its rows that find no
    partner; all edges of one table with those before it have one kind."""

    left: str
    right: str
    kind: str = "inner"

    def __post_init__(self) -> None:
        for side in (self.left, self.right):
            _require_text("a side of a JoinEdge", side)
            if "." not in side.strip("."):
                raise ProgrammingError(f"{side!r} in a JoinEdge names no column", hint='write "alias.column"')
        if self.kind not in JOIN_KINDS:
            raise InterfaceError(f"unknown join kind {self.kind!r}", hint=f"use one of {', '.join(JOIN_KINDS)}")


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate for `select`. Made by `count`, `sum`, `min` and so on. No argument: COUNT(*)."""

    kind: str
    argument: str | None
    distinct: bool = False


def count(expression: str | None = None, distinct: bool = False) -> AggregateCall:
    """COUNT(*), or the number of rows in which the expression is not NULL, or of its different values."""
    if expression is None:
        if distinct:
            raise InterfaceError("count(distinct=True) without an expression", hint='write count("e.cost", True)')
        return AggregateCall("count", None)
    return _aggregate("count", expression, distinct)


def sum(expression: str, distinct: bool = False) -> AggregateCall:
    return _aggregate("sum", expression, distinct)


def avg(expression: str, distinct: bool = False) -> AggregateCall:
    return _aggregate("avg", expression, distinct)


def min(expression: str) -> AggregateCall:
    return _aggregate("min", expression)


def max(expression: str) -> AggregateCall:
    return _aggregate("max", expression)


def var_pop(expression: str, distinct: bool = False) -> AggregateCall:
    """The variance of the values as the whole population."""
    return _aggregate("var_pop", expression, distinct)


def var_samp(expression: str, distinct: bool = False) -> AggregateCall:
    """The variance of the values as a sample; NULL for fewer than two."""
    return _aggregate("var_samp", expression, distinct)


def stddev_pop(expression: str, distinct: bool = False) -> AggregateCall:
    """The standard deviation of the values as the whole population."""
    return _aggregate("stddev_pop", expression, distinct)


def stddev_samp(expression: str, distinct: bool = False) -> AggregateCall:
    """The standard deviation of the values as a sample; NULL for fewer than two."""
    return _aggregate("stddev_samp", expression, distinct)


@dataclass(frozen=True, slots=True)
class Query:
    """A view that is not bound to tables yet. Made by `query`; equal queries are equal values."""

    tables: tuple[JoinTable, ...]
    on: tuple[JoinEdge, ...] = ()
    where: str | None = None
    group_by: tuple[str, ...] | None = None
    select: tuple[tuple[str, str | AggregateCall], ...] | None = None
    having: str | None = None

    def bind(self, tables: Mapping[str, Table]) -> Relation:
        """The relation over these tables (and views); raises what the equivalent SQL would raise."""
        from .sql import bind_query  # sqlglot costs 230 ms; a program that only reads views never pays it.

        return bind_query(self, tables)


def query(
    *tables: JoinTable,
    on: Sequence[JoinEdge] = (),
    where: str | None = None,
    group_by: Sequence[str] | None = None,
    select: Mapping[str, str | AggregateCall] | None = None,
    having: str | None = None,
) -> Query:
    """A view over the joined tables.

    Without `select`, all columns (or, with `group_by`, the group columns). Group columns that `select` does not name
    come first in the output, under their own names, so that every group can be told from the others. `having` is a
    condition on groups.
    """
    _require_each("query() tables", tables, JoinTable)
    _require_each("on", _listed("on", on), JoinEdge)
    if not tables:
        raise InterfaceError("a query without tables", hint='pass at least one JoinTable("name")')
    _require_unique_aliases(tables)
    if where is not None:
        _require_text("where", where)
    if having is not None:
        _require_text("having", having)
    groups = None if group_by is None else _listed("group_by", group_by)
    for text in groups or ():
        _require_text("group_by", text)
    return Query(tuple(tables), tuple(on), where, groups or None, _selected(select), having)


def _selected(
    select: Mapping[str, str | AggregateCall] | None,
) -> tuple[tuple[str, str | AggregateCall], ...] | None:
    if select is None:
        return None
    if not isinstance(select, Mapping) or not select:
        raise InterfaceError("select must be a mapping of output names to expressions", hint='select={"n": count()}')
    for name, value in select.items():
        _require_text("an output name in select", name)
        if not isinstance(value, AggregateCall):
            _require_text(f"select[{name!r}]", value)
    return tuple(select.items())


def _aggregate(kind: str, expression: str, distinct: bool = False) -> AggregateCall:
    _require_text(f"{kind}()", expression)
    if not isinstance(distinct, bool):
        raise InterfaceError(
            f"{kind}(): distinct must be True or False, not {distinct!r}", hint="leave it out, or write distinct=True"
        )
    return AggregateCall(kind, expression, distinct)


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InterfaceError(
            f"{what} must be a text that is not empty, not {value!r}", hint='write an expression of SQL, as "e.cost"'
        )


def _require_each(what: str, values: Sequence[object], type_: type) -> None:
    for value in values:
        if not isinstance(value, type_):
            raise InterfaceError(
                f"{what} must be {type_.__name__} objects, not {value!r}", hint=f"make them with vt.{type_.__name__}"
            )


def _listed(what: str, values: Sequence[str] | Sequence[JoinEdge]) -> tuple[str, ...]:
    """A text is a sequence too: group_by="p.category" would be eleven columns."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InterfaceError(f"{what} must be a list, not {values!r}", hint=f"write {what}=[...]")
    return tuple(values)  # type: ignore[arg-type]


def _require_unique_aliases(tables: Sequence[JoinTable]) -> None:
    seen: set[str] = set()
    for table in tables:
        alias = (table.alias or table.table).lower()
        if alias in seen:
            raise ProgrammingError(f"two tables with the alias {alias!r}", hint="give each JoinTable its own alias")
        seen.add(alias)
