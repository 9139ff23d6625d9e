"""Random conditions and expressions in SQL over given columns. They are well typed and cannot fail: nothing overflows,
and nothing is divided by what may be zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.properties.sql_cases import (
    APPROXIMATE,
    BIG,
    BOOL,
    DATE,
    FLOAT,
    INT,
    MOMENT,
    NUM,
    ODD,
    STR,
    VALUES,
    WIDE,
    literal,
)

#: Kinds that expressions of every shape are made of.
PLAIN = (INT, NUM, FLOAT, STR, BOOL, DATE, MOMENT)


@dataclass(frozen=True)
class Col:
    """Something that can be named: a column, or what stands for a group. `bare` has no alias: a subquery would look for
    it in its own FROM first."""

    ref: str
    kind: str
    name: str = ""
    bare: bool = False


@dataclass
class Expressions:
    """Draws expressions, and notes the features that it used."""

    rng: Random
    features: set[str] = field(default_factory=set)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def uses(self, *features: str) -> None:
        self.features.update(features)

    def one(self, *makers: Callable[[], str]) -> str:
        return self.rng.choice(makers)()

    def condition(self, columns: Sequence[Col], depth: int) -> str:
        rng = self.rng
        usable = [column for column in columns if column.kind != APPROXIMATE]
        if not usable:
            return "TRUE"
        if depth and self.chance(0.35):
            first, second = self.condition(usable, depth - 1), self.condition(usable, depth - 1)
            operator = rng.choice(("and", "or", "not"))
            self.uses(operator)
            return {"and": f"({first} AND {second})", "or": f"({first} OR {second})", "not": f"NOT ({first})"}[operator]
        column = rng.choice(usable)
        kind = column.kind
        text = column.ref if kind not in PLAIN or self.chance(0.75) else self.computed(usable, kind, 1)
        same = [other.ref for other in usable if other.kind == kind and other.ref != column.ref]

        def value() -> str:
            return rng.choice(same) if same and self.chance(0.35) else self.constant(kind)

        def listed() -> str:
            self.uses("in list")
            items = ", ".join(value() for _ in range(rng.randint(1, 3)))
            return f"{text} {'NOT ' if self.chance(0.3) else ''}IN ({items}{', NULL' if self.chance(0.08) else ''})"

        def between() -> str:
            self.uses("between")
            return f"{text} {'NOT ' if self.chance(0.3) else ''}BETWEEN {value()} AND {value()}"

        def is_null() -> str:
            self.uses("is null")
            return f"{text} IS {'NOT ' if self.chance(0.5) else ''}NULL"

        def distinct() -> str:
            self.uses("is distinct from")
            return f"{text} IS {'NOT ' if self.chance(0.5) else ''}DISTINCT FROM {value()}"

        def compared() -> str:
            return f"{text} {rng.choice(('=', '=', '<>', '<', '<=', '>', '>='))} {value()}"

        def like() -> str:
            self.uses("like")
            pattern = rng.choice(("a%", "%b", "_", "%", "A_", "a\\_b", "%ß%"))
            return f"{text} {'NOT ' if self.chance(0.3) else ''}LIKE '{pattern}'"

        makers: list[Callable[[], str]] = [compared, compared, listed, is_null, distinct]
        if kind == STR:
            makers += [like, like]
        if kind == BOOL:
            makers += [lambda: text, lambda: f"{text} IS {rng.choice(('TRUE', 'NOT TRUE', 'FALSE', 'NOT FALSE'))}"]
        else:
            makers.append(between)
        return self.one(*makers)

    def constant(self, kind: str) -> str:
        """A literal with its type."""
        rng = self.rng
        if kind == BOOL:
            return rng.choice(("TRUE", "FALSE"))
        if kind in (INT, BIG, WIDE):
            return str(rng.randint(0, 5)) if self.chance(0.9) else str(-rng.randint(1, 3))
        text = rng.choice([text for text in VALUES[kind] if text not in ODD or self.chance(0.3)])
        if kind == NUM and text not in ODD:
            return text if "." in text else f"CAST({text} AS numeric)"
        if kind == STR:
            return literal(text)
        name = {NUM: "numeric", FLOAT: "float8", DATE: "date", MOMENT: "timestamp"}[kind]
        return self.one(lambda: f"CAST({literal(text)} AS {name})", lambda: f"{name} {literal(text)}")

    def expression(self, columns: Sequence[Col], kind: str, depth: int = 2) -> str:
        """A column of the kind as a rule, else something that has it."""
        fitting = [column.ref for column in columns if column.kind == kind]
        if fitting and (not depth or kind not in PLAIN or self.chance(0.65)):
            return self.rng.choice(fitting)
        if depth and kind in PLAIN and self.chance(0.8):
            return self.computed(columns, kind, depth - 1)
        return self.constant(kind)

    def computed(self, columns: Sequence[Col], kind: str, depth: int) -> str:
        rng = self.rng

        def below(wanted: str = kind) -> str:
            return self.expression(columns, wanted, depth)

        def case() -> str:
            self.uses("case")
            otherwise = f" ELSE {below()}" if self.chance(0.7) else ""
            return f"CASE WHEN {self.condition(columns, 0)} THEN {below()}{otherwise} END"

        def simple_case() -> str:
            self.uses("case")
            return f"CASE {below(INT)} WHEN {rng.randint(0, 2)} THEN {below()} ELSE {below()} END"

        def coalesce() -> str:
            self.uses("coalesce")
            return f"COALESCE({below()}, {below()})"

        def nullif() -> str:
            self.uses("nullif")
            return f"NULLIF({below()}, {self.constant(kind)})"

        def arithmetic(*shapes: str) -> Callable[[], str]:
            def made() -> str:
                self.uses("arithmetic")
                shape = rng.choice(shapes)
                return shape.format(*(below() for _ in range(2)), n=rng.randint(2, 4))

            return made

        def functions(*shapes: tuple[str, str]) -> Callable[[], str]:
            def made() -> str:
                self.uses("function")
                shape, wanted = rng.choice(shapes)
                return shape.format(below(wanted))

            return made

        makers: dict[str, list[Callable[[], str]]] = {
            INT: [
                arithmetic("({} + {})", "({} - {})", "({} * {n})", "(- {})", "({} / {n})", "({} % {n})", "({} * -{n})"),
                functions(
                    ("ABS({})", INT), ("LENGTH({})", STR), ("CAST({} AS int)", BOOL),
                    ("CAST(EXTRACT(year FROM {}) AS bigint)", DATE), ("CAST(EXTRACT(month FROM {}) AS bigint)", MOMENT),
                ),
            ],
            NUM: [
                arithmetic("({} + {})", "({} - {})", "({} * {n})", "({} * 0.5)", "(- {})",
                           "(CAST({} AS numeric) / {n})"),
                functions(
                    ("CAST({} AS numeric)", INT), ("ROUND({}, 1)", NUM), ("CAST({} AS numeric(12,3))", INT),
                    ("ABS({})", NUM), ("({} + 0.5)", INT), ("EXTRACT(day FROM {})", MOMENT),
                    ("TRUNC(CAST({} AS numeric))", NUM),
                ),
            ],
            FLOAT: [
                arithmetic("({} + {})", "({} - {})", "({} * {n})", "({} / {n})", "(- {})"),
                functions(("CAST({} AS float8)", INT), ("ABS({})", FLOAT), ("CAST({} AS double precision)", INT)),
            ],
            STR: [
                functions(
                    ("LOWER({})", STR), ("UPPER({})", STR), ("({} || 'x')", STR), ("CAST({} AS text)", INT),
                    ("SUBSTRING({} FROM 1 FOR 1)", STR), ("CAST({} AS text)", DATE), ("LEFT({}, 2)", STR),
                    ("REPLACE({}, 'a', 'b')", STR), ("CAST({} AS text)", BOOL), ("CAST({} AS varchar(2))", STR),
                ),
            ],
            BOOL: [lambda: f"({self.condition(columns, depth)})"] * 3,
            DATE: [functions(("({} + 1)", DATE), ("({} - 30)", DATE), ("CAST({} AS date)", MOMENT))],
            MOMENT: [
                functions(
                    ("DATE_TRUNC('month', {})", MOMENT), ("CAST({} AS timestamp)", DATE),
                    ("({} + INTERVAL '1 day')", MOMENT), ("DATE_TRUNC('hour', {})", MOMENT),
                ),
            ],
        }  # fmt: skip
        return self.one(*makers[kind], *makers[kind], case, simple_case, coalesce, nullif)
