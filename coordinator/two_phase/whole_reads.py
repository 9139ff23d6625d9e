"""Answers to reads are pages: whoever wants all of it asks for what is left, at the same timestamp."""

from __future__ import annotations

from .messages import ReadAt, RowsAt


def rest_of(question: ReadAt, answer: RowsAt) -> ReadAt | None:
    """What to ask next, for another page; None: nothing is missing."""
    if question.some or question.stored or not (answer.left_keys or answer.left_ranges):
        return None
    keys = tuple(question.keys[place] for place in answer.left_keys)
    return ReadAt(0, answer.at, keys, tuple(each for _, each in answer.left_ranges), some=True)


def with_more(answer: RowsAt, more: RowsAt) -> RowsAt:
    """With the answer to the question for the rest."""
    rows, ranges = list(answer.rows), list(answer.ranges)
    for place, row in zip(answer.left_keys, more.rows, strict=True):
        rows[place] = row
    for (place, _), found in zip(answer.left_ranges, more.ranges, strict=True):
        ranges[place] += found
    return answer._replace(
        rows=tuple(rows),
        ranges=tuple(ranges),
        left_keys=tuple(answer.left_keys[place] for place in more.left_keys),
        left_ranges=tuple((answer.left_ranges[place][0], each) for place, each in more.left_ranges),
    )
