"""Change tables are a commutative group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewtide.changetables.change_table import ChangeTable
from viewtide.changetables.types import NAN

rows = st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]))
change_tables = st.builds(ChangeTable, st.lists(st.tuples(rows, st.integers(-3, 3)), max_size=6))


@given(change_tables, change_tables, change_tables)
def test_addition_is_a_commutative_group(a: ChangeTable, b: ChangeTable, c: ChangeTable) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + ChangeTable() == a
    assert a + -a == ChangeTable()
    assert a - b == a + -b
    assert ChangeTable() - -a == a


@given(change_tables)
def test_consolidate_drops_only_zeros(a: ChangeTable) -> None:
    before = dict(a)
    assert dict(a.consolidate()) == before
    assert 0 not in before.values()
    assert len(a) == len(before)
    assert bool(a) == bool(before)


def test_update_is_delete_and_insert() -> None:
    changes = ChangeTable()
    changes.update((1, "old"), (1, "new"))
    assert dict(changes) == {(1, "old"): -1, (1, "new"): 1}


def test_repeated_updates_net_to_first_old_and_last_new() -> None:
    changes = ChangeTable()
    changes.update((1, "a"), (1, "b"))
    changes.update((1, "b"), (1, "c"))
    assert list(changes.consolidate()) == [((1, "a"), -1), ((1, "c"), 1)]


def test_insert_and_delete_cancel_out() -> None:
    changes = ChangeTable([((1,), 2)])
    changes.delete((1,))
    changes.delete((1,))
    assert changes == ChangeTable()
    assert not changes
    assert repr(changes) == "ChangeTable([])"


def test_nan_cancels_nan() -> None:
    changes = ChangeTable([((NAN,), 1)])
    changes.delete((NAN,))
    assert not changes


def test_a_change_table_is_no_dict_key_and_equals_only_change_tables() -> None:
    with pytest.raises(TypeError):
        hash(ChangeTable())
    assert ChangeTable() != {}
