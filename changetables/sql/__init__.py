"""SQL text to relations. sqlglot reads the text; what it means is decided here, as PostgreSQL 15 does.

The one package that imports sqlglot, which costs 230 ms: import it lazily, when a text is bound. A database that is
only opened reads its definitions with `serialize`.
"""

from .builder_query import bind_query
from .expressions import EXPRESSION_LEVELS_MAX, Binder
from .parameters import Parameters, ParameterValues
from .query import (
    RELATION_LEVELS_MAX,
    RELATIONS_MAX,
    Rows,
    bind_rows,
    bind_scalar,
    bind_select,
    bind_view,
    parse_select,
    parse_view,
)
from .text import SQL_CHARACTERS_MAX, SqlText, parse_expression, parse_statement, parse_statements

__all__ = [
    "EXPRESSION_LEVELS_MAX",
    "RELATIONS_MAX",
    "RELATION_LEVELS_MAX",
    "SQL_CHARACTERS_MAX",
    "Binder",
    "ParameterValues",
    "Parameters",
    "Rows",
    "SqlText",
    "bind_query",
    "bind_rows",
    "bind_scalar",
    "bind_select",
    "bind_view",
    "parse_expression",
    "parse_select",
    "parse_statement",
    "parse_statements",
    "parse_view",
]
