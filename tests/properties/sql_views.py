"""Random databases, views in SQL and histories of transactions, made from a seed: `case(seed)`.

Everything that the view language accepts occurs, in random combinations. Tables are small and their values few, so that
keys meet, rows repeat and groups come and go. The odd values of each type are among them: NULL, NaN, both zeros,
infinities, empty text.

Two things are kept out because PostgreSQL itself leaves them open, or rounds where the engine is exact: which of two
equal values represents a group, and what depends on the last digits of a sum of floats. Such sums are shown, never
compared or grouped by (`APPROXIMATE`).

A case is plain data, so that a failing one can be shortened and kept as one line of text.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from random import Random

#: In front of and behind what is added to ORDER BY for PostgreSQL only: the engine breaks ties by the whole row.
TIES_OPEN, TIES_CLOSE = "/*", "*/"

INT, BIG, NUM, FLOAT, STR, BOOL, DATE, MOMENT = "int", "big", "num", "float", "str", "bool", "date", "moment"
#: A float that PostgreSQL computed with other roundings: compared with a tolerance.
APPROXIMATE = "approximate"
KINDS = (INT, BIG, NUM, FLOAT, STR, BOOL, DATE, MOMENT)
NUMBERS = (INT, BIG, NUM, FLOAT)
#: Kinds that expressions of every shape are made of.
PLAIN = (INT, NUM, FLOAT, STR, BOOL, DATE, MOMENT)
#: PostgreSQL has no min(boolean).
ORDERED = (INT, BIG, NUM, FLOAT, STR, DATE, MOMENT)

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
RISKY_SHARE = 0.08
KEYLESS_SHARE = 0.1

#: With these a join can turn out to have no equality, for example with a column that is a constant; the engine may refuse
#: the view for that reason. Without them it must not.
REFUSABLE = frozenset(
    {"values", "constant output", "join on an expression", "is not distinct from as join key", "correlated inequality",
     "in of rows"}
)  # fmt: skip

#: Equal numbers of different scales become one, and PostgreSQL leaves open which of them is shown.
SEVERAL_SCALES = "several scales"
#: A view whose query may fail, and then the transaction fails with it. Nothing reads it: PostgreSQL would not compute
#: what the reader does not need.
RISKY = "division by zero"

#: Features that the generator leaves out because the engine is known to be wrong there. Must be empty.
KNOWN_GAPS: frozenset[str] = frozenset()


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


#: ("insert", table, rows), ("update", table, key, {column: value}), ("delete", table, key) or ("sql", table, statement);
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
        INT: int, BIG: int, NUM: Decimal, FLOAT: float, APPROXIMATE: float, STR: str,
        BOOL: lambda word: word in ("t", "true"),
        DATE: datetime.date.fromisoformat, MOMENT: datetime.datetime.fromisoformat,
    }  # fmt: skip
    return readers[kind](text)


def literal(text: str | None) -> str:
    """The value in SQL, for a place that has a type."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


# --- tables and histories ---


def case(seed: int) -> Case:
    rng = Random(seed)
    tables = tuple(_table(rng, f"t{number}") for number in range(rng.randint(2, 4)))
    steps = tuple(_History(rng, tables).steps(rng.randint(*STEPS)))
    views: list[View] = []
    for number in range(rng.randint(3, 5)):
        maker = ViewMaker(rng, tables, views)
        views.append(maker.view(f"v{number}", 0 if rng.random() < 0.7 else rng.randint(1, 2)))
    if rng.random() < RISKY_SHARE:
        views.append(_risky_view(rng, tables))
    return Case(f"seed {seed}", tables, tuple(views), steps)


def history(tables: Sequence[Table], seed: int) -> tuple[tuple[Write, ...], ...]:
    """Transactions over given tables."""
    return tuple(_History(Random(seed), tables).steps(STEPS[1]))


def _risky_view(rng: Random, tables: Sequence[Table]) -> View:
    """A division by what is zero in few rows only, so that most transactions succeed."""
    table = rng.choice(tables).name
    divisor = "(id + ref - 9)"
    shape, kind = rng.choice(
        (
            ("SELECT 10 / {} AS c0 FROM {}", INT),
            ("SELECT 10 % {} AS c0 FROM {}", INT),
            ("SELECT 1.5 / {} AS c0 FROM {}", NUM),
            ("SELECT SUM(7 / {}) AS c0 FROM {}", NUM),
            ("SELECT MAX(7 / {}) AS c0 FROM {} GROUP BY ref", INT),
            ("SELECT id AS c0 FROM {1} WHERE 10 / {0} > 1", INT),
            ("SELECT id AS c0 FROM {1} GROUP BY id, 10 / {0}", INT),
            ("SELECT 20 / SUM(CAST({} AS numeric)) AS c0 FROM {} GROUP BY ref", NUM),
            ("SELECT ref AS c0 FROM {1} GROUP BY ref HAVING SUM(CAST(1 AS numeric)) / SUM({0}) > 0", INT),
            ("SELECT DISTINCT 10 / {} AS c0 FROM {}", INT),
            ("SELECT a.id AS c0 FROM {1} AS a JOIN {1} AS b ON a.ref = b.id AND 10 / (a.id + b.ref - 9) > 1", INT),
        )
    )
    return View("risky", shape.format(divisor, table), ("c0",), (kind,), 0, (RISKY,))


def _table(rng: Random, name: str) -> Table:
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


class _History:
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
        where = f"WHERE {rng.choice(('id', 'ref'))} = {rng.choice(VALUES[INT])}"
        if not table.key and rng.random() < 0.5:
            return ("sql", table.name, f"DELETE FROM {table.name} {where}")
        return ("sql", table.name, f"UPDATE {table.name} SET ref = {rng.choice(('ref + 1', '2', 'id'))} {where}")

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


# --- views ---


@dataclass(frozen=True)
class Col:
    """Something that can be named: a column, or what stands for a group. `bare` has no alias: a subquery would look for
    it in its own FROM first."""

    ref: str
    kind: str
    name: str = ""
    bare: bool = False


@dataclass(frozen=True)
class From:
    """A part of FROM. `shown` are the columns of `*`."""

    sql: str
    columns: tuple[Col, ...]
    shown: tuple[Col, ...]
    #: Base tables by alias, whose keys determine their other columns.
    bases: tuple[tuple[str, Table], ...] = ()
    #: Equalities of comma joins, which stand in WHERE.
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    """A query with its output names and kinds."""

    sql: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass
class ViewMaker:
    """Draws one view over tables and earlier views."""

    rng: Random
    tables: Sequence[Table]
    views: Sequence[View]
    features: set[str] = field(default_factory=set)
    ctes: list[tuple[str, Made]] = field(default_factory=list)
    aliases: int = 0

    def view(self, name: str, after: int) -> View:
        chosen = self.chance(0.12)
        ctes = ""
        if chosen:
            ctes = self.with_clause()
        made = self.query(2)
        known = {view.name: view for view in self.views}
        # A view is created after the views that it reads.
        after = max([after, *(view.after for view in known.values() if f"{view.name} AS" in made.sql + ctes)])
        return View(name, ctes + made.sql, made.names, made.kinds, after, tuple(sorted(self.features)))

    # --- helpers ---

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def uses(self, *features: str) -> None:
        self.features.update(features)

    def one(self, *makers: Callable[[], str]) -> str:
        return self.rng.choice(makers)()

    def alias(self, prefix: str = "a") -> str:
        self.aliases += 1
        return f"{prefix}{self.aliases}"

    # --- queries ---

    def with_clause(self) -> str:
        parts = []
        for _ in range(self.rng.choice((1, 1, 2))):
            made, name = self.query(1), self.alias("w")
            names = tuple(f"x{number}" for number in range(len(made.names)))
            renamed = self.chance(0.3)
            parts.append(f"{name}{' (' + ', '.join(names) + ')' if renamed else ''} AS ({made.sql})")
            self.ctes.append((name, Made(made.sql, names if renamed else made.names, made.kinds)))
        self.uses("cte")
        return f"WITH {', '.join(parts)} "

    def query(self, depth: int) -> Made:
        """Any query; `depth` bounds the nesting of subqueries."""
        choice = self.rng.random()
        if depth and choice < 0.2:
            made = self.set_operation(depth)
        elif choice < 0.55:
            made = self.grouped(depth)
        else:
            made = self.block(depth)
        return made

    def set_operation(self, depth: int) -> Made:
        rng = self.rng
        kinds = tuple(rng.choice((INT, INT, NUM, STR, FLOAT, BOOL, DATE)) for _ in range(rng.randint(1, 3)))
        if NUM in kinds:
            self.uses(SEVERAL_SCALES)
        first = self.block(depth - 1, kinds, limit=False)
        sql = first.sql
        count = rng.choice((2, 2, 2, 3))
        for number in range(1, count):
            operator = rng.choice(("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"))
            self.uses(operator.lower())
            if number > 1 and self.chance(0.5):
                sql = f"({sql})"
            sql = f"{sql} {operator} {self.set_branch(depth, kinds)}"
        if count > 2:
            self.uses("set operations of three")
        made = Made(sql, first.names, kinds)
        return self.limited(made) if self.chance(0.12) else made

    def set_branch(self, depth: int, kinds: Sequence[str]) -> str:
        if self.chance(0.1):
            self.uses("values")
            return self.values(kinds)
        if self.chance(0.15):
            return f"({self.block(depth - 1, kinds).sql})"
        return self.block(depth - 1, kinds, limit=False).sql

    def values(self, kinds: Sequence[str]) -> str:
        rows = [", ".join(self.constant(kind) for kind in kinds) for _ in range(self.rng.randint(1, 3))]
        return f"VALUES {', '.join(f'({row})' for row in rows)}"

    def block(self, depth: int, kinds: Sequence[str] = (), *, limit: bool = True) -> Made:
        """SELECT [DISTINCT] ... FROM ... WHERE ... [ORDER BY ... LIMIT], with outputs of the given kinds if any."""
        rng, source = self.rng, self.from_clause(depth)
        where = self.where(source, depth)
        names = [column.name for column in source.shown]
        if not kinds and self.chance(0.12) and len(set(names)) == len(names):
            self.uses("select *")
            distinct = self.distinct([column.kind for column in source.shown])
            made = Made(f"SELECT {distinct}* FROM {source.sql}{where}", tuple(names), self.kinds_of(source.shown))
        else:
            outputs = [(self.expression(source.columns, kind), kind) for kind in kinds] if kinds else []
            for _ in range(0 if kinds else rng.randint(1, 4)):
                column = rng.choice(source.columns)
                plain = column.kind not in PLAIN or self.chance(0.7)
                outputs.append((column.ref if plain else self.expression(source.columns, column.kind), column.kind))
            if not all(any(column.ref in text for column in source.columns) for text, _ in outputs):
                self.uses("constant output")
            distinct = self.distinct([kind for _, kind in outputs])
            listed = ", ".join(f"{text} AS c{number}" for number, (text, _) in enumerate(outputs))
            made = Made(
                f"SELECT {distinct}{listed} FROM {source.sql}{where}",
                tuple(f"c{number}" for number in range(len(outputs))),
                tuple(kind for _, kind in outputs),
            )
            if not limit and not distinct and self.chance(0.1):
                return made
        if limit and self.chance(0.14):
            return self.limited(made, () if distinct else source.columns)
        if limit and self.chance(0.04) and depth == 2:
            self.uses("order by alone")
            return Made(f"{made.sql} ORDER BY 1", made.names, made.kinds)
        return made

    def kinds_of(self, columns: Sequence[Col]) -> tuple[str, ...]:
        return tuple(column.kind for column in columns)

    def distinct(self, kinds: Sequence[str]) -> str:
        if APPROXIMATE in kinds or not self.chance(0.15):
            return ""
        self.uses("distinct")
        return "DISTINCT "

    def limited(self, made: Made, columns: Sequence[Col] = ()) -> Made:
        """The first rows; ties are broken by the whole row, which PostgreSQL has to be told."""
        if APPROXIMATE in made.kinds:
            return made
        self.uses("top-k")
        rng = self.rng
        orders = rng.sample(made.names, rng.randint(1, min(2, len(made.names))))
        sortable = [column.ref for column in columns if column.kind in PLAIN]
        if sortable and self.chance(0.3):
            self.uses("order by a column not shown")
            orders.insert(0, rng.choice(sortable))
        parts = [
            f"{order}{rng.choice(('', ' ASC', ' DESC', ' DESC'))}{rng.choice(('', '', ' NULLS FIRST', ' NULLS LAST'))}"
            for order in orders
        ]
        ties = "".join(f", {name}" for name in made.names)
        limit = rng.choice((1, 2, 3, 5, 0)) if self.chance(0.2) else rng.randint(1, 4)
        sql = f"{made.sql} ORDER BY {', '.join(parts)}{TIES_OPEN}{ties}{TIES_CLOSE} LIMIT {limit}"
        return Made(sql, made.names, made.kinds)

    def grouped(self, depth: int, kinds: Sequence[str] = ()) -> Made:
        rng, source = self.rng, self.from_clause(depth)
        where = self.where(source, depth)
        keys = self.group_keys(source)
        aggregates = [self.aggregate(source.columns) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3)))]
        if not aggregates and not keys:
            aggregates = [self.aggregate(source.columns)]
        if not aggregates:
            self.uses("group by without aggregate")
        outputs = [key for key in keys if self.chance(0.85)] + [self.around(item, keys) for item in aggregates]
        if len(outputs) < len(keys) + len(aggregates):
            self.uses("group key not shown")
        if not outputs:
            outputs = [self.aggregate(source.columns)]
        outputs += self.determined(source, keys)
        varying = [column.ref for column in (*source.columns, *aggregates)]
        if not all(any(ref in item.ref for ref in varying) for item in outputs):
            self.uses("constant output")
        listed = ", ".join(f"{item.ref} AS c{number}" for number, item in enumerate(outputs))
        sql = f"SELECT {listed} FROM {source.sql}{where}"
        if keys:
            sql += f" GROUP BY {', '.join(self.group_item(key, outputs) for key in keys)}"
        else:
            self.uses("aggregate without group by")
        if self.chance(0.25):
            self.uses("having")
            sql += f" HAVING {self.having([*keys, *aggregates], source)}"
        made = Made(sql, tuple(f"c{number}" for number in range(len(outputs))), self.kinds_of(outputs))
        return self.limited(made) if self.chance(0.1) else made

    def group_keys(self, source: From) -> list[Col]:
        columns = [column for column in source.columns if column.kind != APPROXIMATE]
        keys: list[Col] = []
        if not columns:
            return keys
        for _ in range(self.rng.choice((0, 1, 1, 1, 1, 2, 2))):
            key = self.rng.choice(columns)
            if key.kind in PLAIN and self.chance(0.25):
                self.uses("group by expression")
                key = Col(self.computed(source.columns, key.kind, 1), key.kind)
            if all(key.ref != other.ref for other in keys):
                keys.append(key)
        if keys:
            self.uses("group by")
        if not all(any(column.ref in key.ref for column in source.columns) for key in keys):
            self.uses("constant output")
        return keys

    def group_item(self, key: Col, outputs: Sequence[Col]) -> str:
        """The key as GROUP BY names it: itself, or the place or name of an output."""
        places = [place for place, output in enumerate(outputs) if output.ref == key.ref]
        if places and self.chance(0.3):
            self.uses("group by position or name")
            return self.rng.choice((str(places[0] + 1), key.ref if key.name else str(places[0] + 1)))
        return key.ref

    def determined(self, source: From, keys: Sequence[Col]) -> list[Col]:
        """A column that GROUP BY need not name, because it names the primary key of its table."""
        grouped = {key.ref for key in keys}
        for alias, table in source.bases:
            if table.key and all(f"{alias}.{name}" in grouped for name in table.key) and self.chance(0.5):
                self.uses("column determined by the key")
                column = self.rng.choice(table.columns)
                return [Col(f"{alias}.{column.name}", column.kind)]
        return []

    def having(self, groups: Sequence[Col], source: From) -> str:
        usable = [item for item in groups if item.kind != APPROXIMATE]
        if not usable or self.chance(0.2):
            return f"COUNT(*) > {self.rng.randint(0, 2)}"
        return self.condition(usable, 1)

    def around(self, aggregate: Col, keys: Sequence[Col]) -> Col:
        """The aggregate, or an expression that holds it."""
        if aggregate.kind in (APPROXIMATE, BIG) or not self.chance(0.2):
            return aggregate
        self.uses("expression around aggregate")
        return Col(self.computed([aggregate, *keys], aggregate.kind, 1), aggregate.kind)

    def aggregate(self, columns: Sequence[Col]) -> Col:
        rng = self.rng
        if self.chance(0.15):
            self.uses("count(*)")
            return Col(f"COUNT(*){self.filter(columns)}", INT)
        column = rng.choice(columns)
        argument = column.ref
        if column.kind in PLAIN and self.chance(0.25):
            self.uses("expression inside aggregate")
            argument = self.computed(columns, column.kind, 1)
        names = ["COUNT"]
        if column.kind in ORDERED:
            names += ["MIN", "MAX"]
        if column.kind in (*NUMBERS, APPROXIMATE):
            names += ["SUM", "SUM", "AVG", "AVG", "VAR"]
        if column.kind == BOOL:
            names += ["BOOL_AND", "BOOL_OR", "EVERY"]
        name = rng.choice(names)
        distinct = column.kind != APPROXIMATE and self.chance(0.25)
        if name == "VAR":
            name = rng.choice(("VARIANCE", "VAR_POP", "VAR_SAMP", "STDDEV", "STDDEV_POP", "STDDEV_SAMP"))
            self.uses("variance")
        self.uses(f"{name.lower()} distinct" if distinct and name in ("COUNT", "SUM", "AVG") else name.lower())
        text = f"{name}({'DISTINCT ' if distinct else ''}{argument}){self.filter(columns)}"
        return Col(text, _aggregate_kind(name, column.kind))

    def filter(self, columns: Sequence[Col]) -> str:
        if not self.chance(0.15):
            return ""
        self.uses("filter")
        return f" FILTER (WHERE {self.condition(columns, 1)})"

    # --- FROM ---

    def from_clause(self, depth: int) -> From:
        count = self.rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4) if depth == 2 else (1, 1, 1, 2))
        if count == 1 or not self.chance(0.12):
            return self.joined(depth, count)
        self.uses("comma join", f"{count}-way join")
        first = self.rng.randint(1, count - 1)
        left, right = self.joined(depth, first), self.joined(depth, count - first)
        shown = left.shown + right.shown
        lefts, rights = _unambiguous(left.columns, shown), _unambiguous(right.columns, shown)
        equality = self.equality(lefts, rights)
        return From(f"{left.sql}, {right.sql}", lefts + rights, shown, left.bases + right.bases, (equality,))

    def joined(self, depth: int, count: int) -> From:
        if count == 1:
            return self.source(depth)
        self.uses(f"{count}-way join")
        rights = self.rng.randint(2, count - 1) if count > 2 and self.chance(0.25) else 1
        left = self.joined(depth, count - rights)
        right = self.joined(depth, rights)
        if rights > 1:
            self.uses("join in parentheses")
            right = From(f"({right.sql})", right.columns, right.shown, right.bases)
        return self.join(left, right)

    def join(self, left: From, right: From) -> From:
        kind = self.rng.choice(("JOIN", "JOIN", "INNER JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        self.uses({"JOIN": "inner join", "INNER JOIN": "inner join"}.get(kind, kind.lower()))
        if {table.name for _, table in left.bases} & {table.name for _, table in right.bases}:
            self.uses("self-join")
        common = self.common(left, right)
        if common and self.chance(0.25):
            return self.join_using(kind, left, right, common)
        shown = left.shown + right.shown
        lefts, rights = _unambiguous(left.columns, shown), _unambiguous(right.columns, shown)
        columns = lefts + rights
        condition = self.equality(lefts, rights, full=kind == "FULL JOIN")
        if self.chance(0.2):
            self.uses("extra condition in ON")
            condition += f" AND {self.condition(columns, 1)}"
        sql = f"{left.sql} {kind} {right.sql} ON {condition}"
        return From(sql, columns, shown, left.bases + right.bases)

    def common(self, left: From, right: From) -> list[str]:
        """The names that USING can take: once on each side, of kinds that compare."""
        found = []
        for column in left.shown:
            partners = [other for other in right.shown if other.name == column.name]
            once = sum(other.name == column.name for other in left.shown) == 1
            if once and len(partners) == 1 and column.kind == partners[0].kind != APPROXIMATE:
                found.append(column.name)
        return found

    def join_using(self, kind: str, left: From, right: From, common: list[str]) -> From:
        shared = {column.name for column in left.shown} & {column.name for column in right.shown}
        natural = shared == set(common) and self.chance(0.4)
        names = common if natural else self.rng.sample(common, self.rng.choice((1, min(2, len(common)))))
        self.uses("natural join" if natural else "using")
        merged = []
        for name in names:
            kind_of = next(column.kind for column in left.shown if column.name == name)
            merged.append(Col(name, kind_of, name, bare=True))
        shown = (*merged, *(column for column in left.shown + right.shown if column.name not in names))
        before = (column for column in left.columns + right.columns if not (column.bare and column.name in names))
        columns = _unambiguous((*merged, *before), shown)
        sql = f"NATURAL {kind}" if natural else kind
        sql = f"{left.sql} {sql} {right.sql}" + ("" if natural else f" USING ({', '.join(names)})")
        return From(sql, columns, shown, left.bases + right.bases)

    def equality(self, left: Sequence[Col], right: Sequence[Col], *, full: bool = False) -> str:
        """At least one equality between the two sides."""
        rng = self.rng
        pairs = [(one, two) for one in left for two in right if one.kind == two.kind != APPROXIMATE]
        # Mostly over the small ints, which find partners.
        ints = [pair for pair in pairs if pair[0].kind == INT]
        mixed = [
            (one, two) for one in left for two in right
            if one.kind != two.kind and {one.kind, two.kind} <= set(NUMBERS)
        ]  # fmt: skip
        parts = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            if mixed and self.chance(0.04):
                one, two = rng.choice(mixed)
                self.uses("join of two types")
            elif ints and self.chance(0.8):
                one, two = rng.choice(ints)
            elif pairs:
                one, two = rng.choice(pairs)
            else:
                break
            first, second = (one.ref, two.ref) if self.chance(0.6) else (two.ref, one.ref)
            if not full and self.chance(0.06):
                self.uses("is not distinct from as join key")
                parts.append(f"{first} IS NOT DISTINCT FROM {second}")
            elif self.chance(0.04) and one.kind == INT:
                self.uses("join on an expression")
                parts.append(f"{first} + 1 = {second}")
            else:
                parts.append(f"{first} = {second}")
        if not parts:
            one, two = rng.choice(left), rng.choice(right)
            self.uses("join on an expression")
            return f"CAST({one.ref} IS NULL AS int) = CAST({two.ref} IS NULL AS int)"
        return " AND ".join(dict.fromkeys(parts))

    def source(self, depth: int) -> From:
        choice, alias = self.rng.random(), self.alias()
        views = [view for view in self.views if RISKY not in view.features]
        if choice < 0.14 and views:
            view = self.rng.choice(views)
            self.uses("view on view", *(REFUSABLE | {SEVERAL_SCALES}).intersection(view.features))
            return self.named(f"{view.name} AS {alias}", alias, view.names, view.kinds)
        if choice < 0.26 and depth:
            made = self.query(depth - 1)
            self.uses("subquery in from")
            if self.chance(0.2):
                names = tuple(f"y{number}" for number in range(len(made.names)))
                return self.named(f"({made.sql}) AS {alias} ({', '.join(names)})", alias, names, made.kinds)
            return self.named(f"({made.sql}) AS {alias}", alias, made.names, made.kinds)
        if choice < 0.29:
            self.uses("values")
            kinds = tuple(self.rng.choice((INT, INT, STR, NUM)) for _ in range(self.rng.randint(1, 2)))
            names = tuple(f"z{number}" for number in range(len(kinds)))
            return self.named(f"({self.values(kinds)}) AS {alias} ({', '.join(names)})", alias, names, kinds)
        if self.ctes and choice < 0.7:
            name, made = self.rng.choice(self.ctes)
            return self.named(f"{name} AS {alias}", alias, made.names, made.kinds)
        table = self.rng.choice(self.tables)
        if not table.key:
            self.uses("table without key")
        names = tuple(column.name for column in table.columns)
        item = self.named(f"{table.name} AS {alias}", alias, names, tuple(column.kind for column in table.columns))
        return From(item.sql, item.columns, item.shown, ((alias, table),))

    def named(self, sql: str, alias: str, names: Sequence[str], kinds: Sequence[str]) -> From:
        columns = tuple(Col(f"{alias}.{name}", kind, name) for name, kind in zip(names, kinds, strict=True))
        return From(sql, columns, columns)

    # --- WHERE ---

    def where(self, source: From, depth: int) -> str:
        parts = [*source.where]
        if self.chance(0.35):
            self.uses("where")
            parts.append(self.condition(source.columns, 2))
        if depth and self.chance(0.15):
            parts.append(self.semi(source, depth))
            if self.chance(0.15):
                parts.append(self.semi(source, depth))
        self.rng.shuffle(parts)
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def semi(self, source: From, depth: int) -> str:
        """A subquery as a condition. Only columns with an alias can be named inside it."""
        outer = [column for column in source.columns if not column.bare and column.kind != APPROXIMATE]
        inner = self.from_clause(0)
        columns = [column for column in inner.columns if column.kind != APPROXIMATE]
        pairs = [(one, two) for one in outer for two in columns if one.kind == two.kind]
        ints = [pair for pair in pairs if pair[0].kind == INT]
        if not pairs:
            return self.condition(source.columns, 1)
        one, two = self.rng.choice(ints if ints and self.chance(0.8) else pairs)
        negated = self.chance(0.5)
        extra = [*inner.where, *([self.condition(columns, 1)] if self.chance(0.3) else [])]
        correlated = [pair for pair in pairs if pair[0].kind in (INT, STR, NUM)]
        if correlated and self.chance(0.2):
            self.uses("correlated inequality")
            left, right = self.rng.choice(correlated)
            extra.append(f"{right.ref} {self.rng.choice(('<', '>=', '<>'))} {left.ref}")
        if self.chance(0.5):
            self.uses("not exists" if negated else "exists")
            where = " AND ".join([f"{two.ref} = {one.ref}", *extra])
            shown = self.rng.choice(("1", "*", two.ref))
            return f"{'NOT ' if negated else ''}EXISTS (SELECT {shown} FROM {inner.sql} WHERE {where})"
        return self.membership(inner, (one, two), ints or pairs, extra, negated=negated)

    def membership(
        self, inner: From, pair: tuple[Col, Col], pairs: list[tuple[Col, Col]], extra: list[str], *, negated: bool
    ) -> str:
        one, two = pair
        self.uses("not in (subquery)" if negated else "in (subquery)")
        other = self.rng.choice(pairs)
        if self.chance(0.3) and other[0] != one:
            self.uses("correlated in")
            extra = [*extra, f"{other[1].ref} = {other[0].ref}"]
        where = f" WHERE {' AND '.join(extra)}" if extra else ""
        if self.chance(0.15) and other[0] != one:
            self.uses("in of rows")
            word = "NOT IN" if negated else "IN"
            return f"({one.ref}, {other[0].ref}) {word} (SELECT {two.ref}, {other[1].ref} FROM {inner.sql}{where})"
        if self.chance(0.15):
            word = "<> ALL" if negated else "= ANY"
            return f"{one.ref} {word} (SELECT {two.ref} FROM {inner.sql}{where})"
        if not extra and self.chance(0.25):
            self.uses("in of a grouped subquery")
            having = " HAVING COUNT(*) > 1" if self.chance(0.5) else ""
            return f"{one.ref} {'NOT ' if negated else ''}IN (SELECT {two.ref} FROM {inner.sql} GROUP BY {two.ref}{having})"
        if self.chance(0.1):
            return f"NOT {one.ref} {'' if negated else 'NOT '}IN (SELECT {two.ref} FROM {inner.sql}{where})"
        return f"{one.ref} {'NOT ' if negated else ''}IN (SELECT {two.ref} FROM {inner.sql}{where})"

    # --- conditions and expressions ---

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
        if kind in (INT, BIG):
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
                arithmetic("({} + {})", "({} - {})", "({} * {n})", "(CAST({} AS numeric) / {n})", "({} * 0.5)", "(- {})"),
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


def _aggregate_kind(name: str, kind: str) -> str:
    if name == "COUNT":
        return INT
    if name in ("MIN", "MAX", "BOOL_AND", "BOOL_OR", "EVERY"):
        return kind
    return APPROXIMATE if kind in (FLOAT, APPROXIMATE) else NUM


def _unambiguous(columns: Sequence[Col], shown: Sequence[Col]) -> tuple[Col, ...]:
    """Without those that have no alias and the name of another column."""
    names = [column.name for column in shown]
    return tuple(column for column in columns if not column.bare or names.count(column.name) == 1)
