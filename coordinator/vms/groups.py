"""Which deferred views move together: those of one DAG, those of a named group, and the hidden views below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...ltm.catalog import View
from ...ltm.cluster.catalogs import Stored, tables_of
from ...ltm.tables import TableRows, Tables, ViewRows
from ..ports import Switched
from .modes import Mode, quickest


class Phase(NamedTuple):
    """A part of a step that begins when all slots of the one before are in. `shown`: it is found out whether what these
    views show now can be computed, and their indexes are brought to that."""

    views: tuple[ViewRows, ...]
    shown: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Views that always have one watermark, each after those that it reads. `levels`: those of one level do not read
    each other. `watched`: the ids of tables and synchronous views whose changes it is made from."""

    views: tuple[ViewRows, ...]
    mode: Mode

    @property
    def key(self) -> int:
        return self.ids[0]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted(rows.view.id for rows in self.views))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the views that users know."""
        return tuple(rows.view.name for rows in self.views if not rows.view.hidden)

    @property
    def watermark(self) -> int:
        """Of the last one: a step publishes them one after the other. A view that is being made has none yet."""
        made = [rows for rows in self.views if rows.view.ready_ts] or self.views
        return min([rows.versions.horizon.durable_ts for rows in made])

    @property
    def ready(self) -> bool:
        return all(rows.view.ready_ts for rows in self.views)

    def levels(self) -> list[list[ViewRows]]:
        by_level: dict[int, list[ViewRows]] = {}
        for rows in self.views:
            by_level.setdefault(rows.level, []).append(rows)
        return [by_level[level] for level in sorted(by_level)]

    def phases(self) -> list[Phase]:
        """What a step over several LTMs does, one after the other. What a view shows is known when all slots of its
        level are in, and those above look into its indexes: so their entries come in between."""
        found: list[Phase] = []
        for views in self.levels():
            found.append(Phase(tuple(views)))
            shown = tuple(rows for rows in views if is_shown_by_step(rows))
            if shown:
                found.append(Phase(shown, True))
        return found

    def sources(self, tables: Tables) -> dict[str, TableRows | ViewRows]:
        """The tables and synchronous views that it is made from, by name."""
        found: dict[str, TableRows | ViewRows] = {}
        for rows in self.views:
            for name in rows.plan.sources:
                source = tables.source(name)
                if isinstance(source, TableRows) or not source.view.deferred:
                    found[name] = source
        return found


def is_shown_by_step(rows: ViewRows) -> bool:
    """Whether a step looks at what the view shows: not before its rows are all in."""
    return bool(rows.indexes) or rows.plan.fallible


def groups_of(tables: Tables) -> list[Group]:
    """All groups of deferred views."""
    deferred = {name: rows for name, rows in tables.views.items() if rows.view.deferred}
    leader = {name: name for name in deferred}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    named: dict[str, str] = {}
    for name, rows in deferred.items():
        for below in rows.plan.reads:
            if below in deferred:
                leader[find(name)] = find(below)
        if rows.view.group:
            leader[find(name)] = find(named.setdefault(rows.view.group, name))
    members: dict[str, list[ViewRows]] = {}
    for name, rows in deferred.items():
        members.setdefault(find(name), []).append(rows)
    return [Group(tuple(rows), quickest(_of_users(rows))) for rows in members.values()]


@dataclass(frozen=True, slots=True)
class InForce:
    """A group as it is refreshed now, and the catalog that says how. One that another catalog joins, or takes views
    from that are something else then, is refreshed once more, up to `final_ts`; 0: it goes on. One that is only
    divided, or loses views that are dropped, is not: what is left `stays` where it is, so its step ends, and no other
    one begins."""

    group: Group
    tables: Tables
    final_ts: int = 0
    stays: bool = False


def groups_in_force(stored: Stored) -> dict[int, InForce]:
    """By their keys. New groups are not among them before their contents are there."""
    opened = stored.opened
    if not opened:
        return {}
    tables = tables_of(opened[-1].data)
    groups = {group.key: group for group in groups_of(tables)}
    if not stored.unfinished:
        return {key: InForce(group, tables) for key, group in groups.items()}
    if len(opened) < 2:
        return {}
    before = tables_of(opened[-2].data)
    found: dict[int, InForce] = {}
    for group in groups_of(before):
        now = groups.get(group.key)
        if now is not None and now.ids == group.ids:
            found[group.key] = InForce(now, tables)
        elif any(view_id in tables.views_by_id for view_id in group.ids):
            stays = _is_divided(group, tables)
            found[group.key] = InForce(group, before, 0 if stays else opened[-1].ts, stays)
    return found


def _is_divided(group: Group, after: Tables) -> bool:
    """Whether all that is left of a group is in groups in which there is nothing else: it has one watermark as it is,
    also if nobody can compute another one."""
    ids = set(group.ids)
    left = [set(each.ids) for each in groups_of(after) if not ids.isdisjoint(each.ids)]
    return all(each <= ids for each in left) and set().union(*left) == ids & after.views_by_id.keys()


def changed_groups(before: Tables | None, after: Tables) -> list[Group]:
    """The groups of a catalog that were not there before, as they are."""
    known = set() if before is None else {group.ids for group in groups_of(before)}
    return [group for group in groups_of(after) if group.ids not in known]


def ids_in_force(stored: Stored) -> dict[str, tuple[int, ...]]:
    """As `group_ids`, of the newest catalog that is open, as it is read: while it is unfinished its views move as the
    catalog before says, and one that begins to move with it cannot be read."""
    opened = stored.opened
    names = {} if not opened else {id: rows.view.name for id, rows in tables_of(opened[-1].data).views_by_id.items()}
    found = {}
    for each in groups_in_force(stored).values():
        found.update({names[id]: each.group.ids for id in each.group.ids if id in names})
    return found


def group_ids(tables: Tables) -> dict[str, tuple[int, ...]]:
    """For each deferred view the ids of its whole group, hidden views included, as of these tables."""
    if tables.group_ids is None:
        tables.group_ids = {rows.view.name: group.ids for group in groups_of(tables) for rows in group.views}
    return tables.group_ids


def group_keys(tables: Tables) -> dict[str, int]:
    """For each deferred view the key of its group."""
    if tables.group_keys is None:
        tables.group_keys = {name: ids[0] for name, ids in group_ids(tables).items()}
    return tables.group_keys


def group_key(tables: Tables, name: str) -> int:
    """Of a view that is deferred by these tables. Switched: it does not move yet."""
    key = group_keys(tables).get(name)
    if key is None:
        raise Switched(f"view {name!r} is just becoming deferred", hint="try again in a moment")
    return key


def _of_users(rows: list[ViewRows]) -> list[View]:
    return [each.view for each in rows if not each.view.hidden]
