"""SQL text to statements (`changetables.statements`), as PostgreSQL 15 reads them.

Heads are read word by word (`heads`), so nothing is taken that is not understood: a part that PostgreSQL has and
Viewtide does not is a NotSupportedError with its place, anything else a syntax error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from sqlglot import TokenType, exp

from ..statements import (
    AddColumn,
    AlterTable,
    AlterView,
    Assignment,
    Begin,
    CheckDefinition,
    ColumnDefinition,
    Commit,
    CreateIndex,
    CreateTable,
    CreateView,
    Default,
    Delete,
    DropColumn,
    DropIndex,
    DropTable,
    DropView,
    Explain,
    ExplainView,
    Fragment,
    Insert,
    Item,
    Name,
    OnConflict,
    Option,
    Place,
    RefreshView,
    Rollback,
    Savepoint,
    Script,
    Select,
    Statement,
    Truncate,
    UniqueDefinition,
    Update,
)
from .heads import StatementText, Words, split

#: Columns of one table, as in PostgreSQL.
COLUMNS_MAX = 1_600
LAYOUTS = ("global", "local")
#: Options of views whose values are numbers, and all of them.
_COUNTED_OPTIONS = ("backlog_rows", "backlog_bytes")
_DIGITS_MAX = 18
_VIEW_OPTIONS = ("refresh", "layout", "group", *_COUNTED_OPTIONS)

_QUERY_WORDS = ("SELECT", "WITH", "VALUES", "TABLE", "(")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE")
#: What ends a DEFAULT expression in a column definition.
_AFTER_DEFAULT = (
    "CONSTRAINT", "NOT", "NULL", "CHECK", "UNIQUE", "PRIMARY", "REFERENCES", "GENERATED", "COLLATE", "DEFERRABLE",
    "INITIALLY", "DEFAULT",
)  # fmt: skip
#: Statements of PostgreSQL that Viewtide does not have, with what to do instead.
_OTHER_STATEMENTS = {
    "ANALYZE": "", "CALL": "", "CHECKPOINT": "", "CLOSE": "", "CLUSTER": "", "COMMENT": "",
    "COPY": "use INSERT, or the Python API", "DEALLOCATE": "", "DECLARE": "", "DISCARD": "", "DO": "", "EXECUTE": "",
    "FETCH": "", "GRANT": "there are no roles: whoever opens the database may do everything", "IMPORT": "",
    "LISTEN": "", "LOAD": "", "LOCK": "transactions are serializable without locks",
    "MERGE": "use INSERT ... ON CONFLICT", "MOVE": "", "NOTIFY": "", "PREPARE": "give parameters to sql()",
    "REASSIGN": "", "REINDEX": "", "RESET": "", "REVOKE": "there are no roles", "SECURITY": "", "SET": "", "SHOW": "",
    "UNLISTEN": "", "VACUUM": "old versions are removed in the background",
}  # fmt: skip


def parse_script(text: str) -> Script:
    """All statements of a text. ProgrammingError: it is wrong. NotSupportedError: it asks for what there is not."""
    whole, parts = split(text)
    statements = tuple(_statement(Words(part)) for part in parts)
    return Script(text, statements, whole)


def _statement(words: Words) -> Statement:
    parse = _HEADS.get(words.peek())
    if parse is None:
        hint = _OTHER_STATEMENTS.get(words.peek())
        if hint is not None:
            raise words.not_supported(words.peek(), hint=hint)
        raise words.syntax_error()
    try:
        statement = parse(words)
    except RecursionError:
        raise words.source.wrong("the SQL text is nested too deeply", words.place, "split the expression") from None
    words.expect_end()
    return statement


# --- what heads share ---


def _if_exists(words: Words) -> bool:
    if not words.accept("IF"):
        return False
    words.expect("EXISTS")
    return True


def _if_not_exists(words: Words) -> bool:
    if not words.accept("IF"):
        return False
    words.expect("NOT", "EXISTS")
    return True


def _cascade(words: Words) -> bool:
    if words.accept("CASCADE"):
        return True
    words.accept("RESTRICT")
    return False


def _refuse(words: Words, features: dict[str, str], hint: str = "") -> None:
    """Names what PostgreSQL has here and Viewtide has not."""
    feature = features.get(words.peek())
    if feature is not None:
        raise words.not_supported(feature, hint=hint)


def _no_parameters(words: Words) -> None:
    """PostgreSQL takes parameters only where values are computed, not in what defines a table or view."""
    if words.source.parameters:
        place = words.source.place_of_offset(words.source.parameters[0][1])
        raise words.source.wrong("a definition cannot have parameters", place, hint="write the value")


# --- tables ---


def _create(words: Words) -> Statement:
    place = words.place
    words.expect("CREATE")
    _no_parameters(words)
    if words.looks_at("TABLE"):
        return _create_table(words, place)
    if words.looks_at("MATERIALIZED", "VIEW"):
        return _create_view(words, place)
    if words.looks_at("INDEX") or words.looks_at("UNIQUE", "INDEX"):
        return _create_index(words, place)
    if words.peek() in ("VIEW", "RECURSIVE") or words.looks_at("OR", "REPLACE", "VIEW"):
        raise words.not_supported("CREATE VIEW", hint="use CREATE MATERIALIZED VIEW")
    if words.peek() in ("TEMP", "TEMPORARY", "UNLOGGED", "GLOBAL", "LOCAL", "FOREIGN"):
        raise words.not_supported(f"{words.peek()} tables")
    if words.peek() == "" or words.peek() in ("(", ","):
        raise words.syntax_error()
    raise words.not_supported(f"CREATE {words.peek()}")


def _create_table(words: Words, place: Place) -> CreateTable:
    words.expect("TABLE")
    if_not_exists = _if_not_exists(words)
    name = words.relation()
    _refuse(words, {"AS": "CREATE TABLE AS", "OF": "typed tables", "PARTITION": "partitions"})
    draft = _TableDraft(name)
    words.expect("(")
    if not words.looks_at(")"):
        _table_element(words, draft)
        while words.accept(","):
            _table_element(words, draft)
    words.expect(")")
    _refuse(
        words,
        {
            "AS": "CREATE TABLE AS",
            "INHERITS": "inheritance",
            "PARTITION": "partitions",
            "WITH": "storage parameters",
            "WITHOUT": "storage parameters",
            "TABLESPACE": "tablespaces",
            "USING": "access methods",
            "ON": "ON COMMIT",
        },
    )
    return draft.finish(words, place, if_not_exists)


class _TableDraft:
    """Collects what CREATE TABLE says of a table."""

    def __init__(self, name: Name) -> None:
        self.name = name
        self.columns: list[ColumnDefinition] = []
        self.key: tuple[Name, ...] | None = None
        self.uniques: list[UniqueDefinition] = []
        self.checks: list[CheckDefinition] = []

    def add_key(self, words: Words, key: tuple[Name, ...], place: Place) -> None:
        if self.key is not None:
            message = f'multiple primary keys for table "{self.name.text}" are not allowed'
            raise words.source.wrong(message, place, hint="write PRIMARY KEY (a, b)")
        self.key = key

    def finish(self, words: Words, place: Place, if_not_exists: bool) -> CreateTable:
        if not self.columns:
            raise words.source.wrong(
                f'table "{self.name.text}" has no columns', place, hint="write at least one, as (id int PRIMARY KEY)"
            )
        if len(self.columns) > COLUMNS_MAX:
            raise words.source.wrong(
                f"a table has at most {COLUMNS_MAX} columns",
                place,
                hint="keep the rest in another table with the same key",
            )
        known = [column.name.text for column in self.columns]
        for position, column in enumerate(self.columns):
            if column.name.text in known[:position]:
                raise words.source.wrong(
                    f'column "{column.name.text}" specified more than once', column.name.place, hint="name it once"
                )
        for names in (self.key or (), *(unique.columns for unique in self.uniques)):
            _check_constraint_columns(words, names, known)
        return CreateTable(
            place, self.name, tuple(self.columns), self.key, tuple(self.uniques), tuple(self.checks), if_not_exists
        )


def _check_constraint_columns(words: Words, names: tuple[Name, ...], known: list[str]) -> None:
    for position, name in enumerate(names):
        if name.text not in known:
            hint = f"the columns are {', '.join(known[:20])}"
            raise words.source.wrong(f'column "{name.text}" named in key does not exist', name.place, hint)
        if name.text in [other.text for other in names[:position]]:
            raise words.source.wrong(
                f'column "{name.text}" appears twice in a constraint', name.place, hint="name it once"
            )


def _table_element(words: Words, draft: _TableDraft) -> None:
    constraint = ""
    named = words.accept("CONSTRAINT")
    if named:
        constraint = words.name().text
    place = words.place
    _refuse(
        words,
        {"FOREIGN": "foreign keys", "EXCLUDE": "EXCLUDE constraints", "LIKE": "LIKE in CREATE TABLE"},
        hint="check it in the transaction that writes" if words.looks_at("FOREIGN") else "",
    )
    if words.accept("PRIMARY", "KEY"):
        draft.add_key(words, _constraint_columns(words), place)
    elif words.accept("UNIQUE"):
        draft.uniques.append(UniqueDefinition(constraint, _constraint_columns(words)))
    elif words.accept("CHECK"):
        draft.checks.append(CheckDefinition(constraint, _check(words)))
    elif named:
        raise words.syntax_error()
    else:
        _column_definition(words, draft)


def _constraint_columns(words: Words) -> tuple[Name, ...]:
    _refuse(words, {"NULLS": "NULLS NOT DISTINCT", "USING": "USING INDEX"})
    columns = words.column_list()
    _refuse_timing(words)
    _refuse(words, {"INCLUDE": "INCLUDE", "WITH": "storage parameters", "USING": "tablespaces"})
    return columns


def _refuse_timing(words: Words) -> None:
    if words.looks_at("NOT", "DEFERRABLE") or words.looks_at("INITIALLY", "IMMEDIATE"):
        words.accept("NOT", "DEFERRABLE")
        words.accept("INITIALLY", "IMMEDIATE")
    _refuse(words, {"DEFERRABLE": "deferrable constraints", "INITIALLY": "deferrable constraints"})


def _check(words: Words) -> Fragment:
    words.expect("(")
    condition = words.expression()
    words.expect(")")
    _refuse(words, {"NO": "NO INHERIT"})
    _refuse_timing(words)
    return condition


def _column_definition(words: Words, draft: _TableDraft) -> None:
    name = words.name()
    type_ = words.data_type()
    not_null: bool | None = None
    default: Fragment | None = None
    while not words.ended and words.peek() not in (",", ")"):
        constraint = words.name().text if words.accept("CONSTRAINT") else ""
        place = words.place
        nullable = words.accept("NULL")
        if nullable or words.accept("NOT", "NULL"):
            if not_null is nullable:
                message = f'conflicting NULL/NOT NULL declarations for column "{name.text}"'
                raise words.source.wrong(message, place, hint="leave one of them out")
            not_null = not nullable
        elif words.accept("DEFAULT"):
            if default is not None:
                raise words.source.wrong(
                    f'multiple default values specified for column "{name.text}"', place, hint="leave one of them out"
                )
            default = words.expression(*_AFTER_DEFAULT)
        elif words.accept("PRIMARY", "KEY"):
            draft.add_key(words, (name,), place)
        elif words.accept("UNIQUE"):
            _refuse(words, {"NULLS": "NULLS NOT DISTINCT"})
            draft.uniques.append(UniqueDefinition(constraint, (name,)))
        elif words.accept("CHECK"):
            draft.checks.append(CheckDefinition(constraint, _check(words)))
        else:
            _refuse_column_feature(words)
            _refuse_timing(words)
            if words.peek() not in (",", ")") and words.place == place:
                raise words.syntax_error()
    draft.columns.append(ColumnDefinition(name, type_, bool(not_null), default))


def _refuse_column_feature(words: Words) -> None:
    if words.looks_at("REFERENCES"):
        raise words.not_supported("foreign keys", hint="check it in the transaction that writes")
    _refuse(
        words,
        {"GENERATED": "generated columns", "COLLATE": "COLLATE", "STORAGE": "STORAGE", "COMPRESSION": "COMPRESSION"},
    )


def _alter(words: Words) -> Statement:
    place = words.place
    words.expect("ALTER")
    _no_parameters(words)
    if words.accept("TABLE"):
        return _alter_table(words, place)
    if words.accept("MATERIALIZED", "VIEW"):
        return _alter_view(words, place)
    if words.ended:
        raise words.syntax_error()
    raise words.not_supported(f"ALTER {words.peek() or 'that'}")


def _alter_table(words: Words, place: Place) -> AlterTable:
    if_exists = _if_exists(words)
    words.accept("ONLY")
    table = words.relation()
    action: AddColumn | DropColumn
    if words.accept("ADD"):
        _refuse_constraint_change(words)
        words.accept("COLUMN")
        action = _add_column(words, table)
    elif words.accept("DROP"):
        _refuse(words, {"CONSTRAINT": "ALTER TABLE ... DROP CONSTRAINT"})
        words.accept("COLUMN")
        missing_is_fine = _if_exists(words)
        name = words.name()
        action = DropColumn(name, missing_is_fine, _cascade(words))
    else:
        if words.ended or words.peek() in ("", ",", "("):
            raise words.syntax_error()
        hint = "there are ADD COLUMN and DROP COLUMN"
        raise words.not_supported(f"ALTER TABLE ... {words.peek()}", hint=hint)
    if words.looks_at(","):
        raise words.not_supported("several actions in one ALTER TABLE", hint="write one statement for each")
    return AlterTable(place, table, action, if_exists)


def _refuse_constraint_change(words: Words) -> None:
    if words.peek() in ("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "EXCLUDE"):
        raise words.not_supported(
            "adding a constraint to a table", hint="constraints are given in CREATE TABLE; see CREATE UNIQUE INDEX"
        )


def _add_column(words: Words, table: Name) -> AddColumn:
    if_not_exists = _if_not_exists(words)
    draft = _TableDraft(table)
    place = words.place
    _column_definition(words, draft)
    if draft.key is not None or draft.uniques or draft.checks:
        raise words.not_supported("adding a column with a constraint", place, hint="add the column without it")
    return AddColumn(draft.columns[0], if_not_exists)


def _drop(words: Words) -> Statement:
    place = words.place
    words.expect("DROP")
    if words.accept("TABLE"):
        if_exists = _if_exists(words)
        return DropTable(place, words.names(), if_exists, _cascade(words))
    if words.accept("INDEX"):
        words.accept("CONCURRENTLY")
        if_exists = _if_exists(words)
        names = words.names()
        if _cascade(words):
            raise words.not_supported("DROP INDEX ... CASCADE", place, hint="drop the views that need it first")
        return DropIndex(place, names, if_exists)
    if words.accept("MATERIALIZED", "VIEW"):
        if_exists = _if_exists(words)
        return DropView(place, words.names(), if_exists, _cascade(words))
    if words.looks_at("VIEW"):
        raise words.not_supported("DROP VIEW", hint="use DROP MATERIALIZED VIEW")
    if words.ended:
        raise words.syntax_error()
    raise words.not_supported(f"DROP {words.peek() or 'that'}")


def _create_index(words: Words, place: Place) -> CreateIndex:
    unique = words.accept("UNIQUE")
    words.expect("INDEX")
    words.accept("CONCURRENTLY")
    if_not_exists = _if_not_exists(words)
    name = None if words.looks_at("ON") else words.relation()
    if name is None and if_not_exists:
        raise words.syntax_error()
    words.expect("ON")
    words.accept("ONLY")
    table = words.relation()
    if words.accept("USING"):
        method = words.name()
        if method.text != "btree":
            raise words.not_supported(f"{method.text} indexes", method.place, hint="leave USING out")
    words.expect("(")
    columns = [_index_column(words)]
    while words.accept(","):
        columns.append(_index_column(words))
    words.expect(")")
    _refuse(
        words,
        {
            "INCLUDE": "INCLUDE",
            "WHERE": "partial indexes",
            "NULLS": "NULLS NOT DISTINCT",
            "WITH": "storage parameters",
            "TABLESPACE": "tablespaces",
        },
    )
    return CreateIndex(place, name, table, tuple(columns), unique, if_not_exists)


def _index_column(words: Words) -> Name:
    if words.looks_at("("):
        raise words.not_supported("indexes on expressions", hint="store the value in a column")
    name = words.name()
    if words.looks_at("("):
        raise words.not_supported("indexes on expressions", name.place, hint="store the value in a column")
    words.accept("ASC")
    if words.peek() not in (",", ")", ""):
        raise words.not_supported("the order and collation of an index", hint="name the columns alone")
    return name


# --- views ---


def _create_view(words: Words, place: Place) -> CreateView:
    words.expect("MATERIALIZED", "VIEW")
    if_not_exists = _if_not_exists(words)
    name = words.relation()
    if words.looks_at("("):
        raise words.not_supported("a column list of a view", hint="name the columns with AS in its query")
    _refuse(words, {"USING": "access methods"})
    options = _options(words, _VIEW_OPTIONS) if words.accept("WITH") else {}
    _refuse(words, {"TABLESPACE": "tablespaces"})
    words.expect("AS")
    if words.peek() not in _QUERY_WORDS:
        raise words.syntax_error()
    if words.drop_last("WITH", "NO", "DATA"):
        raise words.not_supported("WITH NO DATA", place)
    words.drop_last("WITH", "DATA")
    _refuse_writes_in_with(words)
    query = words.query()
    texts = {name: option.text for name, option in options.items()}
    rows, size = (int(texts[option]) if option in texts else None for option in _COUNTED_OPTIONS)
    refresh, layout, group = options.get("refresh"), texts.get("layout"), texts.get("group")
    return CreateView(place, name, query, refresh, layout, if_not_exists, group, rows, size)


def _options(words: Words, known: tuple[str, ...]) -> dict[str, Option]:
    """(refresh = '500ms', layout = 'local')"""
    options: dict[str, Option] = {}
    words.expect("(")
    while True:
        name = words.label()
        if name.text not in known:
            hint = f"there is {', '.join(known)}"
            raise words.source.wrong(f"unknown option {name.text}", name.place, hint)
        if name.text in options:
            raise words.source.wrong(f"option {name.text} stands twice", name.place, hint="leave one of them out")
        words.expect("=")
        options[name.text] = _option(words, name.text)
        if not words.accept(","):
            break
    words.expect(")")
    return options


def _option(words: Words, name: str) -> Option:
    place, value = words.place, words.text_value()
    if name in _COUNTED_OPTIONS and not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
        raise words.source.wrong(
            f"{value[:40]!r} is no whole number of at most {_DIGITS_MAX} digits", place, hint="write digits only"
        )
    if name == "layout" and value not in LAYOUTS:
        raise words.source.wrong(f"unknown layout {value!r}", place, hint=f"use {' or '.join(LAYOUTS)}")
    return Option(value, place)


def _alter_view(words: Words, place: Place) -> AlterView:
    if_exists = _if_exists(words)
    name = words.relation()
    if not words.looks_at("SET", "("):
        if words.ended:
            raise words.syntax_error()
        raise words.not_supported("this ALTER MATERIALIZED VIEW", hint="there is SET (refresh = '500ms')")
    words.expect("SET")
    options = _options(words, ("refresh",))
    return AlterView(place, name, options["refresh"], if_exists)


def _refresh(words: Words) -> RefreshView:
    place = words.place
    words.expect("REFRESH", "MATERIALIZED", "VIEW")
    words.accept("CONCURRENTLY")
    name = words.relation()
    if words.looks_at("WITH", "NO", "DATA"):
        raise words.not_supported("WITH NO DATA")
    words.accept("WITH", "DATA")
    return RefreshView(place, name)


# --- rows ---


def _insert(words: Words) -> Insert:
    place = words.place
    words.expect("INSERT", "INTO")
    table = words.relation()
    alias = words.name() if words.accept("AS") else None
    columns = None
    if words.looks_at("(") and words.peek(1) not in _QUERY_WORDS:
        columns = _insert_columns(words)
    _refuse(words, {"OVERRIDING": "OVERRIDING"})
    rows: tuple[tuple[Item, ...], ...] | None = None
    query: Fragment | None = None
    if words.accept("DEFAULT", "VALUES"):
        if columns is not None:
            raise words.source.wrong('syntax error at or near "DEFAULT"', place, hint="leave the column list out")
    elif words.peek() in _QUERY_WORDS:
        _refuse_writes_in_with(words)
        query = words.query("ON", "RETURNING")
        rows = _rows_of_values(query)
        query = None if rows is not None else query
    else:
        raise words.syntax_error()
    conflict = _on_conflict(words) if words.looks_at("ON") else None
    _refuse(words, {"RETURNING": "RETURNING"}, hint="read the rows with SELECT in the same transaction")
    return Insert(place, table, alias, columns, rows, query, conflict)


def _insert_columns(words: Words) -> tuple[Name, ...]:
    columns = words.column_list()
    for position, name in enumerate(columns):
        if name.text in [other.text for other in columns[:position]]:
            raise words.source.wrong(f'column "{name.text}" specified more than once', name.place, hint="name it once")
    return columns


def _rows_of_values(query: Fragment) -> tuple[tuple[Item, ...], ...] | None:
    """The rows of a plain VALUES; None for a query that reads or orders."""
    node = query.node
    if type(node) is not exp.Values or any(value for name, value in node.args.items() if name != "expressions"):
        return None
    source = cast(StatementText, query.source)
    offsets = _offsets_of_values(source)
    return tuple(
        tuple(_item(source, item, query.place, next(offsets, None)) for item in row.expressions)
        for row in node.expressions
    )


def _offsets_of_values(source: StatementText) -> Iterator[int]:
    """Where the values of VALUES begin, one after the other: NULL, DEFAULT and the like have no place in the tree."""
    depth, begins = 0, False
    first = next(index for index, token in enumerate(source.tokens) if token.token_type == TokenType.VALUES)
    for token in source.tokens[first + 1 :]:
        if depth == 1 and begins and token.token_type != TokenType.R_PAREN:
            yield token.start
        opens, closes = token.token_type == TokenType.L_PAREN, token.token_type == TokenType.R_PAREN
        begins = (opens and depth == 0) or (token.token_type == TokenType.COMMA and depth == 1)
        depth += opens - closes
        if depth == 0 and not closes and token.token_type != TokenType.COMMA:
            return


def _item(source: StatementText, node: exp.Expr, nearest: Place, offset: int | None = None) -> Item:
    begin = source.offset(node)
    if begin is None:
        begin = offset
    place = nearest if begin is None else source.place_of_offset(begin)
    if _is_default(node):
        return Default(place)
    return Fragment(source, node, place, "")


def _is_default(node: exp.Expr) -> bool:
    """DEFAULT is a reserved word, so it is no column."""
    if type(node) is exp.Column and not node.args.get("table"):
        node = node.this
    if type(node) is exp.Identifier and node.args.get("quoted"):
        return False
    return type(node) in (exp.Var, exp.Identifier) and str(node.this).upper() == "DEFAULT"


def _on_conflict(words: Words) -> OnConflict:
    place = words.place
    words.expect("ON", "CONFLICT")
    target = None
    if words.looks_at("("):
        target = words.column_list()
        _refuse(words, {"WHERE": "ON CONFLICT ... WHERE before DO"})
    _refuse(words, {"ON": "ON CONFLICT ON CONSTRAINT"}, hint="name the columns in parentheses")
    words.expect("DO")
    if words.accept("NOTHING"):
        return OnConflict(place, target, None, None)
    words.expect("UPDATE", "SET")
    if target is None:
        raise words.source.wrong(
            "ON CONFLICT DO UPDATE needs to know which conflict", place, hint="write ON CONFLICT (key) DO UPDATE"
        )
    assignments = _assignments(words, "WHERE", "RETURNING")
    where = words.expression("RETURNING") if words.accept("WHERE") else None
    return OnConflict(place, target, assignments, where)


def _assignments(words: Words, *stops: str) -> tuple[Assignment, ...]:
    found: list[Assignment] = []
    seen: set[str] = set()
    while True:
        assignment = _assignment(words, stops)
        for name in assignment.columns:
            if name.text in seen:
                message = f'multiple assignments to same column "{name.text}"'
                raise words.source.wrong(message, name.place, hint="set it once")
            seen.add(name.text)
        found.append(assignment)
        if not words.accept(","):
            return tuple(found)


def _assignment(words: Words, stops: tuple[str, ...]) -> Assignment:
    if not words.looks_at("("):
        name = words.name()
        if words.looks_at("."):
            raise words.source.wrong(
                f'syntax error: "{name.text}." before the column that is set', name.place, hint="name the column alone"
            )
        words.expect("=")
        value = words.expression(*stops)
        node = cast(exp.Expr, value.node)
        return Assignment((name,), (Default(value.place) if _is_default(node) else value,))
    place = words.place
    columns = words.column_list()
    words.expect("=")
    row = words.expression(*stops)
    values = _row_values(words, row)
    if len(values) != len(columns):
        raise words.source.wrong(
            "number of columns does not match number of values", place, hint="give one value for each column"
        )
    return Assignment(columns, values)


def _row_values(words: Words, row: Fragment) -> tuple[Item, ...]:
    """The values of (1, 2) or ROW(1, 2); one in parentheses counts as a row of one."""
    node, source = cast(exp.Expr, row.node), cast(StatementText, row.source)
    if isinstance(node, exp.Subquery | exp.Query):
        raise words.not_supported("SET (...) = (SELECT ...)", row.place)
    if type(node) is exp.Paren:
        return (_item(source, node.this, row.place),)
    is_row = type(node) is exp.Anonymous and str(node.this).upper() == "ROW"
    if type(node) is not exp.Tuple and not is_row:
        raise words.source.wrong(
            "the source of a multiple-column SET must be a row of values", row.place, hint="write SET (a, b) = (1, 2)"
        )
    return tuple(_item(source, item, row.place) for item in node.expressions)


def _target(words: Words) -> tuple[Name, Name | None]:
    """The table of UPDATE or DELETE with its alias."""
    words.accept("ONLY")
    table = words.relation()
    words.accept("*")
    if words.accept("AS"):
        return table, words.name()
    if words.ended or words.peek() in ("SET", "WHERE", "USING", "RETURNING"):
        return table, None
    return table, words.name()


def _where(words: Words) -> Fragment | None:
    if not words.accept("WHERE"):
        return None
    if words.looks_at("CURRENT", "OF"):
        raise words.not_supported("WHERE CURRENT OF")
    return words.expression("RETURNING")


def _update(words: Words) -> Update:
    place = words.place
    words.expect("UPDATE")
    table, alias = _target(words)
    words.expect("SET")
    assignments = _assignments(words, "FROM", "WHERE", "RETURNING")
    _refuse(words, {"FROM": "UPDATE ... FROM"}, hint="use WHERE ... IN (SELECT ...)")
    where = _where(words)
    _refuse(words, {"RETURNING": "RETURNING"}, hint="read the rows with SELECT in the same transaction")
    return Update(place, table, alias, assignments, where)


def _delete(words: Words) -> Delete:
    place = words.place
    words.expect("DELETE", "FROM")
    table, alias = _target(words)
    _refuse(words, {"USING": "DELETE ... USING"}, hint="use WHERE ... IN (SELECT ...)")
    where = _where(words)
    _refuse(words, {"RETURNING": "RETURNING"}, hint="read the rows with SELECT in the same transaction")
    return Delete(place, table, alias, where)


def _truncate(words: Words) -> Truncate:
    place = words.place
    words.expect("TRUNCATE")
    words.accept("TABLE")
    words.accept("ONLY")
    names = words.names()
    if words.looks_at("RESTART", "IDENTITY"):
        raise words.not_supported("RESTART IDENTITY")
    words.accept("CONTINUE", "IDENTITY")
    if words.looks_at("CASCADE"):
        raise words.not_supported("TRUNCATE ... CASCADE", hint="there are no foreign keys: leave it out")
    words.accept("RESTRICT")
    return Truncate(place, names)


def _select(words: Words) -> Select:
    place = words.place
    _refuse_writes_in_with(words)
    return Select(place, words.query())


def _refuse_writes_in_with(words: Words) -> None:
    """Finds INSERT, UPDATE and DELETE behind or inside WITH, which sqlglot reads as part of a query."""
    if not words.looks_at("WITH"):
        return
    ahead, before = 1, "WITH"
    while True:
        word = words.peek(ahead)
        if word in _WRITES and before in ("(", ")"):
            raise words.not_supported(f"{word} together with WITH", hint="write several statements in one transaction")
        if words.is_past(ahead):
            return
        ahead, before = ahead + 1, word


def _explain(words: Words) -> Statement:
    place = words.place
    words.expect("EXPLAIN")
    if words.looks_at("(") and words.peek(1) not in _QUERY_WORDS:
        raise words.not_supported("options of EXPLAIN", hint="write EXPLAIN SELECT ...")
    _refuse(words, {"ANALYZE": "EXPLAIN ANALYZE", "VERBOSE": "EXPLAIN VERBOSE"}, hint="write EXPLAIN SELECT ...")
    if words.accept("MATERIALIZED", "VIEW"):
        return ExplainView(place, words.relation())
    inner: Statement
    if words.looks_at("CREATE", "MATERIALIZED", "VIEW"):
        inner = _create(words)
    elif words.peek() in _EXPLAINED:
        inner = _EXPLAINED[words.peek()](words)
    else:
        raise words.syntax_error()
    assert isinstance(inner, Select | Insert | Update | Delete | CreateView), "_EXPLAINED has no others"
    return Explain(place, inner)


# --- transactions ---


def _begin(words: Words) -> Begin:
    place = words.place
    if words.accept("START"):
        words.expect("TRANSACTION")
    else:
        words.expect("BEGIN")
        _work(words)
    if words.peek() in ("ISOLATION", "READ", "NOT", "DEFERRABLE"):
        raise words.not_supported("transaction modes", hint="transactions are always serializable")
    return Begin(place)


def _work(words: Words) -> None:
    if not words.accept("WORK"):
        words.accept("TRANSACTION")


def _commit(words: Words) -> Commit:
    place = words.place
    if not words.accept("COMMIT"):
        words.expect("END")
    _work(words)
    _refuse(words, {"AND": "AND CHAIN", "PREPARED": "prepared transactions"})
    return Commit(place)


def _rollback(words: Words) -> Statement:
    place = words.place
    if words.accept("ABORT"):
        _work(words)
        return Rollback(place)
    words.expect("ROLLBACK")
    _work(words)
    if words.accept("TO"):
        words.accept("SAVEPOINT")
        words.name()
        return Savepoint(place)
    _refuse(words, {"AND": "AND CHAIN", "PREPARED": "prepared transactions"})
    return Rollback(place)


def _savepoint(words: Words) -> Savepoint:
    place = words.place
    if words.accept("RELEASE"):
        words.accept("SAVEPOINT")
    else:
        words.expect("SAVEPOINT")
    words.name()
    return Savepoint(place)


_EXPLAINED: dict[str, Callable[[Words], Statement]] = {
    **dict.fromkeys(("SELECT", "WITH", "VALUES", "TABLE", "("), _select),
    "INSERT": _insert,
    "UPDATE": _update,
    "DELETE": _delete,
}
_HEADS: dict[str, Callable[[Words], Statement]] = {
    **_EXPLAINED,
    "TRUNCATE": _truncate,
    "CREATE": _create,
    "ALTER": _alter,
    "DROP": _drop,
    "REFRESH": _refresh,
    "EXPLAIN": _explain,
    "BEGIN": _begin,
    "START": _begin,
    "COMMIT": _commit,
    "END": _commit,
    "ABORT": _rollback,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _savepoint,
}
