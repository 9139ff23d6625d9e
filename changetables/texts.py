"""Functions of text and bytes with PostgreSQL 15's results, for compiled expressions. No argument is ever None.

Positions count characters from 1. Letters are mapped one by one: none becomes two, and none depends on its neighbours.
No result is longer than RESULT_CHARACTERS_MAX: what could be is refused before it is made.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn, TypeVar

from .errors import CHARACTER_HINT, SUBSTRING_HINT, DataError

#: Characters (or bytes) of one text that an expression makes, as many as varchar(n) may have: a few rows of repeat() or
#: of a text that is doubled again and again must not fill the memory.
RESULT_CHARACTERS_MAX = 10_485_760
#: Patterns of LIKE that are not constants: how many compiled ones are kept.
LIKE_PATTERNS_MAX = 256
_CODE_POINT_MAX = 0x10FFFF

_Text = TypeVar("_Text", str, bytes)


def too_long() -> NoReturn:
    raise DataError(
        "requested length too large",
        hint=f"a text that an expression makes has at most {RESULT_CHARACTERS_MAX} characters",
    )


def limited(text: _Text) -> _Text:
    if len(text) > RESULT_CHARACTERS_MAX:
        too_long()
    return text


# --- letters ---


def lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_lower_letter, text))


def upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(map(_upper_letter, text))


def initcap(text: str) -> str:
    """Words are runs of letters and digits; the first letter of each is a capital."""
    letters, within = [], False
    for letter in text:
        letters.append(_lower_letter(letter) if within else _upper_letter(letter))
        # A fraction or a raised digit is no digit of a word.
        within = letter.isalnum() and (letter.isascii() or unicodedata.category(letter) != "No")
    return "".join(letters)


def _lower_letter(letter: str) -> str:
    mapped = letter.lower()
    if len(mapped) == 1:
        return mapped
    return "i" if letter == "\u0130" else letter


def _upper_letter(letter: str) -> str:
    # Greek letters with an iota below have no capital but a title form of one character.
    for mapped in (letter.upper(), letter.title()):
        if len(mapped) == 1:
            return mapped
    return letter


# --- parts ---


def substring(text: _Text, start: int, length: int | None = None) -> _Text:
    """The characters from `start`, which may lie before the text, up to `start + length`."""
    if length is None:
        return text[max(start - 1, 0) :]
    if length < 0:
        raise DataError("negative substring length not allowed", hint=SUBSTRING_HINT)
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


def left(text: str, count: int) -> str:
    """A negative count leaves out so many at the other end; Python's slices say the same."""
    return text[:count]


def right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def btrim(text: str, characters: str = " ") -> str:
    return text.strip(characters) if characters else text


def ltrim(text: str, characters: str = " ") -> str:
    return text.lstrip(characters) if characters else text


def rtrim(text: str, characters: str = " ") -> str:
    return text.rstrip(characters) if characters else text


def split_part(text: str, delimiter: str, index: int) -> str:
    if index == 0:
        raise DataError("field position must not be zero", hint="fields count from 1, or from -1 at the end")
    parts = text.split(delimiter) if delimiter else [text]
    position = index - 1 if index > 0 else len(parts) + index
    return parts[position] if 0 <= position < len(parts) else ""


# --- search ---


def strpos(text: _Text, part: _Text) -> int:
    return text.find(part) + 1


def starts_with(text: str, prefix: str) -> bool:
    return text.startswith(prefix)


def replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    growth = len(new) - len(old)
    if growth > 0 and len(text) + text.count(old) * growth > RESULT_CHARACTERS_MAX:
        too_long()
    return text.replace(old, new)


def translate(text: str, old: str, new: str) -> str:
    """Each character of `old` becomes the one at its place in `new`, or goes if there is none; the first one counts."""
    mapping = {ord(letter): new[index : index + 1] for index, letter in reversed(list(enumerate(old)))}
    return text.translate(mapping)


# --- longer texts ---


def repeat(text: str, count: int) -> str:
    if count > 0 and len(text) * count > RESULT_CHARACTERS_MAX:
        too_long()
    return text * max(count, 0) if text else ""


def lpad(text: str, length: int, fill: str = " ") -> str:
    return _padding(text, length, fill) + text[: max(length, 0)]


def rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, fill)


def _padding(text: str, length: int, fill: str) -> str:
    missing = length - len(text)
    if missing <= 0 or not fill:
        return ""
    if length > RESULT_CHARACTERS_MAX:
        too_long()
    return (fill * (missing // len(fill) + 1))[:missing]


def concat_ws(separator: str | None, *parts: str | None) -> str | None:
    """The parts that are not NULL, with the separator between them; NULL only if the separator is."""
    if separator is None:
        return None
    present = [part for part in parts if part is not None]
    if sum(map(len, present)) + len(separator) * len(present) > RESULT_CHARACTERS_MAX:
        too_long()
    return separator.join(present)


def reverse(text: str) -> str:
    return text[::-1]


# --- codes ---


def octet_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def ascii_code(text: str) -> int:
    return ord(text[0]) if text else 0


def chr_of(code: int) -> str:
    if code == 0:
        raise DataError("null character not permitted", hint=CHARACTER_HINT)
    if not 0 < code <= _CODE_POINT_MAX:
        raise DataError(f"requested character too large for encoding: {code}", hint=CHARACTER_HINT)
    if 0xD800 <= code <= 0xDFFF:
        raise DataError(f"requested character not valid for encoding: {code}", hint=CHARACTER_HINT)
    return chr(code)


# --- LIKE ---


@lru_cache(maxsize=LIKE_PATTERNS_MAX)
def like_matcher(pattern: str) -> Callable[[str], object]:
    """A function that gives None for a text that does not match a LIKE pattern, and something else for one that does.

    Between two '%' the leftmost match of a segment is always good enough, so each one is an atomic group: matching
    is linear in the text for each segment, whatever the pattern.
    """
    segments, complete = _like_segments(pattern)
    if not complete:
        return _incomplete(segments)
    if len(segments) == 1:
        return re.compile(_regex(segments[0]), re.DOTALL).fullmatch
    return re.compile(f"{_shortest(segments[:-1])}.*{_regex(segments[-1])}", re.DOTALL).fullmatch


def _like_segments(pattern: str) -> tuple[list[list[str]], bool]:
    """The parts between two '%', each a list of characters with an empty one for '_'. Not complete: a backslash at
    the end has nothing to escape."""
    segments: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            segments.append([])
            continue
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                return segments, False
            segments[-1].append(escaped)
        else:
            segments[-1].append("" if character == "_" else character)
    return segments, True


def _regex(segment: list[str]) -> str:
    return "".join(re.escape(character) if character else "." for character in segment)


def _shortest(segments: list[list[str]]) -> str:
    """The shortest beginning of a text that matches the segments with anything between them."""
    return _regex(segments[0]) + "".join(f"(?>.*?{_regex(segment)})" for segment in segments[1:])


def _incomplete(segments: list[list[str]]) -> Callable[[str], object]:
    """PostgreSQL refuses a pattern that ends with its escape character only when a text gets that far: when something
    is left of the text after the rest of the pattern. Behind a '%' it first skips what '_' stands for."""
    skipped = 0
    if len(segments) > 1 and not any(segments[-1]):
        while len(segments) > 1 and not any(segments[-1]):
            skipped += len(segments.pop())
    beginning = re.compile(_shortest(segments), re.DOTALL).match
    needed = max(skipped, 1)

    def refuse(text: str) -> None:
        match = beginning(text)
        if match is not None and len(text) - match.end() >= needed:
            raise DataError("LIKE pattern must not end with escape character", hint="write a backslash twice")

    return refuse


def like(text: str, pattern: str) -> bool:
    return like_matcher(pattern)(text) is not None


def ilike(text: str, pattern: str) -> bool:
    return like_matcher(lower(pattern))(lower(text)) is not None


def like_escape(pattern: str, escape: str) -> str:
    """The pattern of LIKE ... ESCAPE with a backslash in the place of the escape character."""
    if escape == "\\":
        return pattern
    if len(escape) > 1:
        raise DataError("invalid escape string", hint="escape string must be empty or one character")
    result, escaped = [], False
    for character in pattern:
        if character == escape and not escaped:
            result.append("\\")
            escaped = True
            continue
        result.append("\\\\" if character == "\\" and not escaped else character)
        escaped = False
    return "".join(result)
