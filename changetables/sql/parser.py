"""The parser: sqlglot's for PostgreSQL, with what it forgets kept in the tree."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from sqlglot import TokenType, exp
from sqlglot.parsers.postgres import PostgresParser

#: The words behind INTERVAL '1'.
_INTERVAL_UNITS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})
#: Functions with a syntax of their own: EXTRACT(year FROM d). What is only an aggregate keeps its own reader, too.
_OWN_SYNTAX = frozenset({"CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM", "OVERLAY", "STRING_AGG", "JSON_AGG"})
_AGGREGATES = frozenset(
    name for kind in exp.ALL_FUNCTIONS if issubclass(kind, exp.AggFunc) for name in kind.sql_names()
)


_LITERALS = frozenset({TokenType.NUMBER, TokenType.STRING})
#: What follows an item of a list.
_ENDS = frozenset({TokenType.COMMA, TokenType.R_PAREN})


class Parser(PostgresParser):
    """PostgreSQL as sqlglot reads it. A Join tells whether it was a comma: a JOIN without ON is a syntax error.

    sqlglot turns functions into nodes that all its dialects share, and forgets on the way how they were written:
    date_part is extract, strpos has its arguments swapped, div is a cast. Here every function but the aggregates is
    its name and its arguments (exp.Anonymous), unless it has a syntax of its own.
    """

    FUNCTIONS: ClassVar = {name: make for name, make in PostgresParser.FUNCTIONS.items() if name in _AGGREGATES}
    FUNCTION_PARSERS: ClassVar = {
        name: parse for name, parse in PostgresParser.FUNCTION_PARSERS.items() if name in _OWN_SYNTAX
    }
    # sqlglot's own readers of these forget where they stand, and an error about SELECT TRUE could not say it.
    PRIMARY_PARSERS: ClassVar = {
        **PostgresParser.PRIMARY_PARSERS,
        TokenType.NULL: lambda self, token: self.expression(exp.Null(), token),
        TokenType.TRUE: lambda self, token: self.expression(exp.Boolean(this=True), token),
        TokenType.FALSE: lambda self, token: self.expression(exp.Boolean(this=False), token),
    }

    def _parse_expression(self) -> exp.Expr | None:
        """A literal that is all of an item is read at once, without asking each operator: an INSERT has many."""
        if self._next is not None and self._next.token_type in _ENDS and self._curr.token_type in _LITERALS:
            return super()._parse_primary()
        return super()._parse_expression()

    def _parse_primary(self) -> exp.Expr | None:
        """With a place for .5, too."""
        first = self._curr
        primary = super()._parse_primary()
        if first is not None and first.token_type == TokenType.DOT and primary is not None:
            primary.update_positions(first)
        return primary

    def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> exp.Expr | None:
        """date '2024-02-29'::text is the text of a date; sqlglot would read the date of a text."""
        token = self._curr
        if token is not None and token.token_type in self.TYPE_TOKENS and token.token_type != TokenType.INTERVAL:
            index = self._index
            target = self._parse_types(check_func=True, allow_identifiers=False)
            if isinstance(target, exp.DataType) and self._match(TokenType.STRING, advance=False):
                literal = self._parse_primary()
                if isinstance(literal, exp.Literal):
                    return self._parse_column_ops(self.expression(exp.Cast(this=literal, to=target)))
            self._retreat(index)
        return super()._parse_type(parse_interval, fallback_to_identifier)

    def _parse_type_size(self) -> exp.DataTypeParam | None:
        """numeric(5, -2) rounds to hundreds; sqlglot knows no scale below zero."""
        negative = self._match(TokenType.DASH) and self._match(TokenType.NUMBER, advance=False)
        size = super()._parse_type_size()
        if negative and size is not None:
            size.set("this", exp.Literal(this=f"-{size.name}", is_string=False))
        return size

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Add | exp.Interval | None:
        """INTERVAL 'text', with one unit behind it or none. sqlglot's own reader drops the rest of '1 day 02:00'."""
        index = self._index
        if self._match(TokenType.INTERVAL) and self._match(TokenType.STRING, advance=False):
            text = self._parse_primary()
            unit = None
            if self._curr is not None and self._curr.text.upper() in _INTERVAL_UNITS:
                unit = exp.Var(this=self._curr.text.lower())
                self._advance()
            return self.expression(exp.Interval(this=text, unit=unit))
        self._retreat(index)
        return None

    def _parse_join(
        self,
        skip_join_token: bool = False,
        parse_bracket: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
    ) -> exp.Join | None:
        first = self._curr
        join = super()._parse_join(skip_join_token, parse_bracket, alias_tokens)
        if join is not None and first is not None:
            join.meta["comma"] = first.token_type == TokenType.COMMA
        return join

    def _parse_between(self, this: exp.Expr | None) -> exp.Between:
        """sqlglot reads BETWEEN 1 2 as if an AND stood there."""
        between = super()._parse_between(this)
        words = self._tokens[: self._index]
        depth = 0
        for token in reversed(words):
            depth += (token.token_type == TokenType.R_PAREN) - (token.token_type == TokenType.L_PAREN)
            if depth == 0 and token.token_type == TokenType.AND:
                break
            if depth == 0 and token.token_type == TokenType.BETWEEN:
                self.raise_error("Expected AND", self._prev)
        return between
