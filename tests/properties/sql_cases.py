"""Databases, views and histories as plain data, so that a failing case is kept as one line of text; and random tables
and histories.

Tables are small and their values few, so that keys meet, rows repeat and groups come and go. The odd values of each
type are among them: NULL, NaN, both zeros, infinities, empty text.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from random import Random

#: In front of and behind what is added to ORDER BY for PostgreSQL only: the engine breaks ties by the whole row.
TIES_OPEN, TIES_CLOSE = "/*", "*/"

INT, BIG, NUM, FLOAT, STR, BOOL, DATE, MOMENT = "int", "big", "num", "float", "str", "bool", "date", "moment"
#: A float that PostgreSQL computed with other roundings: compared with a tolerance.
APPROXIMATE = "approximate"
#: A sum of large integers: here an integer, there a numeric, so that nothing is computed with it.
WIDE = "wide"
KINDS = (INT, BIG, NUM, FLOAT, STR, BOOL, DATE, MOMENT)
NUMBERS = (INT, BIG, WIDE, NUM, FLOAT)
#: PostgreSQL has no min(boolean).
ORDERED = (INT, BIG, WIDE, NUM, FLOAT, STR, DATE, MOMENT)

TYPES = {
    INT: ("bigint", "int", "bigint"),
    BIG: ("bigint",),
    NUM: ("numeric", "numeric(6,2)", "numeric(8,1)"),
    FLOAT: ("float8", "double precision"),
    STR: ("text", "text", "varchar(12)"),
    BOOL: ("boolean",),
    DATE: ("date",),
    MOMENT: ("timestamp",),
}
#: The texts that PostgreSQL reads and writes. No two of them are equal numbers with different scales.
VALUES = {
    INT: ("0", "1", "2", "3", "4", "5", "-1"),
    BIG: ("0", "1", "2", "9223372036854775807", "-9223372036854775808", "4611686018427387904"),
    NUM: ("0", "1", "2", "-2", "2.5", "0.25", "-0.75", "100", "3.33", "NaN", "Infinity", "-Infinity"),
    FLOAT: ("0", "-0", "1", "1.5", "-2.25", "0.1", "0.3", "100", "NaN", "Infinity", "-Infinity"),
    STR: ("", "a", "b", "Ab", "ab%", "a_b", "straße", "it's"),
    BOOL: ("true", "false"),
    DATE: ("2024-02-29", "2024-03-01", "1999-12-31", "2024-01-15"),
    MOMENT: ("2024-02-29 00:00:00", "2024-02-29 23:59:59.5", "1999-12-31 12:00:00", "2024-03-01 00:00:00"),
}
#: numeric(p,s) has the scale of its column, and no infinities.
SCALED = ("0", "1", "2", "-2", "2.5", "0.2", "-0.7", "100", "3.3", "NaN")
ODD = frozenset({"NaN", "Infinity", "-Infinity", "-0"})

NULL_SHARE = 0.15
ROWS_MAX = 9
STEPS = (4, 7)
KEYLESS_SHARE = 0.1


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def create(self) -> str:
        parts = [f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}" for column in self.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True)
class View:
    name: str
    sql: str
    names: tuple[str, ...]
    #: The kinds of its columns, which say how PostgreSQL's texts are read and compared.
    kinds: tuple[str, ...]
    #: How many steps happen before it is created.
    after: int = 0
    features: tuple[str, ...] = ()


#: ("insert", table, rows), ("update", table, key, {column: value}), ("delete", table, key) or ("sql", table, text);
#: values are texts.
Write = tuple[object, ...]
TextRow = tuple["str | None", ...]


@dataclass(frozen=True)
class Case:
    name: str
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    steps: tuple[tuple[Write, ...], ...]

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def read_case(line: str) -> Case:
    """The case that `Case.line` wrote."""
    data = json.loads(line)
    tables = [
        Table(item["name"], tuple(Column(**column) for column in item["columns"]), tuple(item["key"]))
        for item in data["tables"]
    ]
    views = [
        View(
            item["name"],
            item["sql"],
            tuple(item["names"]),
            tuple(item["kinds"]),
            item["after"],
            tuple(item["features"]),
        )
        for item in data["views"]
    ]
    steps = tuple(tuple(tuple(write) for write in step) for step in data["steps"])
    return Case(data["name"], tuple(tables), tuple(views), steps)


def for_engine(sql: str) -> str:
    """The text without what only PostgreSQL needs."""
    before, *rest = sql.split(TIES_OPEN)
    return before + "".join(part.partition(TIES_CLOSE)[2] for part in rest)


def for_postgres(sql: str) -> str:
    return sql.replace(TIES_OPEN, "").replace(TIES_CLOSE, "")


def value_of(kind: str, text: str | None) -> object:
    """The Python value that PostgreSQL's text means."""
    if text is None:
        return None
    readers: dict[str, Callable[[str], object]] = {
        INT: int, BIG: int, NUM: Decimal, WIDE: Decimal, FLOAT: float, APPROXIMATE: float, STR: str,
        BOOL: lambda word: word in ("t", "true"),
        DATE: datetime.date.fromisoformat, MOMENT: datetime.datetime.fromisoformat,
    }  # fmt: skip
    return readers[kind](text)


def literal(text: str | None) -> str:
    """The value in SQL, for a place that has a type."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


# --- tables and histories ---


def history(tables: Sequence[Table], seed: int) -> tuple[tuple[Write, ...], ...]:
    """Transactions over given tables."""
    return tuple(History(Random(seed), tables).steps(STEPS[1]))


def random_table(rng: Random, name: str) -> Table:
    """An int key, or a composite one; an int that finds keys of others; some columns more. Columns of one name have one
    kind in all tables, so that NATURAL and USING find partners."""
    columns = [Column("id", INT, rng.choice(TYPES[INT]), False)]
    key = ["id"]
    if rng.random() < 0.3:
        kind = rng.choice((STR, DATE, INT, NUM, BOOL, FLOAT))
        columns.append(Column(f"k{kind}", kind, rng.choice(TYPES[kind]), False))
        key.append(f"k{kind}")
        if rng.random() < 0.3:
            key.reverse()
    columns.append(Column("ref", INT, rng.choice(TYPES[INT]), rng.random() < 0.7))
    for number in range(rng.randint(1, 4)):
        kind = rng.choice((INT, INT, NUM, NUM, FLOAT, STR, STR, BOOL, DATE, MOMENT, BIG))
        column = f"{kind}{rng.choice((0, number))}"
        if all(other.name != column for other in columns):
            columns.append(Column(column, kind, rng.choice(TYPES[kind]), rng.random() < 0.75))
    if rng.random() < 0.2:
        rng.shuffle(columns)
    if rng.random() < KEYLESS_SHARE:
        key = []
    return Table(name, tuple(columns), tuple(key))


class History:
    """Makes transactions that succeed: it knows which keys exist."""

    def __init__(self, rng: Random, tables: Sequence[Table]) -> None:
        self.rng, self.tables = rng, tables
        self.keys: dict[str, dict[tuple[object, ...], TextRow]] = {table.name: {} for table in tables}
        # Half of the histories have no odd numbers: sums that are NaN hide what is wrong with them.
        self.odd = rng.random() < 0.5

    def steps(self, count: int) -> Iterator[tuple[Write, ...]]:
        rng = self.rng
        for number in range(count):
            if number == 0:
                yield tuple(
                    write for table in self.tables for write in self.insert(table, rng.randint(0, ROWS_MAX)) if write
                )
            elif rng.random() < 0.08:
                table = rng.choice(self.tables)
                yield tuple(write for row in list(self.keys[table.name].values()) for write in self.delete(table, row))
            else:
                yield tuple(write for _ in range(rng.randint(1, 6)) for write in self.write())

    def write(self) -> list[Write]:
        rng, table = self.rng, self.rng.choice(self.tables)
        rows = list(self.keys[table.name].values())
        choice = rng.random()
        if not table.key or rng.random() < 0.05:
            return self.insert(table, rng.choice((1, 1, 2, 3))) if choice < 0.4 else [self.statement(table)]
        if not rows or choice < 0.35:
            return self.insert(table, rng.choice((1, 1, 2, 3)))
        row = rng.choice(rows)
        if choice < 0.65:
            return self.update(table, row, key_too=rng.random() < 0.2)
        if choice < 0.9:
            return self.delete(table, row)
        again = self.row(table)
        for name in table.key:
            place = [column.name for column in table.columns].index(name)
            again = (*again[:place], row[place], *again[place + 1 :])
        return [*self.delete(table, row), *self.insert(table, 1, again)]

    def statement(self, table: Table) -> Write:
        """A statement that leaves primary keys alone, for both sides. Of a table without one it is the only way."""
        rng = self.rng
        ints = [column.name for column in table.columns if column.kind == INT]
        where = f"WHERE {rng.choice(ints)} = {rng.choice(VALUES[INT])}"
        free = [name for name in ints if name not in table.key]
        if not free or (not table.key and rng.random() < 0.5):
            impossible = "" if not table.key else " AND FALSE"
            return ("sql", table.name, f"DELETE FROM {table.name} {where}{impossible}")
        changed = rng.choice(free)
        value = rng.choice((f"{changed} + 1", "2", rng.choice(ints)))
        return ("sql", table.name, f"UPDATE {table.name} SET {changed} = {value} {where}")

    def insert(self, table: Table, count: int, row: TextRow | None = None) -> list[Write]:
        made = []
        for _ in range(count):
            new = self.row(table) if row is None else row
            if not table.key:
                made.append(new)
            elif self.key(table, new) not in self.keys[table.name]:
                self.keys[table.name][self.key(table, new)] = new
                made.append(new)
        return [("insert", table.name, tuple(made))] if made else []

    def update(self, table: Table, row: TextRow, *, key_too: bool) -> list[Write]:
        new = self.row(table)
        names = [column.name for column in table.columns]
        chosen = [name for name in names if (name not in table.key or key_too) and self.rng.random() < 0.5]
        changed = tuple(new[place] if name in chosen else row[place] for place, name in enumerate(names))
        before, after = self.key(table, row), self.key(table, changed)
        if not chosen or (after != before and after in self.keys[table.name]):
            return []
        del self.keys[table.name][before]
        self.keys[table.name][after] = changed
        return [("update", table.name, self.texts(table, row), {name: new[names.index(name)] for name in chosen})]

    def delete(self, table: Table, row: TextRow) -> list[Write]:
        del self.keys[table.name][self.key(table, row)]
        return [("delete", table.name, self.texts(table, row))]

    def row(self, table: Table) -> TextRow:
        return tuple(self.value(column) for column in table.columns)

    def value(self, column: Column) -> str | None:
        if column.nullable and self.rng.random() < NULL_SHARE:
            return None
        values = SCALED if column.type.startswith("numeric(") else VALUES[column.kind]
        return self.rng.choice(values if self.odd else [text for text in values if text not in ODD])

    def texts(self, table: Table, row: TextRow) -> TextRow:
        names = [column.name for column in table.columns]
        return tuple(row[names.index(name)] for name in table.key)

    def key(self, table: Table, row: TextRow) -> tuple[object, ...]:
        """What makes two keys the same: NaN is NaN, and the zeros are one."""
        values = []
        for name, text in zip(table.key, self.texts(table, row), strict=True):
            value = value_of(table.column(name).kind, text)
            values.append("NaN" if isinstance(value, float | Decimal) and math.isnan(value) else value)
        return tuple(values)
