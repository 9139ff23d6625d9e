"""A small parser over sqlglot's tokens, for everything of a statement that is not an expression or a query.

sqlglot gives several statements back as raw commands (EXPLAIN, REFRESH and ALTER MATERIALIZED VIEW), does not read the
options of CREATE MATERIALIZED VIEW, and drops parts of others silently. So the heads of all statements are read here,
word by word: what is not named is an error with its place. sqlglot reads the expressions and queries between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError

from ..binding import Text, fold
from ..errors import UNSUPPORTED_HINT, Error, NotSupportedError, ProgrammingError
from ..statements import Fragment, Name, Place
from ..types import Type, type_of
from .text import SqlText
from .text import _parse as parse_nodes

#: Statements of one text: each is parsed before the first runs.
STATEMENTS_MAX = 10_000

#: PostgreSQL's reserved words, which cannot be names without quotes.
_RESERVED = """
    ALL ANALYSE ANALYZE AND ANY ARRAY AS ASC ASYMMETRIC BOTH CASE CAST CHECK COLLATE COLUMN CONSTRAINT CREATE
    CURRENT_CATALOG CURRENT_DATE CURRENT_ROLE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DEFAULT DEFERRABLE DESC
    DISTINCT DO ELSE END EXCEPT FALSE FETCH FOR FOREIGN FROM GRANT GROUP HAVING IN INITIALLY INTERSECT INTO LATERAL
    LEADING LIMIT LOCALTIME LOCALTIMESTAMP NOT NULL OFFSET ON ONLY OR ORDER PLACING PRIMARY REFERENCES RETURNING SELECT
    SESSION_USER SOME SYMMETRIC TABLE THEN TO TRAILING TRUE UNION UNIQUE USER USING VARIADIC WHEN WHERE WINDOW WITH
"""
RESERVED = frozenset(_RESERVED.split())
_STRINGS = frozenset({TokenType.STRING, TokenType.HEREDOC_STRING})
#: Tokens whose text is a value, never a word.
_NO_WORDS = _STRINGS | {
    TokenType.IDENTIFIER,
    TokenType.NUMBER,
    TokenType.BYTE_STRING,
    TokenType.UNICODE_STRING,
    TokenType.BIT_STRING,
    TokenType.HEX_STRING,
    TokenType.NATIONAL_STRING,
}
#: Names that the Python API has for types and SQL does not.
_NO_SQL_TYPES = frozenset({"STR", "BYTES"})
#: The names that PostgreSQL itself has for types: only these are types in quotes, too. Its "char" is another type than
#: char, of one byte, which there is not.
_CATALOG_TYPES = frozenset(
    {
        "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "bool", "bytea", "date",
        "timestamp", "timestamptz", "json", "jsonb",
    }
)  # fmt: skip
_VARYING = frozenset({"CHARACTER", "CHAR", "BIT", "NATIONAL"})
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


class _Tokenizer(Postgres.Tokenizer):
    """Reads the rest of EXPLAIN, REFRESH and the like as tokens too, not as one string up to the next semicolon."""

    COMMANDS: ClassVar[set[TokenType]] = set()


class ScriptText(SqlText):
    """A text of several statements."""

    _tokenizer = _Tokenizer


class StatementText(SqlText):
    """One statement of a longer text, or a part of it: its own tokens, with their places in the whole text."""

    def __init__(self, whole: SqlText, tokens: Sequence[Token]) -> None:
        # The tokens are there already, so this is not the way of SqlText.
        Text.__init__(self, whole.text, whole.label)
        self._line_starts = whole.line_starts
        self.tokens = list(tokens)
        begin = bisect_left(whole.parameters, tokens[0].start, key=_offset_of)
        end = bisect_right(whole.parameters, tokens[-1].end, key=_offset_of)
        self.parameters = whole.parameters[begin:end]


def _offset_of(parameter: tuple[int | str, int]) -> int:
    return parameter[1]


def split(text: str) -> tuple[ScriptText, list[StatementText]]:
    """The statements of a text, without empty ones."""
    whole = ScriptText(text)
    parts: list[list[Token]] = [[]]
    for token in whole.tokens:
        if token.token_type == TokenType.SEMICOLON:
            parts.append([])
        else:
            parts[-1].append(token)
    statements = [StatementText(whole, part) for part in parts if part]
    if len(statements) > STATEMENTS_MAX:
        raise ProgrammingError(f"a text of {len(statements)} statements", hint=f"the limit is {STATEMENTS_MAX}")
    return whole, statements


def is_complete(text: str) -> bool:
    """Whether a text ends with a semicolon outside of quotes, comments and dollar quotes: then a shell runs it."""
    try:
        tokens = _Tokenizer(dialect=Postgres()).tokenize(text)
    except TokenError:
        return False
    return bool(tokens) and tokens[-1].token_type == TokenType.SEMICOLON


@dataclass(frozen=True, slots=True)
class _Word:
    """A token, or one word of a token that sqlglot made of several (PRIMARY KEY). `upper` is empty for values."""

    upper: str
    token: Token
    index: int


class Words:
    """A cursor over the words of one statement."""

    def __init__(self, source: StatementText) -> None:
        self.source = source
        self._words = [word for index, token in enumerate(source.tokens) for word in _words(token, index)]
        self._at = 0

    # --- looking ---

    def peek(self, ahead: int = 0) -> str:
        """The next word in upper case; empty at the end and for a value or quoted name."""
        at = self._at + ahead
        return self._words[at].upper if at < len(self._words) else ""

    def looks_at(self, *words: str) -> bool:
        return all(self.peek(ahead) == word for ahead, word in enumerate(words))

    def is_past(self, ahead: int) -> bool:
        return self._at + ahead >= len(self._words)

    @property
    def ended(self) -> bool:
        return self._at >= len(self._words)

    @property
    def place(self) -> Place:
        """Where the next word stands; behind the last one at the end."""
        if self.ended:
            return self.source.place_of_offset(self._words[-1].token.end + 1)
        return self.source.place_of_offset(self._words[self._at].token.start)

    # --- taking ---

    def accept(self, *words: str) -> bool:
        """Takes these words if they are next."""
        if not self.looks_at(*words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.syntax_error()

    def drop_last(self, *words: str) -> bool:
        """Takes these words from the end of the statement if it ends with them."""
        rest = len(self._words) - len(words)
        if rest <= self._at or [word.upper for word in self._words[rest:]] != list(words):
            return False
        del self._words[rest:]
        return True

    def expect_end(self) -> None:
        if not self.ended:
            raise self.syntax_error()

    def name(self) -> Name:
        """An identifier."""
        if self.ended:
            raise self.syntax_error()
        word, place = self._words[self._at], self.place
        token = word.token
        if token.token_type == TokenType.IDENTIFIER:
            self._at += 1
            return Name(token.text, place)
        written = self.source.text[token.start : token.end + 1]
        if word.upper in RESERVED or not _is_identifier(written) or token.token_type in _NO_WORDS:
            raise self.syntax_error()
        self._at += 1
        return Name(fold(written), place)

    def label(self) -> Name:
        """The name of an option, which may be any word."""
        if self.ended or self.peek() not in RESERVED:
            return self.name()
        place = self.place
        word = self.peek()
        self._at += 1
        return Name(fold(word), place)

    def relation(self) -> Name:
        """The name of a table, view or index, which has no schema here."""
        name = self.name()
        if self.looks_at("."):
            raise self.not_supported("schemas", name.place, hint="use the name alone")
        return name

    def names(self) -> tuple[Name, ...]:
        """Names separated by commas."""
        found = [self.relation()]
        while self.accept(","):
            found.append(self.relation())
        return tuple(found)

    def column_list(self) -> tuple[Name, ...]:
        """(a, b)"""
        self.expect("(")
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        self.expect(")")
        return tuple(found)

    def text_value(self) -> str:
        """The value of an option: a string, a number or a word."""
        if self.ended:
            raise self.syntax_error()
        token = self._words[self._at].token
        if token.token_type in _STRINGS or token.token_type == TokenType.NUMBER:
            self._at += 1
            return token.text
        return self.name().text

    def is_text(self) -> bool:
        return not self.ended and self._words[self._at].token.token_type in _STRINGS

    def data_type(self) -> Type:
        """A type as CREATE TABLE names it."""
        place, first, begin = self.place, self._quoted_type() or self.peek(), self._at
        if first in RESERVED or not first.isidentifier():
            raise self.syntax_error()
        self._at += 1
        if first == "DOUBLE":
            self.accept("PRECISION")
        if first in _VARYING:
            self.accept("VARYING")
        if self.accept("("):
            while not self.ended and not self.looks_at(")"):
                self._at += 1
            self.expect(")")
        if first in ("TIMESTAMP", "TIME") and self.peek() in ("WITH", "WITHOUT"):
            self._at += 1
            self.expect("TIME", "ZONE")
        written = " ".join(word.upper or word.token.text for word in self._words[begin : self._at])
        if self.looks_at("[") or self.looks_at("ARRAY"):
            raise self.not_supported("arrays", place, hint="use jsonb")
        if first in _NO_SQL_TYPES:
            raise self.not_supported(f"type {fold(written)}", place, hint="use text or bytea")
        try:
            return type_of(written)
        except NotSupportedError as error:
            raise self.source.placed(error, place) from None

    def _quoted_type(self) -> str:
        """The type that a name in quotes stands for, as a word; "" if the name has none."""
        token = None if self.ended else self._words[self._at].token
        if token is None or token.token_type != TokenType.IDENTIFIER:
            return ""
        if token.text not in _CATALOG_TYPES:
            hint = "use char(1) or text" if token.text == "char" else "write the type without quotes"
            raise self.not_supported(f'type "{token.text}"', hint=hint)
        return token.text.upper()

    # --- fragments ---

    def skip_until(self, stops: Collection[str], first: int = 0) -> None:
        """Goes on to the next of these words outside of parentheses, or to the end. The `first` words are no stops."""
        depth, begin = 0, self._at
        while not self.ended:
            word = self.peek()
            if depth == 0 and self._at - begin >= first and self._stops(stops):
                return
            if word in _OPENING:
                depth += 1
            if word in _CLOSING:
                if depth == 0:
                    return
                depth -= 1
            self._at += 1

    def _stops(self, stops: Collection[str]) -> bool:
        word = self.peek()
        if word not in stops:
            return False
        before = self._words[self._at - 1].upper if self._at else ""
        if word == "FROM":
            return before != "DISTINCT"  # a IS DISTINCT FROM b
        if word == "NOT":
            return self.peek(1) == "NULL" and before != "IS"
        if word == "NULL":
            return before not in ("IS", "NOT")
        if word == "ON":
            return self.peek(1) == "CONFLICT" and self.peek(2) in ("DO", "(", "ON")
        return True

    def expression(self, *stops: str, first: int = 1) -> Fragment:
        """An expression, up to one of the stops, a comma or the parenthesis that closes what is around it."""
        begin, place = self._at, self.place
        self.skip_until((",", *stops), first)
        return self._fragment(begin, place, exp.Condition)

    def query(self, *stops: str) -> Fragment:
        """A query, up to one of the stops."""
        begin, place = self._at, self.place
        self.skip_until(stops)
        return self._fragment(begin, place, None)

    def _fragment(self, begin: int, place: Place, kind: type[exp.Expr] | None) -> Fragment:
        tokens = self._tokens(begin)
        if not tokens:
            raise self.syntax_error()
        part = StatementText(self.source, tokens)
        nodes = parse_nodes(part, kind)
        if len(nodes) != 1:
            raise self.source.wrong("syntax error", place)
        return Fragment(part, nodes[0], place, self.source.text[tokens[0].start : tokens[-1].end + 1])

    def _tokens(self, begin: int) -> list[Token]:
        words = self._words[begin : self._at]
        return self.source.tokens[words[0].index : words[-1].index + 1] if words else []

    # --- errors ---

    def syntax_error(self) -> ProgrammingError:
        if self.ended:
            return self.source.wrong("syntax error at the end of the statement", self.place)
        token = self._words[self._at].token
        written = self.source.text[token.start : token.end + 1]
        return self.source.wrong(f'syntax error at or near "{written[:40]}"', self.place)

    def not_supported(self, what: str, place: Place | None = None, hint: str = UNSUPPORTED_HINT) -> Error:
        where = self.source.where(place or self.place)
        return NotSupportedError(f"{what}: not supported{where}", hint=hint)


def _words(token: Token, index: int) -> list[_Word]:
    if token.token_type in _NO_WORDS:
        return [_Word("", token, index)]
    return [_Word(part, token, index) for part in token.text.upper().split()]


def _is_identifier(text: str) -> bool:
    """PostgreSQL's rule: letters, digits, _ and $, with no digit or $ first."""
    return bool(text) and text.replace("$", "_").isidentifier() and text[0] != "$"
