"""A relation as a sum of branches: the form in which change tables can be propagated.

    relation = Σ branches        branch = σ_conditions(S1 ⋈ … ⋈ Sn), projected to `columns`

A source is a table, a view, or one of the engine's own hidden views. Everything that is not a sum of joins is one:
an aggregate, DISTINCT, a set operation. What remains is linear in each source, so one law (`operators/join.py`) serves
all branches. Outer joins, semi-joins and anti-joins are branches over a *presence* view, which holds each join key of
the other side once:

    A LEFT JOIN B ON k   =   A ⋈ B   ⊎   (A ▷ P) × NULLs            P = δ(Π_k(B)), the keys that B has
    A WHERE EXISTS (B)   =   A ⋈ P                                  A WHERE NOT EXISTS (B) = A ▷ P

An anti source, ▷, lets a row pass if no row of it is found. It is the inner join with the complement of P, whose
change table is -□P; that is all that the join law has to know about it. P is kept like any other view, so that a
change of B reaches A only when a key appears or disappears, however many rows of B have it.

If a condition compares both sides otherwise than by equality, P cannot be about keys of B alone: it then holds the keys
of the rows of A that have a partner.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from hashlib import blake2b
from typing import Protocol, TypeAlias, TypeGuard, cast

from .algebra import (
    Apply,
    Distinct,
    Field,
    Filter,
    Group,
    Join,
    Keyed,
    Output,
    Project,
    Relation,
    Scan,
    Semi,
    SetOp,
    Slice,
    Top,
    Values,
    WithKey,
    column,
    place_of,
)
from .compiler import on_a_whole_stack, sources_of
from .errors import InternalError, UnsupportedView
from .expressions import Call, ColumnRef, Expression, Literal
from .rewriting import conjuncts, is_null, is_safe, moved, positions, substituted
from .schema import Table
from .types import BOOL, INT, Type

#: Branches of one view. Each outer join can double them, each UNION ALL adds them up.
BRANCHES_MAX = 64
#: Tables of one branch.
SOURCES_MAX = 32
#: Columns of one NOT IN that may be NULL: with n of them, up to 3 ** n views are kept for it.
NOT_IN_COLUMNS_MAX = 3
#: The column of a view's table that says how many times its row counts. Only a view that can show a row several times
#: has it.
MULTIPLICITY = "*"

NO_EQUALITY = "joins without any equality (a change would touch every row)"

#: Line and column in the text, both from 1.
Place: TypeAlias = tuple[int, int]

#: Where in the relation a key column comes from: the path to its scan, and its place there. -1: the side of a union.
Tag: TypeAlias = tuple[tuple[int, ...], int]


class Stored(Protocol):
    """The tables and views that a relation may read, and those that are to be kept for it."""

    def table(self, name: str) -> Table: ...

    def inner(self, relation: Relation) -> Table:
        """The table of the hidden view that keeps a relation."""


@dataclass(frozen=True, slots=True)
class Source:
    """One table of a branch. A self-join has two sources with one table. `anti`: its rows must *not* be there."""

    table: str
    alias: str
    anti: bool = False
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Equality:
    """left.source < right.source. NULL joins nothing, unless `null_safe`: then it joins NULL."""

    left: ColumnRef
    right: ColumnRef
    null_safe: bool = False


#: A column of an anti source, what it must equal (an expression that reads no row), and whether NULL equals NULL.
Constant: TypeAlias = tuple[ColumnRef, Expression, bool]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of what makes a row of the branch one row."""

    tag: Tag
    name: str
    expression: Expression
    nullable: bool


@dataclass(frozen=True, slots=True)
class Branch:
    """`conditions` and `columns` read the sources: `ColumnRef.source` is a place in `sources`."""

    sources: tuple[Source, ...]
    conditions: tuple[Expression, ...]
    columns: tuple[Expression, ...]
    keys: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """A branch ready for planning: conditions split into equalities that look-ups can use, and filters. `constants`
    bind columns of anti sources: (column, constant, null safe)."""

    sources: tuple[Source, ...]
    equalities: tuple[Equality, ...]
    filters: tuple[Expression, ...]
    columns: tuple[Expression, ...]
    keys: tuple[KeyPart, ...]
    constants: tuple[Constant, ...] = ()


@on_a_whole_stack
def hidden_name(relation: Relation, scope: str = "") -> str:
    """Equal relations are kept once, whoever needs them: the name says what is kept. Views that are refreshed at
    different times cannot share one: each `scope` has its own."""
    name = "~" + blake2b(repr(relation).encode(), digest_size=12).hexdigest()
    return f"{name}@{scope}" if scope else name


def is_hidden(name: str) -> bool:
    return name.startswith("~")


# --- expressions ---


def columns_of(expression: Expression) -> Iterator[ColumnRef]:
    if isinstance(expression, ColumnRef):
        yield expression
    elif isinstance(expression, Call):
        for argument in expression.args:
            yield from columns_of(argument)


def _moved(expression: Expression, by: int) -> Expression:
    """The expression with its sources numbered from `by` on."""
    if isinstance(expression, ColumnRef):
        return replace(expression, source=expression.source + by)
    if isinstance(expression, Call):
        return replace(expression, args=tuple(_moved(argument, by) for argument in expression.args))
    return expression


def _placed(expression: Expression, places: Sequence[int]) -> Expression:
    """The expression with each column read from another place."""
    if isinstance(expression, ColumnRef):
        return replace(expression, position=places[expression.position])
    if isinstance(expression, Call):
        return replace(expression, args=tuple(_placed(argument, places) for argument in expression.args))
    return expression


def _never_true(condition: Expression) -> bool:
    """Conditions that padding with NULL has made impossible: that alone keeps the number of branches small."""
    if isinstance(condition, Literal):
        return condition.value is not True
    if isinstance(condition, Call):
        if condition.op == "is_not_null":
            return is_null(condition.args[0])
        if condition.op == "is_not_distinct":
            one, other = condition.args
            known = [side for side in map(_uncast, (one, other)) if isinstance(side, ColumnRef) and not side.nullable]
            return bool(known) and (is_null(one) or is_null(other))
    return is_null(condition)


def _uncast(expression: Expression) -> Expression:
    while isinstance(expression, Call) and expression.op == "cast":
        expression = expression.args[0]
    return expression


# --- expansion ---


@on_a_whole_stack
def expand(relation: Relation, stored: Stored) -> list[Branch]:
    """The branches whose sum is the relation."""
    branches = [replace(branch, conditions=_with_known_values(branch)) for branch in _expand(relation, stored, ())]
    return [branch for branch in branches if not any(map(_never_true, branch.conditions))]


def _expand(relation: Relation, stored: Stored, path: tuple[int, ...]) -> list[Branch]:
    match relation:
        case Scan():
            table = _readable(stored.table(relation.table), stored)
            return [_leaf(table, relation.alias, relation.positions, path, relation.place)]
        case Values():
            return _values(relation, path)
        case Filter():
            return _filtered(_expand(relation.input, stored, path), conjuncts(relation.condition))
        case Project():
            expressions = [output.expression for output in relation.outputs]
            return [
                replace(branch, columns=tuple(substituted(expression, branch.columns) for expression in expressions))
                for branch in _expand(relation.input, stored, path)
            ]
        case Join():
            return _joined(relation, stored, path)
        case Semi():
            branches = _expand(relation.left, stored, (*path, 0))
            return _absent(relation, branches, stored) if relation.anti else _present(relation, branches, stored)
        case SetOp(kind="union", all=True):
            return _union(relation, stored, path)
        case WithKey():
            return [
                replace(branch, columns=(*branch.columns, *(part.expression for part in branch.keys)))
                for branch in aligned(_expand(relation.input, stored, path))
            ]
        case Top(limit=None, offset=0) | Keyed():
            return _expand(relation.input, stored, path)
        case Apply():
            raise InternalError("a view has no subquery inside an expression")
        case Group() | Distinct() | SetOp() | Top() | Slice():
            table = _readable(stored.inner(canonical(relation)), stored)
            return [_leaf(table, "", range(len(relation.fields)), path, place_of(relation))]


def _readable(table: Table, stored: Stored) -> Table:
    """A view that is kept in order shows the first of its rows; whoever is kept from it needs just these, stored."""
    if table.top is None:
        return table
    positions = tuple(range(len(table.columns)))
    scan = Scan(table.name, "", positions, tuple(_field(table, position) for position in positions))
    return stored.inner(Slice(scan, *table.top))


def _leaf(
    table: Table,
    alias: str,
    positions: Iterable[int],
    path: tuple[int, ...],
    place: Place | None = None,
) -> Branch:
    keys = tuple(
        KeyPart((path, number), f"{alias}.{name}" if alias else name, reference, reference.nullable)
        for number, position in enumerate(table.key)
        for reference in (_reference(table, position),)
        for name in (table.columns[position].name,)
    )
    columns = tuple(_reference(table, position) for position in positions)
    return Branch((Source(table.name, alias or table.name, place=place),), (), columns, keys)


def _reference(table: Table, position: int) -> ColumnRef:
    column_ = table.columns[position]
    # The key of a base table is never NULL, whatever it was declared as; that of a view can be.
    nullable = column_.nullable and (table.view or position not in table.key)
    return ColumnRef(0, position, column_.name, column_.type, nullable)


def _values(relation: Values, path: tuple[int, ...]) -> list[Branch]:
    if len(relation.rows) > BRANCHES_MAX:
        raise UnsupportedView(
            f"VALUES with more than {BRANCHES_MAX} rows",
            place=relation.place,
            hint="put the rows into a table, and read them from there",
        )
    branches = []
    for number, row in enumerate(relation.rows):
        columns = tuple(Literal(value, each.type) for value, each in zip(row, relation.fields, strict=True))
        key = KeyPart((path, 0), "row", Literal(number, INT), False)
        branches.append(Branch((), (), columns, (key,)))
    return branches


def _filtered(branches: list[Branch], conditions: Sequence[Expression]) -> list[Branch]:
    kept = []
    for branch in branches:
        added = tuple(substituted(condition, branch.columns) for condition in conditions)
        if not any(map(_never_true, added)):
            kept.append(replace(branch, conditions=(*branch.conditions, *added)))
    return kept


def _bounded(branches: list[Branch], place: Place | None) -> list[Branch]:
    if len(branches) > BRANCHES_MAX:
        raise UnsupportedView(
            f"a query with more than {BRANCHES_MAX} alternatives (outer joins and unions multiply them)",
            place=place,
            hint="make a view of a part of it, and this view over that one",
        )
    return branches


def _product(left: Branch, right: Branch) -> Branch:
    by = len(left.sources)
    if by + len(right.sources) > SOURCES_MAX:
        place = next((source.place for source in right.sources if source.place is not None), None)
        raise UnsupportedView(
            f"a join of more than {SOURCES_MAX} tables", place=place, hint="make a view of a part of it"
        )
    return Branch(
        left.sources + right.sources,
        (*left.conditions, *(_moved(condition, by) for condition in right.conditions)),
        (*left.columns, *(_moved(expression, by) for expression in right.columns)),
        (*left.keys, *(replace(part, expression=_moved(part.expression, by)) for part in right.keys)),
    )


def _joined(relation: Join, stored: Stored, path: tuple[int, ...]) -> list[Branch]:
    left = _expand(relation.left, stored, (*path, 0))
    right = _expand(relation.right, stored, (*path, 1))
    inner = [_product(one, other) for one, other in itertools.product(left, right)]
    matched = _filtered(inner, conjuncts(relation.condition))
    alone: list[list[Branch]] = [[], []]
    if relation.kind in ("left", "full"):
        unmatched = Semi(relation.left, relation.right, relation.condition, True, place_of(relation.right))
        alone[0] = [_padded(branch, relation, right, first=True) for branch in _absent(unmatched, left, stored)]
    if relation.kind in ("right", "full"):
        condition = _swapped(relation.condition, len(relation.left.fields), len(relation.right.fields))
        unmatched = Semi(relation.right, relation.left, condition, True, place_of(relation.right))
        alone[1] = [_padded(branch, relation, left, first=False) for branch in _absent(unmatched, right, stored)]
    if relation.kind != "inner" and not (_tells_presence(left) and _tells_presence(right)):
        return _bounded(_marked((matched, *alone), path), place_of(relation.right))
    return _bounded([*matched, *alone[0], *alone[1]], place_of(relation.right))


def _tells_presence(side: Sequence[Branch]) -> bool:
    """Whether the key of every row has a part that is not NULL: then NULLs in its place say that there is no row."""
    return all(any(not part.nullable for part in branch.keys) for branch in side)


def _marked(sides: Sequence[Sequence[Branch]], path: tuple[int, ...]) -> list[Branch]:
    """The branches with a number of the side in front of their keys, so that no two sides make the same key."""
    marked = []
    for number, side in enumerate(sides):
        mark = KeyPart((path, -1), "side", Literal(number, INT), False)
        marked += [replace(branch, keys=(mark, *branch.keys)) for branch in side]
    return marked


def _swapped(condition: Expression | None, left_count: int, right_count: int) -> Expression | None:
    if condition is None:
        return None
    return _placed(condition, [*range(right_count, right_count + left_count), *range(right_count)])


def _padded(branch: Branch, join: Join, others: Sequence[Branch], *, first: bool) -> Branch:
    """A row without partner: NULL in all columns of the other side, and in its key."""
    fields = join.right.fields if first else join.left.fields
    nulls = tuple(Literal(None, each.type) for each in fields)
    keys = [
        replace(part, expression=Literal(None, part.expression.type), nullable=True)
        for part in {part.tag: part for other in others for part in other.keys}.values()
    ]
    if first:
        return replace(branch, columns=branch.columns + nulls, keys=(*branch.keys, *keys))
    return replace(branch, columns=nulls + branch.columns, keys=(*keys, *branch.keys))


def _union(relation: SetOp, stored: Stored, path: tuple[int, ...]) -> list[Branch]:
    sides = [_expand(relation.left, stored, (*path, 0)), _expand(relation.right, stored, (*path, 1))]
    return aligned(_bounded(_marked(sides, path), relation.place or place_of(relation.right)))


def aligned(branches: list[Branch]) -> list[Branch]:
    """All branches with the same key columns, in the order of the text; one that lacks a column has NULL there."""
    known: dict[Tag, KeyPart] = {}
    for branch in branches:
        for part in branch.keys:
            known.setdefault(part.tag, part)
    tags = sorted(known)
    alike = []
    for branch in branches:
        mine = {part.tag: part for part in branch.keys}
        alike.append(replace(branch, keys=tuple(mine.get(tag) or _no_key(known[tag]) for tag in tags)))
    return alike


def _no_key(part: KeyPart) -> KeyPart:
    return replace(part, expression=Literal(None, part.expression.type), nullable=True)


# --- semi-joins and anti-joins ---


#: (left expression, right expression, null safe): what must be equal, each in the fields of its own side.
Pair: TypeAlias = tuple[Expression, Expression, bool]


@dataclass(frozen=True, slots=True)
class _Condition:
    """What makes a row of the right side a partner: pairs that must be equal, conditions on one side alone, each in the
    fields of its own side, and all others, in those of both."""

    pairs: tuple[Pair, ...]
    left: tuple[Expression, ...]
    right: tuple[Expression, ...]
    mixed: tuple[Expression, ...]


def _split(condition: Expression | None, left_count: int) -> _Condition:
    pairs, left, right, mixed = [], [], [], []
    for part in conjuncts(condition):
        sides = {position >= left_count for position in positions(part)}
        if sides == {True}:
            right.append(moved(part, -left_count))
        elif len(sides) < 2:
            left.append(part)
        elif (pair := _pair(part, left_count)) is not None:
            pairs.append(pair)
        else:
            mixed.append(part)
    return _Condition(tuple(pairs), tuple(left), tuple(right), tuple(mixed))


def _pair(part: Expression, left_count: int) -> Pair | None:
    if not isinstance(part, Call) or part.op not in ("=", "is_not_distinct"):
        return None
    one, other = part.args
    null_safe = part.op == "is_not_distinct"
    for mine, theirs in ((one, other), (other, one)):
        if all(position < left_count for position in positions(mine)) and all(
            position >= left_count for position in positions(theirs)
        ):
            return mine, moved(theirs, -left_count), null_safe
    return None


def _present(relation: Semi, left: list[Branch], stored: Stored) -> list[Branch]:
    """The rows of the left side, given as its branches, that have a partner."""
    split = _split(relation.condition, len(relation.left.fields))
    return _with_presence(_filtered(left, split.left), relation, split, stored, anti=False)


def _absent(relation: Semi, left: list[Branch], stored: Stored) -> list[Branch]:
    """The rows of the left side, given as its branches, that have none: those that fail a condition of their own, and
    those that pass it and find no presence. A join has expanded its sides already: were they expanded here once more,
    a chain of outer joins would take twice the time for each of them."""
    split = _split(relation.condition, len(relation.left.fields))
    failing: list[Branch] = []
    passing = left
    for condition in split.left:
        failing += _filtered(passing, [Call("is_distinct", (condition, Literal(True, BOOL)), BOOL)])
        passing = _filtered(passing, [condition])
    if len(split.mixed) == 1 and (pairs := _not_in(split.mixed[0], len(relation.left.fields))):
        _check_not_in(pairs, relation.place)
        return [*failing, *_absent_from(passing, relation.right, split, pairs, stored)]
    return [*failing, *_with_presence(passing, relation, split, stored, anti=True)]


def _not_in(condition: Expression, left_count: int) -> list[Pair]:
    """x and y of (x = y) IS NOT FALSE, which is what NOT IN makes of values that may be NULL; of a row, all of them."""
    match condition:
        case Call("is_distinct", (equality, Literal(False))):
            pairs = [_pair(part, left_count) for part in conjuncts(equality)]
            return [pair for pair in pairs if pair is not None] if None not in pairs else []
    return []


def _check_not_in(pairs: Sequence[Pair], place: Place | None) -> None:
    """Every column that may be NULL on both sides means three times as many views."""
    unknown = [pair for pair in pairs if _can_be_null(pair[0]) or _can_be_null(pair[1])]
    if len(unknown) > NOT_IN_COLUMNS_MAX:
        raise UnsupportedView(
            f"NOT IN (subquery) with more than {NOT_IN_COLUMNS_MAX} columns that may be NULL",
            place=place,
            hint="declare them NOT NULL, or write NOT EXISTS",
        )


def _absent_from(
    branches: list[Branch], right: Relation, split: _Condition, pairs: Sequence[Pair], stored: Stored
) -> list[Branch]:
    """x NOT IN (SELECT y ...): x is not among the y, no y is NULL, and if x is NULL there is no y at all. Of a row of
    several values, those that are NULL on either side are equal to whatever the other has."""
    found: list[Branch] = []
    for missing in _subsets([pair for pair in pairs if _can_be_null(pair[0])]):
        tests = [
            Call("is_null" if pair in missing else "is_not_null", (pair[0],), BOOL)
            for pair in pairs
            if _can_be_null(pair[0])
        ]
        known = [pair for pair in pairs if pair not in missing]
        rows = _filtered(branches, tests)
        for nulls in _subsets([pair for pair in known if _can_be_null(pair[1])]):
            conditions = (*split.right, *(Call("is_null", (theirs,), BOOL) for _, theirs, _ in nulls))
            keys = (*split.pairs, *(pair for pair in known if pair not in nulls))
            rows = _found_by_keys(rows, right, conditions, keys, stored, anti=True)
        found += rows
    return found


def _subsets(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, ...]]:
    """All of them, the smallest first."""
    for count in range(len(pairs) + 1):
        yield from itertools.combinations(pairs, count)


def _with_presence(
    branches: list[Branch], relation: Semi, split: _Condition, stored: Stored, *, anti: bool
) -> list[Branch]:
    if not split.pairs:
        raise UnsupportedView(
            NO_EQUALITY,
            place=relation.place,
            hint="compare a column of the outer query with one of the inner by =, and the rest beside it",
        )
    if not split.mixed:
        return _found_by_keys(branches, relation.right, split.right, split.pairs, stored, anti=anti)
    alike = aligned(branches)
    if not alike:
        return []
    parts = tuple(
        replace(part, nullable=any(branch.keys[place].nullable for branch in alike))
        for place, part in enumerate(alike[0].keys)
    )
    table = stored.inner(canonical(_presence_of_rows(relation, parts)))
    null_safe = [part.nullable for part in parts]
    return [
        _bound(branch, table, list(zip((part.expression for part in branch.keys), null_safe, strict=True)), anti=anti)
        for branch in alike
    ]


def _found_by_keys(
    branches: list[Branch],
    right: Relation,
    conditions: Sequence[Expression],
    pairs: Sequence[Pair],
    stored: Stored,
    *,
    anti: bool,
) -> list[Branch]:
    """Bind the branches to the keys that the right side has, each once."""
    tests = [
        Call("is_not_null", (theirs,), BOOL) for _, theirs, null_safe in pairs if not null_safe and _can_be_null(theirs)
    ]
    for condition in (*conditions, *tests):
        right = Filter(right, condition)
    outputs = tuple(Output("", theirs, null_safe and _can_be_null(theirs)) for _, theirs, null_safe in pairs)
    table = stored.inner(canonical(Distinct(Project(right, outputs))))
    return [
        _bound(
            branch, table, [(substituted(mine, branch.columns), null_safe) for mine, _, null_safe in pairs], anti=anti
        )
        for branch in branches
    ]


def _can_be_null(expression: Expression) -> bool:
    return not isinstance(expression, ColumnRef) or expression.nullable


def _presence_of_rows(relation: Semi, keys: tuple[KeyPart, ...]) -> Relation:
    """The keys of the left rows that have a partner."""
    left_count, keys_count = len(relation.left.fields), len(keys)
    fields = tuple(Field("", part.expression.type, part.nullable) for part in keys)
    places = [*range(left_count), *range(left_count + keys_count, left_count + keys_count + len(relation.right.fields))]
    condition = None if relation.condition is None else _placed(relation.condition, places)
    partners = Join("inner", WithKey(relation.left, fields), relation.right, condition)
    shown = range(left_count, left_count + keys_count)
    outputs = tuple(Output("", column(partners, place), partners.fields[place].nullable) for place in shown)
    return Distinct(Project(partners, outputs))


def _bound(branch: Branch, table: Table, keys: list[tuple[Expression, bool]], *, anti: bool) -> Branch:
    """The branch with one more source, whose whole key is bound."""
    number = len(branch.sources)
    conditions: list[Expression] = []
    for place, (mine, null_safe) in enumerate(keys):
        theirs = replace(_reference(table, table.key[place]), source=number)
        conditions.append(Call("is_not_distinct" if null_safe else "=", (mine, theirs), BOOL))
    if any(map(_never_true, conditions)):
        # A row with NULL in its key has no partner.
        return branch if anti else replace(branch, conditions=(*branch.conditions, Literal(False, BOOL)))
    source = Source(table.name, table.name, anti)
    return replace(branch, sources=(*branch.sources, source), conditions=(*branch.conditions, *conditions))


# --- equalities ---


@on_a_whole_stack
def join_graph(branch: Branch, stored: Stored) -> JoinGraph:
    """Split the conditions and check that every source is reached through equalities from every other."""
    branch = _stored_where_looked_for(_connected(branch, stored), stored)
    equalities: list[Equality] = []
    filters: list[Expression] = []
    constants: list[Constant] = []
    for condition in branch.conditions:
        equality, constant = _equality(condition), _constant(condition)
        if constant is not None and branch.sources[constant[0].source].anti:
            constants.append(constant)
        elif equality is None:
            filters.append(condition)
        elif equality not in equalities:
            equalities.append(equality)
    return JoinGraph(branch.sources, tuple(equalities), tuple(filters), branch.columns, branch.keys, tuple(constants))


def _constant(condition: Expression) -> Constant | None:
    """A column that must equal something that reads no row."""
    if isinstance(condition, Call) and condition.op in ("=", "is_not_distinct"):
        for one, other in (condition.args, condition.args[::-1]):
            if isinstance(one, ColumnRef) and not sources_of(other):
                return one, other, condition.op == "is_not_distinct" and one.nullable
    return None


def _equality(condition: Expression) -> Equality | None:
    """An equality of plain columns of two sources."""
    if not isinstance(condition, Call) or condition.op not in ("=", "is_not_distinct"):
        return None
    one, other = condition.args
    if not isinstance(one, ColumnRef) or not isinstance(other, ColumnRef) or one.source == other.source:
        return None
    # Where one side is never NULL, NULL finds nothing there anyway.
    null_safe = condition.op == "is_not_distinct" and one.nullable and other.nullable
    return Equality(one, other, null_safe) if one.source < other.source else Equality(other, one, null_safe)


def _connected(branch: Branch, stored: Stored) -> Branch:
    """Every source reached through equalities of plain columns, and every anti source by its whole key. Where only an
    equality of expressions connects two, the expressions become columns of a view of their own, with an index. An
    expression over several sources is a column of their join."""
    while True:
        parts = _components(branch)
        bridges = [_bridge(condition, parts, branch) for condition in branch.conditions]
        bridge = next((found for found in bridges if found is not None), None)
        if bridge is None:
            implied = _implied(branch, parts)
            if implied is None:
                break
            branch = replace(branch, conditions=(*branch.conditions, implied))
            continue
        numbers = _joined_for(bridge, parts, branch)
        branch = _with_columns(branch, numbers, _sides_of(branch, numbers), stored)
    if len(parts) > 1:
        loose = branch.sources[min(parts[1])]
        name = "subquery" if is_hidden(loose.alias) else loose.alias
        raise UnsupportedView(NO_EQUALITY, place=loose.place, hint=f"add a condition {name}.x = other.y")
    return branch


def _implied(branch: Branch, parts: list[set[int]]) -> Expression | None:
    """An equality between two components that follows from others: both are compared with the same constant. So a row
    of VALUES connects what is joined with it."""
    compared: dict[Expression, tuple[Expression, str, set[int]]] = {}
    for condition in branch.conditions:
        if isinstance(condition, Call) and condition.op in ("=", "is_not_distinct"):
            for one, other in (condition.args, condition.args[::-1]):
                home = next((part for part in parts if sources_of(one) and sources_of(one) <= part), None)
                if home is None or sources_of(other):
                    continue
                first, op, its_home = compared.setdefault(other, (one, condition.op, home))
                if its_home is not home:
                    null_safe = op == condition.op == "is_not_distinct"
                    return Call("is_not_distinct" if null_safe else "=", (first, one), BOOL)
    return None


def _with_known_values(branch: Branch) -> tuple[Expression, ...]:
    """The conditions with COALESCE left out where its first value is known not to be NULL: what is compared by = is
    not. So the merged column of FULL JOIN ... USING is a plain column in every branch."""
    known: set[Expression] = set()
    for condition in branch.conditions:
        if isinstance(condition, Call) and condition.op == "=":
            known.update(side for side in condition.args if isinstance(side, ColumnRef))

    def simpler(expression: Expression) -> Expression:
        if not isinstance(expression, Call):
            return expression
        args = [simpler(argument) for argument in expression.args]
        if expression.op == "coalesce":
            args = [argument for argument in args if not is_null(argument)]
            first = next((n for n, each in enumerate(args) if each in known or not _can_be_null(each)), len(args))
            args = args[: first + 1]
            if len(args) == 1 and args[0].type.kind == expression.type.kind:
                return args[0]
        return replace(expression, args=tuple(args)) if args else Literal(None, expression.type)

    return tuple(map(simpler, branch.conditions))


def _stored_where_looked_for(branch: Branch, stored: Stored) -> Branch:
    """A view that shows minima and maxima can be found by its key only; one that is joined otherwise is stored."""
    for number, source in enumerate(branch.sources):
        table = stored.table(source.table)
        if table.computed and len(branch.sources) > 1 and not source.anti:
            equalities = [found for found in map(_equality, branch.conditions) if found is not None]
            pairs = [(each.left, each.right) for each in equalities] + [(each.right, each.left) for each in equalities]
            bound = {mine.position for mine, _ in pairs if mine.source == number}
            others = {other.source for mine, other in pairs if mine.source == number}
            if len(others) > 1 or not bound >= set(table.key):
                return _stored_where_looked_for(_with_columns(branch, {number}, [], stored), stored)
    return branch


def _components(branch: Branch) -> list[set[int]]:
    """Sources that equalities of plain columns connect. Anti sources connect nothing: they have no row to go on from,
    and their whole key is bound by others."""
    return _connected_parts(branch, {number for number, source in enumerate(branch.sources) if not source.anti})


def _connected_parts(branch: Branch, numbers: set[int]) -> list[set[int]]:
    """Those of the sources that equalities of plain columns connect, without the help of others."""
    parts = [{number} for number in numbers]
    for condition in branch.conditions:
        equality = _equality(condition)
        if equality is not None and {equality.left.source, equality.right.source} <= numbers:
            touched = [part for part in parts if equality.left.source in part or equality.right.source in part]
            parts = [part for part in parts if part not in touched] + [set().union(*touched)]
    return sorted(parts, key=min)


def _bridge(condition: Expression, parts: list[set[int]], branch: Branch) -> Expression | None:
    """A side of an equality that is an expression over sources that are connected, if the equality is needed as one of
    plain columns: it is about two components or about an anti source."""
    if not _is_comparison_of_two(condition):
        return None
    sides = [sources_of(argument) for argument in condition.args]
    homes = [next((i for i, part in enumerate(parts) if side <= part), None) for side in sides]
    anti = any(branch.sources[number].anti for side in sides for number in side)
    if not anti and (homes[0] == homes[1] or None in homes):
        return None
    return next(
        (
            argument
            for argument, home in zip(condition.args, homes, strict=True)
            if home is not None and not isinstance(argument, ColumnRef)
        ),
        None,
    )


def _is_comparison_of_two(condition: Expression) -> TypeGuard[Call]:
    """An equality between expressions over different sources."""
    if not isinstance(condition, Call) or condition.op not in ("=", "is_not_distinct"):
        return False
    one, other = (sources_of(argument) for argument in condition.args)
    return bool(one) and bool(other) and not one & other


def _joined_for(expression: Expression, parts: list[set[int]], branch: Branch) -> set[int]:
    """The sources whose join has an expression as a column: its own ones if they are connected, else with all that
    connect them."""
    own = sources_of(expression)
    return own if len(_connected_parts(branch, own)) == 1 else next(part for part in parts if own <= part)


def _sides_of(branch: Branch, numbers: set[int]) -> list[Expression]:
    """All expressions over some sources that are compared with others."""
    found: dict[Expression, None] = {}
    for condition in branch.conditions:
        if _is_comparison_of_two(condition):
            for side, other in (condition.args, condition.args[::-1]):
                within = sources_of(side) <= numbers and not sources_of(other) <= numbers
                if within and not isinstance(side, ColumnRef):
                    found[side] = None
    return list(found)


def _with_columns(branch: Branch, numbers: set[int], expressions: Sequence[Expression], stored: Stored) -> Branch:
    """The branch with sources replaced by a view that stores the rows of their join, with the expressions as further
    columns. What fails for some rows is computed for those alone that the conditions leave."""
    inside: list[Expression] = []
    if len(numbers) > 1 or not all(map(is_safe, expressions)):
        inside = [each for each in branch.conditions if sources_of(each) and sources_of(each) <= numbers]
    joined, places = _join_of(branch, numbers, inside, stored)
    outputs = [Output("", column(joined, place), joined.fields[place].nullable) for place in range(len(joined.fields))]
    outputs += [Output("", _at_home(expression, joined, places), True) for expression in expressions]
    kept = stored.inner(canonical(Project(joined, tuple(outputs))))
    made = {expression: len(places) + place for place, expression in enumerate(expressions)}
    home = min(numbers)
    left = [number for number in range(len(branch.sources)) if number == home or number not in numbers]
    numbered = {number: place for place, number in enumerate(left)}

    def moved(old: Expression) -> Expression:
        if old in made:
            return replace(_reference(kept, made[old]), source=numbered[home])
        if isinstance(old, ColumnRef):
            if old.source not in numbers:
                return replace(old, source=numbered[old.source])
            return replace(_reference(kept, places[old.source, old.position]), source=numbered[home])
        if isinstance(old, Call):
            return replace(old, args=tuple(map(moved, old.args)))
        return old

    sources = {**dict(enumerate(branch.sources)), home: replace(branch.sources[home], table=kept.name)}
    return Branch(
        tuple(sources[number] for number in left),
        tuple(moved(condition) for condition in branch.conditions if condition not in inside),
        tuple(map(moved, branch.columns)),
        tuple(replace(part, expression=moved(part.expression)) for part in branch.keys),
    )


def _join_of(
    branch: Branch, numbers: set[int], conditions: Sequence[Expression], stored: Stored
) -> tuple[Relation, dict[tuple[int, int], int]]:
    """The join of some sources, with all columns that the branch reads and their keys; and where in it a column of a
    source stands: (source, position) -> place."""
    places: dict[tuple[int, int], int] = {}
    joined: Relation | None = None
    waiting = list(conditions)
    done: set[int] = set()
    for number in sorted(numbers):
        table = stored.table(branch.sources[number].table)
        read = sorted({*table.key, *(p for e in _all_expressions(branch) for p in _positions_in(e, number))})
        scan = Scan(table.name, "", tuple(read), tuple(_field(table, position) for position in read))
        for position in read:
            places[number, position] = len(places)
        done.add(number)
        ready = [condition for condition in waiting if sources_of(condition) <= done]
        waiting = [condition for condition in waiting if condition not in ready]
        both = scan if joined is None else Join("inner", joined, scan, None)
        condition = _all_of([_at_home(each, both, places) for each in ready])
        if isinstance(both, Join):
            joined = replace(both, condition=condition)
        else:
            joined = both if condition is None else Filter(both, condition)
    assert joined is not None, "there is at least one source"
    return joined, places


def _all_of(conditions: Sequence[Expression]) -> Expression | None:
    return reduce(lambda one, other: Call("and", (one, other), BOOL), conditions) if conditions else None


def _at_home(expression: Expression, relation: Relation, places: Mapping[tuple[int, int], int]) -> Expression:
    """An expression of a branch over the columns of the relation that joins its sources."""
    if isinstance(expression, ColumnRef):
        return column(relation, places[expression.source, expression.position])
    if isinstance(expression, Call):
        return replace(expression, args=tuple(_at_home(argument, relation, places) for argument in expression.args))
    return expression


def _all_expressions(branch: Branch) -> Iterator[Expression]:
    yield from branch.conditions
    yield from branch.columns
    for part in branch.keys:
        yield part.expression


def _positions_in(expression: Expression, source: int) -> set[int]:
    return {reference.position for reference in columns_of(expression) if reference.source == source}


def _field(table: Table, position: int) -> Field:
    column_ = table.columns[position]
    return Field("", column_.type, column_.nullable)


# --- identity ---


@on_a_whole_stack
def canonical(relation: Relation) -> Relation:
    """The relation without names: two that differ only in these are kept once."""
    return cast(Relation, _unnamed(relation))


def _unnamed(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_unnamed, value))
    kind = type(value)
    if kind is Type or kind is Literal or not dataclasses.is_dataclass(kind):
        return value
    changes = {name: _unnamed(getattr(value, name)) for name in _names_of(kind)}
    if isinstance(value, Field | Output | ColumnRef):
        changes["name"] = ""
    elif isinstance(value, Scan):
        changes.update(alias="", place=None)
    elif isinstance(value, Semi | SetOp | Values):
        changes["place"] = None
    elif isinstance(value, Group):
        changes.update(names=("",) * len(value.names), determined=0)
    return kind(**changes)


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass: asking for them anew would take most of the time."""
    return tuple(each.name for each in dataclasses.fields(kind))
