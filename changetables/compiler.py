"""Expressions to Python source: compiled once per view, run once per changed row.

The source is made of positions and of names made here; constants, functions and texts of the user are bound through
the namespace, so nothing that a user wrote is ever part of the source. NULL is None. Where a column is NOT NULL the
code has no test for None: that is most of the speed.

A strict operator with arguments that may be NULL becomes

    (None if r0[2] is None or (t1 := <argument>) is None else <body>)

All arguments of a strict operator are evaluated even after a NULL, as in PostgreSQL, because one of them may raise:
the tests are joined with `|` instead of `or` if a later argument can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

from . import casts, functions, texts
from .errors import DataError, InternalError, UnsupportedView
from .expressions import Call, ColumnRef, Expression, Literal
from .generated import code_of
from .types import BOOL, FLOAT, STR, Type, Value

#: Nested levels of one Python expression. Deeper parts become functions: Python's parser takes 200 parentheses.
EXPRESSION_DEPTH_MAX = 24

TOO_DEEP = "expressions that are nested too deeply"

Namespace: TypeAlias = dict[str, object]
Leaf: TypeAlias = Callable[[Expression], "Code"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: What leaves read: rows of sources, or the stored row of a group and its extremes. No other name looks like these.
_READ = re.compile(r"\b(?:r[0-9]+|row|extremes)\b")

_NUMERIC = ("int", "decimal", "float")
#: Kinds whose values Python compares and hashes as SQL compares them.
_HASHED = ("int", "str", "bytes", "date", "timestamp", "timestamptz")
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: A float against a constant that is not NaN: Python's comparisons with NaN are all false but `!=`, SQL's NaN is above.
_FLOAT_TO_CONSTANT = {
    "=": "{0} == {1}",
    "<>": "{0} != {1}",
    "<": "{0} < {1}",
    "<=": "{0} <= {1}",
    ">": "not {0} <= {1}",
    ">=": "not {0} < {1}",
}
_PLAIN = {
    "=": "{0} == {1}",
    "<>": "{0} != {1}",
    "<": "{0} < {1}",
    "<=": "{0} <= {1}",
    ">": "{0} > {1}",
    ">=": "{0} >= {1}",
}
_WITH_NAN = {
    "=": "{eq}({0}, {1})",
    "<>": "not {eq}({0}, {1})",
    "<": "{lt}({0}, {1})",
    "<=": "not {lt}({1}, {0})",
    ">": "{lt}({1}, {0})",
    ">=": "not {lt}({0}, {1})",
}
#: Operators whose arguments are converted to the type of the result; other functions get theirs as they are.
_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "neg", "abs"})

#: The source of the multiplicity of rows that come once: it need not be multiplied by.
ONCE = "1"


def on_a_whole_stack(work: Callable[_P, _T]) -> Callable[_P, _T]:
    """For what recurses into expressions. Where the caller leaves too little of Python's stack it is done again in a
    thread, which has a whole one: whether an expression can be compiled must not depend on how deep somebody stands
    who writes, or opens the database, long after the view was created. UnsupportedView: not even that is enough."""

    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return work(*args, **kwargs)
        except RecursionError:
            raise UnsupportedView(TOO_DEEP, hint="split the expression, or make a view of a part of it") from None

    @wraps(work)
    def done(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return work(*args, **kwargs)
        except RecursionError:
            with ThreadPoolExecutor(max_workers=1) as thread:
                return thread.submit(alone, *args, **kwargs).result()

    return done


@dataclass(frozen=True, slots=True)
class Code:
    """Source of one value. `safe`: it cannot raise. `simple`: cheap enough to write twice.

    If `guard` is not empty, `text` is (None if guard else body): conditions use the parts.
    """

    text: str
    type: Type
    nullable: bool = False
    safe: bool = True
    simple: bool = False
    guard: str = ""
    body: str = ""


class Lines:
    """Python source that grows line by line."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines inside of `head`, which ends with a colon."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


@dataclass(slots=True)
class Compiler:
    """Compiles the expressions of one view. `helpers` are sources of functions that the code calls."""

    leaf: Leaf
    namespace: Namespace
    helpers: list[str] = field(default_factory=list)
    _names: int = 0
    _bound: dict[int, str] = field(default_factory=dict)

    def fresh(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def bind(self, value: object, hint: str = "k") -> str:
        """A name for a value in the namespace of the generated code. `hint` is never a user's text."""
        name = self._bound.get(id(value))
        if name is None:
            name = self._bound[id(value)] = self.fresh(f"{hint}_")
            self.namespace[name] = value
        return name

    @on_a_whole_stack
    def value(self, expression: Expression) -> Code:
        """Source of the value, None for NULL."""
        return self._value(expression, 0)

    @on_a_whole_stack
    def condition(self, expression: Expression) -> str:
        """Source that is true exactly when the expression is TRUE: what WHERE asks."""
        if isinstance(expression, Call) and expression.op == "and":
            # PostgreSQL stops at the first conjunct of WHERE that is not TRUE, so NULL may stop it here too.
            return "(" + " and ".join(self._condition(argument, 0) for argument in _flat(expression)) + ")"
        return self._condition(expression, 0)

    @on_a_whole_stack
    def define(self, source: str) -> None:
        """Run generated definitions, with the helpers that they call, in the namespace."""
        exec(code_of("".join(self.helpers) + source, "<viewtide plan>"), self.namespace)
        self.helpers.clear()  # Not before: it may be done again.

    # --- values ---

    def _value(self, expression: Expression, depth: int) -> Code:
        if isinstance(expression, Literal):
            return self._constant(expression.value, expression.type)
        if not isinstance(expression, Call):
            return self.leaf(expression)
        if depth >= EXPRESSION_DEPTH_MAX:
            return self._outlined(expression)
        code = self._call(expression, depth + 1)
        return self._folded(code) if _is_constant(expression) else code

    def _constant(self, value: Value, type_: Type) -> Code:
        if value is None or value is True or value is False:
            return Code(repr(value), type_, nullable=value is None, simple=True)
        return Code(self.bind(value), type_, simple=True)

    def _folded(self, code: Code) -> Code:
        """Constant expressions are computed now; one that raises keeps raising for each row, as it would in SQL."""
        if code.simple:
            return code
        if self.helpers:
            self.define("")  # It may call them.
        try:
            return self._constant(eval(code.text, self.namespace), code.type)  # Source made here, no user text in it.
        except DataError:
            return code

    def _outlined(self, expression: Call) -> Code:
        """A deep part as a function of the rows that it reads."""
        code = self._value(expression, 0)
        return code if code.simple else replace(code, text=self._helper([f"return {code.text}"]), guard="", body="")

    def _helper(self, lines: Sequence[str]) -> str:
        """The call of a function with these lines."""
        body = "".join(f"    {line}\n" for line in lines)
        head = f"{self.fresh('part_')}({', '.join(sorted(set(_READ.findall(body))))})"
        self.helpers.append(f"def {head}:\n{body}")
        return head

    def _call(self, call: Call, depth: int) -> Code:
        op = call.op
        if op in _COMPARISONS:
            return self._comparison(call, depth)
        if op in ("and", "or"):
            return self._connective(call, depth)
        if op in ("is_distinct", "is_not_distinct"):
            return self._distinct(call, depth)
        method = _SPECIAL.get(op)
        if method is not None:
            return method(self, call, depth)
        return self._function(call, depth)

    def _strict(
        self, args: Sequence[Code], type_: Type, build: Callable[..., str], *, safe: bool = True, nullable: bool = False
    ) -> Code:
        """NULL if an argument is NULL, else what `build` makes of the arguments' texts."""
        if any(code.text == "None" for code in args) and all(code.safe for code in args):
            return Code("None", type_, nullable=True, simple=True)
        all_safe = safe and all(code.safe for code in args)
        if not any(code.nullable for code in args):
            return Code(f"({build(*(code.text for code in args))})", type_, nullable, all_safe)
        tests, names = [], []
        for code in args:
            name = code.text
            if not code.simple and (code.nullable or not code.safe):
                name = self.fresh("t")
                tests.append(f"({name} := {code.text}) is None")
            elif code.nullable:
                tests.append(f"{name} is None")
            names.append(name)
        either = " or " if all(code.safe for code in args) else " | "
        guard = either.join(f"({test})" for test in tests)
        body = build(*names)
        return Code(f"(None if {guard} else {body})", type_, True, all_safe, guard=guard, body=f"({body})")

    def _function(self, call: Call, depth: int) -> Code:
        args = [self._value(argument, depth) for argument in call.args]
        if call.op in _ARITHMETIC:
            args = [self._converted(code, call.type) for code in args]
        key = (call.op, args[0].type.kind if args else "")
        function = functions.FUNCTIONS.get(key)
        if function is None:
            raise InternalError(f"no code for {call.op} of {key[1]}")
        name = self.bind(function, function.__name__)
        safe = key in functions.SAFE_FUNCTIONS
        return self._strict(args, call.type, lambda *names: f"{name}({', '.join(names)})", safe=safe)

    def _converted(self, code: Code, target: Type) -> Code:
        """The implicit conversion of an argument to the kind of the result; its precision stays as it is."""
        if code.type.kind == target.kind or code.type.kind == "null" or target.kind == "null":
            return code
        return self._cast_to(code, Type(target.kind))

    def _cast_to(self, code: Code, target: Type) -> Code:
        if code.type.kind == "null":
            return replace(code, type=target)
        try:
            function = casts.caster(code.type, target)
        except KeyError:
            raise InternalError(f"no cast from {code.type} to {target}") from None
        if function is None:
            return replace(code, type=target)
        name = self.bind(function, "cast")
        same = code.type.kind == target.kind
        safe = (same or (code.type.kind, target.kind) in casts.SAFE_CASTS) and target.precision is None
        return self._strict([code], target, lambda text: f"{name}({text})", safe=safe)

    # --- comparison ---

    def _pair(self, call: Call, depth: int) -> tuple[Code, Code]:
        left, right = (self._value(argument, depth) for argument in call.args)
        common = _common(left.type, right.type)
        return self._converted(left, common), self._converted(right, common)

    def _comparison(self, call: Call, depth: int) -> Code:
        left, right = self._pair(call, depth)
        return self._compared(call.op, left, right)

    def _compared(self, op: str, left: Code, right: Code) -> Code:
        template = self._comparison_template(op, left, right)
        return self._strict([left, right], BOOL, template.format)

    def _comparison_template(self, op: str, left: Code, right: Code) -> str:
        kind = left.type.kind if left.type.kind != "null" else right.type.kind
        if kind not in ("float", "decimal"):
            return _PLAIN[op]
        if kind == "float":
            if self._is_number(right):
                return _FLOAT_TO_CONSTANT[op]
            if self._is_number(left):
                swapped = _FLOAT_TO_CONSTANT[_FLIPPED[op]]
                return swapped.replace("{0}", "{2}").replace("{1}", "{0}").replace("{2}", "{1}")
            eq, lt = self.bind(functions.float_eq, "float_eq"), self.bind(functions.float_lt, "float_lt")
        else:
            if op in ("=", "<>") and (self._is_number(left) or self._is_number(right)):
                return _PLAIN[op]
            eq, lt = self.bind(functions.decimal_eq, "decimal_eq"), self.bind(functions.decimal_lt, "decimal_lt")
        return _WITH_NAN[op].replace("{eq}", eq).replace("{lt}", lt)

    def _is_number(self, code: Code) -> bool:
        """Whether the code is a constant that is not NaN (a number is equal to itself)."""
        value = self.namespace.get(code.text) if code.simple else None
        return value is not None and bool(value == value)

    def _distinct(self, call: Call, depth: int) -> Code:
        left, right = (self._named(code) for code in self._pair(call, depth))
        template = self._comparison_template("=", left[1], right[1])
        equal = template.format(left[1].text, right[1].text)
        evaluated = f"(({left[0]}) is None) | (({right[0]}) is None)"
        same = f"({left[1].text} is None and {right[1].text} is None) if {evaluated} else {equal}"
        if not left[1].nullable and not right[1].nullable:
            same = template.format(left[0], right[0])
        elif left[1].text == "None" or right[1].text == "None":
            same = f"({left[0]}) is None and ({right[0]}) is None"
        safe = left[1].safe and right[1].safe
        text = f"(not ({same}))" if call.op == "is_distinct" else f"({same})"
        return Code(text, BOOL, safe=safe)

    def _named(self, code: Code) -> tuple[str, Code]:
        """How to evaluate a code once, and the code that stands for its value after that."""
        if code.simple:
            return code.text, code
        name = self.fresh("t")
        return f"({name} := {code.text})", Code(name, code.type, code.nullable, simple=True, safe=code.safe)

    # --- logic ---

    def _condition(self, expression: Expression, depth: int) -> str:
        if isinstance(expression, Call) and depth < EXPRESSION_DEPTH_MAX:
            if expression.op == "or":
                # OR goes on after a NULL just as after FALSE, so NULL may count as FALSE.
                return "(" + " or ".join(self._condition(arg, depth + 1) for arg in _flat(expression)) + ")"
            if expression.op == "not":
                inner = self._value(expression.args[0], depth + 1)
                if inner.guard:
                    return f"(not ({inner.guard}) and not {inner.body})"
                return f"({inner.text} is False)" if inner.nullable else f"(not {inner.text})"
        code = self._value(expression, depth)
        if code.guard:
            return f"(not ({code.guard}) and {code.body})"
        return f"({code.text} is True)" if code.nullable else code.text

    def _connective(self, call: Call, depth: int) -> Code:
        """Three-valued AND and OR, left to right: FALSE ends an AND and TRUE ends an OR, NULL ends neither."""
        args = [self._value(argument, depth) for argument in _flat(call)]
        safe = all(code.safe for code in args)
        if not any(code.nullable for code in args):
            return Code("(" + f" {call.op} ".join(code.text for code in args) + ")", BOOL, safe=safe)
        decisive, other = ("False", "True") if call.op == "and" else ("True", "False")
        tests, nulls = [], []
        for code in args:
            if not code.nullable:
                tests.append(f"not {code.text}" if call.op == "and" else code.text)
                continue
            evaluate, named = self._named(code)
            tests.append(f"{evaluate} is {decisive}")
            nulls.append(f"{named.text} is None")
        text = f"({decisive} if {' or '.join(tests)} else None if {' or '.join(nulls)} else {other})"
        return Code(text, BOOL, nullable=True, safe=safe)

    def _not(self, call: Call, depth: int) -> Code:
        return self._strict([self._value(call.args[0], depth)], BOOL, "not {0}".format)

    def _is_null(self, call: Call, depth: int) -> Code:
        code = self._value(call.args[0], depth)
        return Code(f"({code.text} is None)", BOOL, safe=code.safe)

    def _is_not_null(self, call: Call, depth: int) -> Code:
        code = self._value(call.args[0], depth)
        return Code(f"({code.text} is not None)", BOOL, safe=code.safe)

    def _in(self, call: Call, depth: int) -> Code:
        items = [self._value(argument, depth) for argument in call.args]
        common = items[0].type
        for code in items[1:]:
            common = _common(common, code.type)
        items = [self._converted(code, common) for code in items]
        constants = [self.namespace.get(code.text) for code in items[1:] if code.simple]
        if common.kind in _HASHED and len(constants) == len(items) - 1 and None not in constants:
            name = self.bind(frozenset(constants), "items")
            return self._strict(items[:1], BOOL, ("{0} in " + name).format)
        evaluate, value = self._named(items[0])
        tests = [self._compared("=", value, code) for code in items[1:]]
        any_equal = self._or_codes(tests)
        if evaluate == value.text:
            return any_equal
        # The value is evaluated once, before the first comparison: a conditional that always goes the same way.
        text = f"({any_equal.text} if ({evaluate} is None or True) else None)"
        return Code(text, BOOL, any_equal.nullable, any_equal.safe and items[0].safe)

    def _or_codes(self, tests: list[Code]) -> Code:
        safe = all(code.safe for code in tests)
        if not any(code.nullable for code in tests):
            return Code("(" + " or ".join(code.text for code in tests) + ")", BOOL, safe=safe)
        evaluated = [self._named(code) for code in tests]
        true = " or ".join(f"{evaluate} is True" for evaluate, _ in evaluated)
        null = " or ".join(f"{named.text} is None" for _, named in evaluated)
        return Code(f"(True if {true} else None if {null} else False)", BOOL, nullable=True, safe=safe)

    # --- choice ---

    def _case(self, call: Call, depth: int) -> Code:
        *arms, otherwise = call.args if len(call.args) % 2 else (*call.args, Literal(None, call.type))
        levels = _levels(depth, len(arms) // 2 + 1)
        tests = [self._condition(test, level) for test, level in zip(arms[::2], levels, strict=False)]
        codes = [
            self._converted(self._value(result, level), call.type)
            for result, level in zip((*arms[1::2], otherwise), levels, strict=True)
        ]
        text = self._first_of(tests, [code.text for code in codes], nested=levels[0] == depth)
        return Code(text, call.type, any(code.nullable for code in codes), safe=False)

    def _coalesce(self, call: Call, depth: int) -> Code:
        levels, codes = _levels(depth, len(call.args)), list[Code]()
        for argument, level in zip(call.args, levels, strict=True):
            codes.append(self._converted(self._value(argument, level), call.type))
            if not codes[-1].nullable:
                break
        *others, last = codes
        if not others:
            return last
        named = [self._named(code) for code in others]
        tests = [f"{evaluate} is not None" for evaluate, _ in named]
        text = self._first_of(tests, [*(code.text for _, code in named), last.text], nested=levels[0] == depth)
        return Code(text, call.type, last.nullable, all(code.safe for code in codes))

    def _first_of(self, tests: Sequence[str], values: Sequence[str], *, nested: bool) -> str:
        """The value that belongs to the first test that is true, or else the last one. Those that are not nested stand
        one below the other in a function: thousands inside of each other would be more than Python's stack holds."""
        *chosen, otherwise = values
        pairs = list(zip(tests, chosen, strict=True))
        if not nested:
            return self._helper([*(f"if {test}: return {value}" for test, value in pairs), f"return {otherwise}"])
        for test, value in reversed(pairs):
            otherwise = f"({value} if {test} else {otherwise})"
        return otherwise

    def _nullif(self, call: Call, depth: int) -> Code:
        original = self._value(call.args[0], depth)
        right = self._value(call.args[1], depth)
        common = _common(original.type, right.type)
        evaluate, named = self._named(original)
        equal = self._compared("=", self._converted(named, common), self._converted(right, common))
        test = f"(not ({equal.guard}) and {equal.body})" if equal.guard else equal.text
        if equal.text == "None":
            return original
        if evaluate != named.text:
            test = f"({evaluate} is None or True) and {test}"
        value = self._converted(named, call.type)
        return Code(f"(None if {test} else {value.text})", call.type, True, original.safe and right.safe and value.safe)

    # --- functions ---

    def _cast(self, call: Call, depth: int) -> Code:
        return self._cast_to(self._value(call.args[0], depth), call.type)

    def _concatenation(self, call: Call, depth: int) -> Code:
        args = [self._converted(self._value(argument, depth), call.type) for argument in call.args]
        name, fail = self.fresh("t"), self.bind(texts.too_long, "too_long")
        limit = f"({name} if len({name} := {{}}) <= {texts.RESULT_CHARACTERS_MAX} else {fail}())"
        return self._strict(args, call.type, lambda *names: limit.format(" + ".join(names)), safe=False)

    def _concat(self, call: Call, depth: int) -> Code:
        """Parts that are NULL count as empty."""
        args = [self._text(argument, depth) for argument in call.args]
        parts = [f"({code.text} or '')" if code.nullable else code.text for code in args]
        name = self.bind(texts.limited, "limited")
        return Code(f"{name}(''.join(({', '.join(parts)},)))", STR, safe=False)

    def _concat_ws(self, call: Call, depth: int) -> Code:
        args = [self._text(argument, depth) for argument in call.args]
        name = self.bind(texts.concat_ws, "concat_ws")
        return Code(f"{name}({', '.join(code.text for code in args)})", STR, args[0].nullable, safe=False)

    def _extreme(self, call: Call, depth: int) -> Code:
        """GREATEST and LEAST: NULLs do not count."""
        args = [self._converted(self._value(argument, depth), call.type) for argument in call.args]
        if len(args) == 1:
            return args[0]
        kind = call.type.kind if call.type.kind in ("float", "decimal") else ""
        function: object = functions.EXTREMES[call.op, kind]
        if not kind and not any(code.nullable for code in args):
            function = max if call.op == "greatest" else min
        name = self.bind(function, call.op)
        nullable, safe = all(code.nullable for code in args), all(code.safe for code in args)
        return Code(f"{name}({', '.join(code.text for code in args)})", call.type, nullable, safe)

    def _text(self, expression: Expression, depth: int) -> Code:
        return self._converted(self._value(expression, depth), STR)

    def _like(self, call: Call, depth: int) -> Code:
        text, pattern = self._text(call.args[0], depth), self._text(call.args[1], depth)
        constant = self.namespace.get(pattern.text) if pattern.simple else None
        if isinstance(constant, str):
            lowered = constant if call.op == "like" else texts.lower(constant)
            matcher = self.bind(texts.like_matcher(lowered), call.op)
            subject = "{0}" if call.op == "like" else self.bind(texts.lower, "lower") + "({0})"
            # A pattern that ends with its escape character may raise.
            safe = not lowered.endswith("\\")
            return self._strict([text], BOOL, f"{matcher}({subject}) is not None".format, safe=safe)
        name = self.bind(texts.like if call.op == "like" else texts.ilike, call.op)
        return self._strict([text, pattern], BOOL, (name + "({0}, {1})").format, safe=False)


_SPECIAL: dict[str, Callable[[Compiler, Call, int], Code]] = {
    "not": Compiler._not,
    "is_null": Compiler._is_null,
    "is_not_null": Compiler._is_not_null,
    "in": Compiler._in,
    "case": Compiler._case,
    "coalesce": Compiler._coalesce,
    "nullif": Compiler._nullif,
    "cast": Compiler._cast,
    "greatest": Compiler._extreme,
    "least": Compiler._extreme,
    "||": Compiler._concatenation,
    "concat": Compiler._concat,
    "concat_ws": Compiler._concat_ws,
    "like": Compiler._like,
    "ilike": Compiler._like,
}


def column_leaf(expression: Expression) -> Code:
    """Columns of the bound rows: r0 is the row of source 0, and so on."""
    if not isinstance(expression, ColumnRef):
        raise InternalError(f"{type(expression).__name__} outside of the outputs of an aggregate view")
    return Code(f"r{expression.source}[{expression.position}]", expression.type, expression.nullable, simple=True)


def sources_of(expression: Expression) -> set[int]:
    """The sources whose rows an expression reads."""
    if isinstance(expression, ColumnRef):
        return {expression.source}
    if isinstance(expression, Call):
        return set().union(*(sources_of(argument) for argument in expression.args))
    return set()


def _levels(depth: int, count: int) -> Sequence[int]:
    """The depths of so many alternatives: each inside of the one before, or, if that is too deep, all in a function."""
    return range(depth, depth + count) if depth + count <= EXPRESSION_DEPTH_MAX else (0,) * count


def _is_constant(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return all(map(_is_constant, expression.args))
    return isinstance(expression, Literal)


def _flat(call: Call) -> list[Expression]:
    """AND and OR are associative: nested ones become one, which keeps the generated code shallow."""
    flat: list[Expression] = []
    pending = list(reversed(call.args))
    while pending:
        argument = pending.pop()
        if isinstance(argument, Call) and argument.op == call.op:
            pending.extend(reversed(argument.args))
        else:
            flat.append(argument)
    return flat


def _common(left: Type, right: Type) -> Type:
    """The type in which two values are compared: the wider number, the more exact time."""
    if left.kind == right.kind or right.kind == "null":
        return left
    if left.kind == "null":
        return right
    if left.kind in _NUMERIC and right.kind in _NUMERIC:
        return FLOAT if "float" in (left.kind, right.kind) else Type("decimal")
    order = ("date", "timestamp", "timestamptz")
    if left.kind in order and right.kind in order:
        return left if order.index(left.kind) > order.index(right.kind) else right
    raise InternalError(f"no comparison of {left} with {right}")
