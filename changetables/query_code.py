"""The generated code of an ad-hoc query: its expressions, compiled to functions over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, cast

from .accumulators import Accumulator
from .compiler import Compiler, Lines, column_leaf
from .expressions import Aggregate, Expression
from .rewriting import in_two_rows
from .schema import Table
from .types import Row, Type, Value

#: The hidden column that says how often a row of a view counts.
MULTIPLICITY = "*"

RowFunction: TypeAlias = Callable[[Iterable[Row]], Iterator[Row]]
#: One group: the `add` of each accumulator, and the accumulators.
State: TypeAlias = tuple[list[Callable[[object], None]], list[Accumulator]]
#: Feeds rows to the states of their groups, of which the last argument makes new ones.
Feeder: TypeAlias = Callable[[Iterable[Row], dict[Row, State], Callable[[], State]], None]


class Coder:
    """Compiles the expressions of one query. `r0` and `r1` are the names of rows in the generated code."""

    def __init__(self) -> None:
        self._compiler = Compiler(column_leaf, {"Reversed": Reversed})

    def _function(self, head: str, body: Callable[[Lines], None]) -> Callable[..., object]:
        name, lines = self._compiler.fresh("function_"), Lines()
        with lines.block(f"def {name}({head}):"):
            body(lines)
        self._compiler.define(str(lines))
        return cast("Callable[..., object]", self._compiler.namespace[name])

    def condition(self, conditions: Sequence[Expression]) -> str:
        """Source that is true when all conditions are TRUE: the first that is not ends the evaluation."""
        return " and ".join(self._compiler.condition(condition) for condition in conditions) or "True"

    def tuple_of(self, expressions: Iterable[Expression]) -> str:
        texts = [self._compiler.value(expression).text for expression in expressions]
        return f"({', '.join(texts)},)" if texts else "()"

    def filtered(self, conditions: Sequence[Expression]) -> RowFunction:
        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"), lines.block(f"if {self.condition(conditions)}:"):
                lines.add("yield r0")

        return cast(RowFunction, self._function("rows", body))

    def projected(self, outputs: Sequence[Expression]) -> RowFunction:
        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                lines.add(f"yield {self.tuple_of(outputs)}")

        return cast(RowFunction, self._function("rows", body))

    def stored(self, table: Table, conditions: Sequence[Expression], outputs: Sequence[Expression]) -> RowFunction:
        """Physical rows to outputs: completed with defaults, tested, as often as their multiplicity says."""
        defaults = self._compiler.bind(tuple(column.default for column in table.columns), "defaults")
        counts = [place for place, column in enumerate(table.columns) if column.hidden and column.name == MULTIPLICITY]

        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                with lines.block(f"if len(r0) < {len(table.columns)}:"):
                    lines.add(f"r0 += {defaults}[len(r0):]")
                with lines.block(f"if {self.condition(conditions)}:"):
                    if not counts:
                        lines.add(f"yield {self.tuple_of(outputs)}")
                        return
                    lines.add(f"made = {self.tuple_of(outputs)}")
                    with lines.block(f"for _ in range(r0[{counts[0]}]):"):
                        lines.add("yield made")

        return cast(RowFunction, self._function("rows", body))

    def key(self, expressions: Sequence[Expression], null_matches: Sequence[bool]) -> Callable[[Row], Row | None]:
        """The values of a join key; None if one is NULL that is equal to nothing."""

        def body(lines: Lines) -> None:
            names = []
            for number, (expression, matches) in enumerate(zip(expressions, null_matches, strict=True)):
                code = self._compiler.value(expression)
                names.append(f"k{number}")
                lines.add(f"k{number} = {code.text}")
                if code.nullable and not matches:
                    with lines.block(f"if k{number} is None:"):
                        lines.add("return None")
            lines.add(f"return ({', '.join(names)},)" if names else "return ()")

        return cast("Callable[[Row], Row | None]", self._function("r0", body))

    def pair_test(self, conditions: Sequence[Expression], left_width: int) -> Callable[[Row, Row], bool]:
        in_rows = [in_two_rows(condition, left_width) for condition in conditions]

        def body(lines: Lines) -> None:
            lines.add(f"return {self.condition(in_rows)}")

        return cast("Callable[[Row, Row], bool]", self._function("r0, r1", body))

    def pair_value(self, expression: Expression, left_width: int) -> Callable[[Row, Row], Value]:
        """The value of an expression over two rows."""

        def body(lines: Lines) -> None:
            lines.add(f"return {self._compiler.value(in_two_rows(expression, left_width)).text}")

        return cast("Callable[[Row, Row], Value]", self._function("r0, r1", body))

    def group_feeder(self, keys: Sequence[Expression], aggregates: Sequence[Aggregate]) -> Feeder:
        """Feeds rows to the accumulators of their groups. Each state has the `add` of every accumulator."""

        def body(lines: Lines) -> None:
            with lines.block("for r0 in rows:"):
                lines.add(f"key = {self.tuple_of(keys)}")
                lines.add("state = groups.get(key)")
                with lines.block("if state is None:"):
                    lines.add("state = groups[key] = new()")
                for number, aggregate in enumerate(aggregates):
                    if aggregate.argument is None:
                        lines.add(f"state[0][{number}](None)")
                        continue
                    code = self._compiler.value(aggregate.argument)
                    lines.add(f"value = {code.text}")
                    with lines.block("if value is not None:" if code.nullable else "if True:"):
                        lines.add(f"state[0][{number}](value)")

        function = self._function("rows, groups, new", body)
        return cast(Feeder, function)

    def sort_key(self, order: Sequence[tuple[Expression, bool, bool]]) -> Callable[[Row], tuple[object, ...]]:
        """What Python sorts rows by: (expression, descending, nulls first) for each item."""

        def body(lines: Lines) -> None:
            parts = []
            for number, (expression, descending, nulls_first) in enumerate(order):
                name, code = f"k{number}", self._compiler.value(expression)
                lines.add(f"{name} = {code.text}")
                part = self._rank(name, code.type, descending)
                if code.nullable:
                    null, value = (0, 1) if nulls_first else (1, 0)
                    part = f"(({null},) if {name} is None else ({value}, {part}))"
                parts.append(part)
            lines.add(f"return ({', '.join(parts)},)" if parts else "return ()")

        return cast("Callable[[Row], tuple[object, ...]]", self._function("r0", body))

    def _rank(self, name: str, type_: Type, descending: bool) -> str:
        """A value in the order of SQL: NaN is above everything."""
        kind = type_.kind
        if kind in ("float", "decimal"):
            nan = f"{name} != {name}" if kind == "float" else f"{name}.is_nan()"
            if descending:
                negated = f"-{name}" if kind == "float" else f"{name}.copy_negate()"
                return f"((0, 0) if {nan} else (1, {negated}))"
            return f"((1, 0) if {nan} else (0, {name}))"
        if not descending:
            return name
        return f"-{name}" if kind == "int" else f"Reversed({name})"


class Reversed:
    """A value in descending order."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __lt__(self, other: Reversed) -> bool:
        return bool(other.value < self.value)  # type: ignore[operator]  # Both are of one type, which has an order.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)
