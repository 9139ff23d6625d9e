"""Random views in SQL, with a database and a history of transactions, made from a seed: `case(seed)`.

Everything that the view language accepts occurs, in random combinations.

Two things are kept out because PostgreSQL itself leaves them open, or rounds where the engine is exact: which of two
equal values represents a group, and what depends on the last digits of a sum of floats. Such sums are shown, never
compared or grouped by (`APPROXIMATE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.properties.sql_cases import (
    APPROXIMATE,
    BIG,
    BOOL,
    DATE,
    FLOAT,
    INT,
    NUM,
    NUMBERS,
    ORDERED,
    STEPS,
    STR,
    TIES_CLOSE,
    TIES_OPEN,
    WIDE,
    Case,
    History,
    Table,
    View,
    random_table,
)
from tests.properties.sql_expressions import PLAIN, Col, Expressions

RISKY_SHARE = 0.12
#: With these a join can turn out to have no equality, for example with a column that is a constant; then the engine may
#: refuse the view. Without them it must not.
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


def case(seed: int) -> Case:
    rng = Random(seed)
    tables = tuple(random_table(rng, f"t{number}") for number in range(rng.randint(2, 4)))
    steps = tuple(History(rng, tables).steps(rng.randint(*STEPS)))
    views: list[View] = []
    for number in range(rng.randint(3, 5)):
        maker = ViewMaker(rng, tables=tables, views=views)
        views.append(maker.view(f"v{number}", 0 if rng.random() < 0.7 else rng.randint(1, 2)))
    if rng.random() < RISKY_SHARE:
        views.append(_risky_view(rng, tables))
    return Case(f"seed {seed}", tables, tuple(views), steps)


def _risky_view(rng: Random, tables: Sequence[Table]) -> View:
    """A division by what is zero in few rows only, so that most transactions succeed."""
    table = rng.choice(tables).name
    divisor = "(id + ref - 8)"
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
            ("SELECT COUNT(*) AS c0 FROM (SELECT DISTINCT 10 / {} AS x FROM {}) AS q", INT),
            ("SELECT m AS c0 FROM {1} LEFT JOIN (SELECT id, MAX(9 / {0}) AS m FROM {1} GROUP BY 1) q USING (id)", INT),
            ("SELECT a.id AS c0 FROM {1} AS a JOIN {1} AS b ON a.ref = b.id AND 10 / (a.id + b.ref - 8) > 1", INT),
        )
    )
    return View("risky", shape.format(divisor, table), ("c0",), (kind,), 0, (RISKY,))


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
class ViewMaker(Expressions):
    """Draws one view over tables and earlier views."""

    tables: Sequence[Table] = ()
    views: Sequence[View] = ()
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
        self.merges(*kinds)
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
                text = self.computed(source.columns, key.kind, 1)
                # PostgreSQL refuses some constants there.
                if any(column.ref in text for column in source.columns):
                    self.uses("group by expression")
                    key = Col(text, key.kind)
            if all(key.ref != other.ref for other in keys):
                keys.append(key)
        if keys:
            self.uses("group by")
            self.merges(*(key.kind for key in keys))
        return keys

    def merges(self, *kinds: str) -> None:
        """Equal values become one: of computed numbers, such as 2 - 2 and 2.5 - 2.5, that means several scales."""
        computed = "arithmetic" in self.features or any("arithmetic" in view.features for view in self.views)
        if computed and NUM in kinds:
            self.uses(SEVERAL_SCALES)

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
        if aggregate.kind not in PLAIN or not self.chance(0.2):
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
            names += ["BOOL_AND", "BOOL_OR", "EVERY", "EVERY"]
        name = rng.choice(names)
        distinct = column.kind != APPROXIMATE and self.chance(0.25)
        if name == "VAR":
            name = rng.choice(("VARIANCE", "VAR_POP", "VAR_SAMP", "STDDEV", "STDDEV_POP", "STDDEV_SAMP"))
            self.uses("variance")
        self.uses(f"{name.lower()} distinct" if distinct and name in ("COUNT", "SUM", "AVG") else name.lower())
        if name in ("MIN", "MAX"):
            self.merges(column.kind)
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
            elif self.chance(0.04) and one.kind == two.kind == INT:
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
        if self.chance(0.25) and other[0] != one:
            self.uses("in of rows")
            word = "NOT IN" if negated else "IN"
            return f"({one.ref}, {other[0].ref}) {word} (SELECT {two.ref}, {other[1].ref} FROM {inner.sql}{where})"
        if self.chance(0.15):
            word = "<> ALL" if negated else "= ANY"
            return f"{one.ref} {word} (SELECT {two.ref} FROM {inner.sql}{where})"
        if not extra and self.chance(0.4):
            self.uses("in of a grouped subquery")
            having = " HAVING COUNT(*) > 1" if self.chance(0.5) else ""
            query = f"SELECT {two.ref} FROM {inner.sql} GROUP BY {two.ref}{having}"
            return f"{one.ref} {'NOT ' if negated else ''}IN ({query})"
        if self.chance(0.1):
            return f"NOT {one.ref} {'' if negated else 'NOT '}IN (SELECT {two.ref} FROM {inner.sql}{where})"
        return f"{one.ref} {'NOT ' if negated else ''}IN (SELECT {two.ref} FROM {inner.sql}{where})"


def _aggregate_kind(name: str, kind: str) -> str:
    if name == "COUNT":
        return INT
    if name in ("MIN", "MAX", "BOOL_AND", "BOOL_OR", "EVERY"):
        return kind
    if name == "SUM" and kind in (BIG, WIDE):
        return WIDE
    return APPROXIMATE if kind in (FLOAT, APPROXIMATE) else NUM


def _unambiguous(columns: Sequence[Col], shown: Sequence[Col]) -> tuple[Col, ...]:
    """Without those that have no alias and the name of another column."""
    names = [column.name for column in shown]
    return tuple(column for column in columns if not column.bare or names.count(column.name) == 1)
