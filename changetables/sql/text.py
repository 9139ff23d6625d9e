"""SQL text: its tokens, where things stand in it, and the tree that sqlglot makes of it.

sqlglot is lenient: it reads several dialects, drops what it takes for noise, and gives many nodes no position. So every
node is accepted by name with the parts that are understood and refused with anything more (`SqlText.only`), and places
come from the nearest token.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, TypeVar

from sqlglot import Token, Tokenizer, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError

from ..binding import Place, Text, fold
from ..errors import DataError, ProgrammingError, UnsupportedView
from .parser import Parser

#: Longer texts are refused before they cost anything.
SQL_CHARACTERS_MAX = 1_000_000

_T = TypeVar("_T")

_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
#: What cannot begin an item of a list.
_NO_ITEM = frozenset(
    {
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.ORDER_BY,
        TokenType.HAVING,
        TokenType.LIMIT,
        TokenType.R_PAREN,
        TokenType.SEMICOLON,
        TokenType.COMMA,
    }
)
#: What a comma cannot stand behind.
_NO_COMMA = frozenset(
    {
        TokenType.SELECT,
        TokenType.DISTINCT,
        TokenType.FROM,
        TokenType.GROUP_BY,
        TokenType.ORDER_BY,
        TokenType.VALUES,
        TokenType.USING,
        TokenType.L_PAREN,
    }
)
#: What AS must not be followed by: sqlglot leaves such an alias out.
_NO_ALIAS = _NO_ITEM - {TokenType.L_PAREN}
#: PostgreSQL's reserved words that sqlglot takes for names; those that are functions without parentheses are not here.
_RESERVED = frozenset(
    {
        "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary",
        "both", "case", "cast", "check", "collate", "collation", "concurrently", "constraint", "create", "cross",
        "deferrable", "desc", "distinct", "do", "else", "end", "except", "false", "fetch", "for", "foreign",
        "freeze", "from", "full", "grant", "group", "having", "ilike", "in", "initially", "inner", "intersect",
        "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "natural", "not", "notnull",
        "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing", "primary", "references",
        "returning", "right", "select", "similar", "some", "symmetric", "tablesample", "then", "to", "trailing",
        "true", "union", "unique", "using", "variadic", "verbose", "when", "where", "window", "with",
    }
)  # fmt: skip
#: Those of them that name an output only behind AS.
_NEEDS_AS = frozenset(
    {
        "array", "create", "except", "fetch", "for", "from", "grant", "group", "having", "intersect", "into",
        "limit", "offset", "on", "order", "returning", "union", "where", "window", "with",
    }
)  # fmt: skip
#: What sqlglot reads as two tokens: << and >>.
_HALF_OPERATORS = ("<", ">")
#: What ends a query or a whole set operation, and what stands between the queries of one.
_MODIFIERS = frozenset({TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH})
_SET_OPERATIONS = frozenset({TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT})
#: Behind these, a reserved word is a name.
_LABELS = frozenset({TokenType.ALIAS, TokenType.DOT})
_PARENTHESES = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def identifier_name(identifier: exp.Expr) -> str:
    name = str(identifier.this)
    return name if identifier.args.get("quoted") else fold(name)


def bare(node: exp.Expr) -> exp.Expr:
    """The node without the parentheses around it."""
    while type(node) is exp.Paren:
        node = node.this
    return node


def ordinal_of(node: exp.Expr) -> int | None:
    """The number of an output, as GROUP BY 2 writes it; None for anything else."""
    sign = 1
    while type(node) is exp.Neg:
        node, sign = bare(node.this), -sign
    if type(node) is exp.Literal and not node.args.get("is_string") and str(node.this).isdecimal():
        return sign * int(str(node.this)[:20])
    return None


class SqlText(Text):
    """A text with its tokens: where things stand, and which parameters it has.

    `parameters` are the keys of its parameters in the order of the text, each with its offset: numbers from 0 for `?`,
    names for `:name`. In the tree, the key is the text of the Placeholder, `?0` or `:name`: sqlglot itself forgets
    which `?` is which.
    """

    def __init__(self, text: str, label: str = "") -> None:
        super().__init__(text, label)
        if len(text) > SQL_CHARACTERS_MAX:
            raise ProgrammingError(f"SQL text of {len(text)} characters", hint=f"the limit is {SQL_CHARACTERS_MAX}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.wrong(
                "the text is not valid Unicode", self.place_of_offset(error.start), hint="remove the lone surrogates"
            ) from None
        if "\0" in text:
            raise self.wrong(
                "syntax error: a NUL character",
                self.place_of_offset(text.index("\0")),
                hint="remove it; bytea holds any bytes",
            )
        try:
            tokens: list[Token] = self._tokenizer(dialect=Postgres()).tokenize(text)
        except TokenError as error:
            raise self._unterminated(error) from None
        self.parameters: list[tuple[int | str, int]] = []
        self.tokens = self._with_parameters(tokens)
        self._refuse_other_dialects()

    #: What makes tokens of a text.
    _tokenizer: ClassVar[type[Tokenizer]] = Postgres.Tokenizer

    def part(self, tokens: Sequence[Token]) -> SqlText:
        """The text of one statement among several: the same places and parameters, fewer tokens."""
        part = copy.copy(self)
        part.tokens = list(tokens)
        return part

    # --- places ---

    def place(self, node: exp.Expr | None, *words: str) -> Place | None:
        """Where the node begins: its first part that has a position. If none has one, the first of these words, or what
        stands before the node."""
        if node is None:
            return None
        offset = self.offset(node)
        if offset is not None:
            return self.place_of_offset(offset)
        return self.keyword(*words) or self.place_of_offset(self._offset_before(node))

    def _offset_before(self, node: exp.Expr) -> int:
        """The last position among the parts of the text before the node, as far as the tree tells; at worst the
        beginning of the statement."""
        while node.parent is not None:
            siblings = list(node.parent.iter_expressions())
            before = siblings[: next(index for index, part in enumerate(siblings) if part is node)]
            offsets = [self._own_offset(part) for sibling in before for part in sibling.walk()]
            known = [offset for offset in (*offsets, self._own_offset(node.parent)) if offset is not None]
            if known:
                return max(known)
            node = node.parent
        return self.tokens[0].start if self.tokens else 0

    def offset(self, node: exp.Expr | None) -> int | None:
        if node is None:
            return None
        offsets = (self._own_offset(part) for part in node.walk())
        return min((offset for offset in offsets if offset is not None), default=None)

    def _own_offset(self, node: exp.Expr) -> int | None:
        if isinstance(node, exp.Placeholder):
            key = parameter_key(node)
            return None if key is None else self._parameter_offsets.get(key)
        start: int | None = node.meta.get("start")
        return start

    @cached_property
    def _parameter_offsets(self) -> dict[int | str, int]:
        """Of a name that stands twice, the first offset."""
        return dict(reversed(self.parameters))

    def word(self, node: exp.Expr) -> str:
        """The name of a function as it was written, for nodes that remember where their name stands."""
        if "start" not in node.meta:
            return ""
        written = self.text[node.meta["start"] : node.meta["end"] + 1]
        return written[1:-1] if written.startswith('"') else fold(written)

    def keyword(self, *words: str, depth: int | None = None, after: int = -1) -> Place | None:
        """The first of these words behind the offset `after`, at this depth of parentheses."""
        level = 0
        for token in self.tokens:
            level += _PARENTHESES.get(token.token_type, 0)
            right_depth = depth is None or level == depth
            if right_depth and token.start > after and self._is_word(token, words):
                return self.place_of_offset(token.start)
        return None

    @staticmethod
    def _is_word(token: Token, words: Sequence[str]) -> bool:
        return token.token_type not in _QUOTED and token.text.upper() in words

    def opening(self, node: exp.Expr, words: Sequence[str]) -> Place | None:
        """The word before the node's first position, or the parenthesis in front of that word."""
        index = self.index_of(self.offset(node))
        while index is not None and index >= 0:
            if self._is_word(self.tokens[index], words):
                if index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
                    index -= 1
                return self.place_of_offset(self.tokens[index].start)
            index -= 1
        return self.place(node)

    def clause(self, node: exp.Expr, *words: str) -> Place | None:
        """The word that opens a clause of this SELECT or set operation: behind its first position, at its depth."""
        offset = self.offset(node)
        index = self.index_of(offset)
        if index is None:
            return self.keyword(*words)
        while index and not self._is_word(self.tokens[index], ("SELECT", "VALUES", "WITH")):
            index -= 1
        level, begin = 0, index
        for token in self.tokens[begin:]:
            level += _PARENTHESES.get(token.token_type, 0)
            if level < 0:
                break
            if level == 0 and self._is_word(token, words):
                return self.place_of_offset(token.start)
        return self.keyword(*words, after=self.tokens[begin].start)

    def index_of(self, offset: int | None) -> int | None:
        return next((index for index, token in enumerate(self.tokens) if token.start == offset), None)

    def function_name(self, node: exp.Expr) -> tuple[str, Place | None]:
        """The name of a function as it was written and where: at its own position or before its first argument."""
        index = first = self.index_of(node.meta.get("start", self.offset(node)))
        if "start" not in node.meta and index is not None:
            while index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
                index -= 1
            before = self.tokens[index - 1] if 0 < index != first else None
            index = index - 1 if before is not None and before.text.isidentifier() else None
        if index is None:
            names = _names_of(node) or [node.key]
            return names[0].lower(), self.keyword(*(name.upper() for name in names)) or self.place(node)
        token = self.tokens[index]
        name = token.text if token.token_type == TokenType.IDENTIFIER else fold(token.text)
        return name, self.place_of_offset(token.start)

    def operator(self, node: exp.Expr) -> str:
        """The operator of a binary expression: the token before its right side, or several that stand together."""
        index = self.index_of(self.offset(node.expression))
        while index and self.tokens[index - 1].token_type == TokenType.L_PAREN:
            index -= 1
        if not index:
            return type(node).__name__
        text = self.tokens[index - 1].text.upper()
        while index > 1 and text in _HALF_OPERATORS and self.tokens[index - 2].end + 1 == self.tokens[index - 1].start:
            index -= 1
            text = self.tokens[index - 1].text + text
        return text

    # --- errors ---

    def typed(self, node: exp.Expr, rule: Callable[..., _T], *args: object) -> _T:
        """Applies a rule of typing; its errors get the place of the node."""
        try:
            return rule(*args)
        except DataError as error:
            literals = (part for part in node.find_all(exp.Literal) if f'"{part.this}"' in error.message)
            raise self.placed(error, self.place(next(literals, node))) from None
        except (ProgrammingError, UnsupportedView) as error:
            raise self.placed(error, self.place(node)) from None

    def only(self, node: exp.Expr, *parts: str) -> None:
        """Refuses a node that has parts besides these: a modifier that would be dropped silently."""
        for name, value in node.args.items():
            if value and name not in parts:
                what = f"{name.strip('_').replace('_', ' ')} in {node.key.upper()}"
                raise self.unsupported(what, self.place(node))

    def _unterminated(self, error: TokenError) -> ProgrammingError:
        """sqlglot tells the line and a column of the opening quote in the text of its error only."""
        match = re.search(r"Missing (.+) from (\d+):(\d+)", str(error.__cause__))
        if match is None:
            return self.wrong(
                "syntax error: unterminated comment or literal",
                self.place_of_offset(len(self.text)),
                hint="close what was opened there",
            )
        return self.wrong(
            f"syntax error: unterminated {match[1]}",
            (int(match[2]), int(match[3]) + 1),
            hint="close what was opened there",
        )

    # --- tokens ---

    def _with_parameters(self, tokens: list[Token]) -> list[Token]:
        """The tokens with every parameter as a colon and its key, a form that sqlglot keeps in the tree."""
        result: list[Token] = []
        tokens = _with_whole_question_marks(tokens)
        index = marks = 0
        while index < len(tokens):
            token = tokens[index]
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            key: int | str | None = None
            if token.token_type == TokenType.PLACEHOLDER and token.text == "?":
                key = marks
                marks += 1
            elif token.token_type == TokenType.COLON and following is not None and _is_name(token, following):
                key = following.text
                index += 1
            if key is None:
                result.append(token)
            else:
                self.parameters.append((key, token.start))
                text = f"?{key}" if isinstance(key, int) else f":{key}"
                # The key stands where no other token does: places are found by the start of the colon.
                result.append(Token(TokenType.COLON, ":", token.line, token.col, token.start, token.start))
                end = tokens[index].end
                result.append(Token(TokenType.VAR, text, token.line, token.col, token.start + 1, end))
            index += 1
        return result

    def _refuse_other_dialects(self) -> None:
        """What sqlglot reads although PostgreSQL has no such syntax."""
        for index, token in enumerate(self.tokens):
            then = self.tokens[index + 1].token_type if index + 1 < len(self.tokens) else TokenType.SEMICOLON
            wrong = token.token_type == TokenType.COMMA and then in _NO_ITEM
            if token.token_type == TokenType.COMMA:
                wrong = wrong or index == 0 or self.tokens[index - 1].token_type in _NO_COMMA
            if token.token_type == TokenType.ALIAS and then in _NO_ALIAS:
                wrong = True
            if token.text in ("!", "==", "<=>") and token.token_type not in _QUOTED:
                wrong = True
            if token.token_type == TokenType.COMMA and index > 1:
                wrong = wrong or self.tokens[index - 2].token_type == TokenType.LIMIT  # LIMIT 5, 10
            if wrong:
                raise self.wrong(f'syntax error at or near "{token.text}"', self.place_of_offset(token.start))
            if token.token_type == TokenType.NUMBER and self.text[token.end + 1 : token.end + 2].isidentifier():
                # 1_000 would be 1 with the name _000.
                junk = self.text[token.start : token.end + 2]
                message = f'trailing junk after numeric literal at or near "{junk}"'
                raise self.wrong(message, self.place_of_offset(token.start))

    def check_operands(self) -> None:
        """Refuses SELECT ... LIMIT 2 UNION ...: only the end of a set operation takes ORDER BY and LIMIT, its operands
        only in parentheses. sqlglot gives them to one or the other."""
        modified = [False]
        before = TokenType.SEMICOLON
        for token in self.tokens:
            kind = token.token_type
            if kind == TokenType.L_PAREN:
                modified.append(False)
            elif kind == TokenType.R_PAREN and len(modified) > 1:
                modified.pop()
            elif kind == TokenType.SEMICOLON:
                modified = [False]
            elif before not in _LABELS and kind in _MODIFIERS:
                modified[-1] = True
            elif before not in _LABELS and kind in _SET_OPERATIONS and modified[-1]:
                message = f'syntax error at or near "{token.text}"'
                raise self.wrong(
                    message, self.place_of_offset(token.start), hint="put the query before it in parentheses"
                )
            before = kind


def _with_whole_question_marks(tokens: list[Token]) -> list[Token]:
    """`?::int` and `?||'a'` are a parameter and an operator; sqlglot takes their beginnings for operators on json."""
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        mark = Token(TokenType.PLACEHOLDER, "?", token.line, token.col, token.start, token.start)
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.text == "?::":
            cast = Token(TokenType.DCOLON, "::", token.line, token.col, token.start + 1, token.end)
            result += [mark, cast]
        elif token.text == "?|" and following is not None and following.text == "|":
            result += [mark, Token(TokenType.DPIPE, "||", token.line, token.col, token.end, following.end)]
            index += 1
        else:
            result.append(token)
        index += 1
    return result


def _is_name(colon: Token, token: Token) -> bool:
    """Whether the token is the name of a parameter: directly behind its colon."""
    return token.start == colon.end + 1 and token.token_type not in _QUOTED and token.text.isidentifier()


def parameter_key(node: exp.Expr) -> int | str | None:
    """The key of a parameter, None if the node is another dialect's placeholder."""
    text = node.this if isinstance(node, exp.Placeholder) else None
    if not isinstance(text, str) or text[:1] not in ("?", ":"):
        return None
    return int(text[1:]) if text[0] == "?" else text[1:]


def _names_of(node: exp.Expr) -> list[str]:
    return list(node.sql_names()) if isinstance(node, exp.Func) else []


def parse_statements(source: SqlText) -> list[exp.Expr]:
    """The statements of the text, without empty ones."""
    return [node for node in _parse(source, None) if not isinstance(node, exp.Semicolon)]


def parse_statement(source: SqlText) -> exp.Expr:
    """The one statement of the text."""
    parsed = parse_statements(source)
    if not parsed:
        raise source.wrong("the SQL text is empty", (1, 1), hint="write SELECT ... FROM ...")
    if len(parsed) > 1:
        second = source.keyword(";", depth=0)
        raise source.wrong("more than one statement", second, hint="a view is one SELECT")
    return parsed[0]


def parse_expression(text: str, label: str = "") -> tuple[SqlText, exp.Expr]:
    """One expression by itself. `label` names it in errors."""
    source = SqlText(text, label)
    parsed = _parse(source, exp.Condition) if source.tokens else []
    if len(parsed) != 1:
        raise source.wrong("not one expression", None, hint="write an expression of SQL, as e.cost > 0")
    return source, parsed[0]


def _parse(source: SqlText, into: type[exp.Expr] | None) -> list[exp.Expr]:
    try:
        parser = Parser(dialect=Postgres())
        if into is None:
            found = parser.parse(source.tokens, source.text)
        else:
            found = parser.parse_into(into, source.tokens, source.text)
        parsed = [node for node in found if node is not None]
        for node in parsed:
            _check_names(source, node)
        return parsed
    except ValueError as error:  # of its helpers, for texts such as numeric(4, "")
        raise source.wrong(f"syntax error: {error}", None) from None
    except ParseError as error:
        raise _syntax_error(source, error) from None
    except RecursionError:
        raise source.wrong(
            "the SQL text is nested too deeply", None, hint="split the expression, or use a list with IN"
        ) from None


def _check_names(source: SqlText, node: exp.Expr) -> None:
    """Refuses names that PostgreSQL does not take for names: quoted literals, and reserved words without AS."""
    for identifier in node.find_all(exp.Identifier):
        start = identifier.meta.get("start")
        if start is None:
            continue
        written = source.text[start : identifier.meta["end"] + 1]
        reserved = fold(written) in _RESERVED and not _is_label(source, identifier, start)
        if written.startswith("'") or reserved:
            raise source.wrong(f'syntax error at or near "{written}"', source.place_of_offset(start))


def _is_label(source: SqlText, identifier: exp.Expr, start: int) -> bool:
    """Whether a reserved word stands where it may: as the name of an output, or behind a dot."""
    before = fold(source.text[:start].rstrip()[-3:])
    if before.endswith("."):
        return True
    behind_as = before.endswith("as") and not before[:-2].isalnum()
    return isinstance(identifier.parent, exp.Alias) and (behind_as or fold(str(identifier.this)) not in _NEEDS_AS)


def _syntax_error(source: SqlText, error: ParseError) -> ProgrammingError:
    # For parse_into, the reason stands in the innermost error.
    details = next((detail for detail in reversed(error.errors) if detail.get("line")), None)
    if details is None:
        return source.wrong("syntax error", None)
    highlight = str(details["highlight"])
    place = (int(details["line"]), max(1, int(details["col"]) - len(highlight) + 1))
    return source.wrong(f'syntax error at or near "{highlight}"', place)
