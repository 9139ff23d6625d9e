"""What clients of the commit protocol do: tables and views, key ranges that cut them, and a client that works on them.

A client does one thing after another, each a small generator that yields `ReadAt` and `Submit` and is sent the answers.
Whatever is not answered in time is asked again of another coordinator. Accounts begin empty and may be overdrawn: the
sum of all balances is always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import NamedTuple, TypeAlias, cast

import viewtide
from viewtide.changetables.keys import table_range
from viewtide.changetables.types import Row
from viewtide.coordinator.transaction import ABSENT, ANY, Intent
from viewtide.coordinator.two_phase.messages import Intents, Outcome, ReadAt, RowsAt, Submit
from viewtide.coordinator.two_phase.whole_reads import rest_of, with_more
from viewtide.coordinator.vms.step_rows import STEPS, with_steps
from viewtide.ltm.cluster.catalogs import BEGINNING
from viewtide.ltm.key_range import RangeMap
from viewtide.ltm.tables import Tables
from viewtide.ltm.two_phase.messages import COMMITTED, KeyRange
from viewtide.ltm.versions import Horizon

from .process import NOTHING, Host, Outputs

LTMS = ("ltm-1", "ltm-2", "ltm-3")
COORDINATORS = ("coordinator-1", "coordinator-2")
CLIENTS = ("client-1", "client-2", "client-3", "client-4")
ORACLE = "oracle"

ACCOUNTS, BRANCHES, PRODUCTS, EVENTS, LISTS, COUNTERS = 24, 4, 12, 40, 6, 2
#: Products that most buy.
POPULAR = 2
CATEGORIES = ("books", "games", "music", "tools")

THINK_MS_MAX = 60
#: Longer than an attempt takes when all goes well, shorter than most faults last.
ANSWER_MS_MAX = 500
#: Reads that are not answered are given up after so many questions, and some writes after one.
READS_MAX = 3
ABANDONED_RATIO = 0.1

Operation: TypeAlias = Generator[ReadAt | Submit, RowsAt | Outcome | None, None]


def _column(kind: type) -> object:
    return viewtide.column(kind, nullable=False)


@cache
def tables() -> Tables:
    """One for all machines of a run: there are plans in it, and no rows."""
    database = viewtide.connect("memory:")
    create_tables(database)
    for name, text in VIEWS.items():
        database.create_view(name, text)
    for group, (refresh, views) in DEFERRED.items():
        for name, text in views.items():
            database.create_view(name, text, refresh=refresh, group=group)
    catalog = with_steps(database._engine.ltm.tables.catalog)
    database.close()
    # Not as of the time of day: the same seed gives the same trace whenever it is run.
    views = {name: replace(view, ready_ts=BEGINNING) for name, view in catalog.views.items()}
    return Tables(replace(catalog, views=views), Horizon())


def create_tables(database: viewtide.Database) -> None:
    account = {"id": int, "branch": _column(int), "balance": _column(int)}
    database.create_table("accounts", account, key="id", indexes=["branch"])
    database.create_table("products", {"id": int, "category": _column(str), "price": _column(int)}, key="id")
    event = {"id": int, "product": _column(int), "cost": _column(int)}
    database.create_table("events", event, key="id", indexes=["product"])
    database.create_table("lists", {"id": int, "items": _column(str)}, key="id")
    database.create_table("counters", {"id": int, "value": _column(int)}, key="id")


VIEWS = {
    "by_branch": "SELECT branch, SUM(balance) AS total, COUNT(*) AS n FROM accounts GROUP BY branch",
    "bank": "SELECT SUM(total) AS total, SUM(n) AS n FROM by_branch",
    "branch_sizes": "SELECT n, COUNT(*) AS branches FROM by_branch GROUP BY n",
    "by_category": "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n, AVG(e.cost) AS mean "
    "FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
    "extremes": "SELECT product, MIN(cost) AS low, MAX(cost) AS high FROM events GROUP BY product",
    "event_rows": "SELECT e.id, p.category, e.cost FROM events e JOIN products p ON e.product = p.id",
    "dear": "SELECT id, price FROM products ORDER BY price DESC, id LIMIT 3",
    "busy": "SELECT product, SUM(cost) AS cost FROM events GROUP BY product HAVING COUNT(*) > 1",
    "left_rows": "SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id",
}


#: By group: how often they are refreshed, and the views. Only scenarios with view managers refresh them.
DEFERRED = {
    "quick": (
        "300ms",
        {
            "late_by_category": "SELECT p.category, SUM(e.cost) AS cost, COUNT(*) AS n "
            "FROM events e JOIN products p ON e.product = p.id GROUP BY p.category",
            "late_counted": "SELECT COUNT(*) AS n, SUM(value) AS total FROM counters",
            "late_dear": "SELECT id, price FROM products ORDER BY price DESC, id LIMIT 3",
        },
    ),
    "slow": (
        "800ms",
        {
            "late_by_branch": "SELECT branch, SUM(balance) AS total, COUNT(*) AS n FROM accounts GROUP BY branch",
            "late_bank": "SELECT SUM(total) AS total, SUM(n) AS n FROM late_by_branch",
            "late_extremes": "SELECT product, MIN(cost) AS low, MAX(cost) AS high FROM events GROUP BY product",
            "late_left_rows": "SELECT p.id, e.cost FROM products p LEFT JOIN events e ON e.product = p.id",
            "late_total": "SELECT SUM(total) AS total, COUNT(*) AS n FROM by_branch",
        },
    ),
}


def key(table: str, number: int) -> bytes:
    return tables().by_name[table].codec.keys.encode((number,))


def view_key(name: str, *group: int) -> bytes:
    return tables().views[name].plan.keys.encode_short(group)


def whole(name: str) -> KeyRange:
    return (*table_range(tables().source(name).table.id), 0, False)


@cache
def with_hidden(name: str) -> tuple[str, ...]:
    return hidden_of(tables(), name)


def hidden_of(catalog: Tables, name: str) -> tuple[str, ...]:
    """A view and the hidden views that its minima and maxima are in."""
    return (name, *dict.fromkeys(extreme.table for extreme in catalog.views[name].plan.extremes))


@cache
def range_map() -> RangeMap:
    """Every table, index and view begins a range; most are cut inside, too. Counters are all in one place."""
    made = tables()
    inside = {
        "accounts": key("accounts", ACCOUNTS // 2),
        "products": key("products", PRODUCTS // 2),
        "events": key("events", EVENTS // 2),
        "lists": key("lists", LISTS // 2),
        "by_branch": made.views["by_branch"].plan.keys.encode((BRANCHES // 2,)),
        "by_category": made.views["by_category"].plan.keys.encode((CATEGORIES[2],)),
        "extremes": made.views["extremes"].plan.keys.encode((PRODUCTS // 2,)),
        "event_rows": made.views["event_rows"].plan.keys.encode((EVENTS // 3, 0)),
        "left_rows": made.views["left_rows"].plan.bound_of((PRODUCTS // 3,)),
    }
    starts = [b""]
    # The rows of steps are in the first range.
    for name in (*(name for name in made.by_name if name != STEPS), *made.views):
        rows = made.source(name)
        starts.append(table_range(rows.table.id)[0])
        starts += [table_range(entries.index.id)[0] for entries in rows.indexes]
        if name in inside:
            starts.append(inside[name])
    index = made.by_name["events"].indexes[0]
    starts.append(index.codec.prefix_of((0, PRODUCTS // 2, 0)))
    hidden = made.views["extremes"].values[0].plan
    starts.append(hidden.keys.encode((PRODUCTS // 2, 50)))
    starts.sort()
    return RangeMap(1, tuple(starts), tuple(LTMS[number % len(LTMS)] for number in range(len(starts))))


class Bursts(NamedTuple):
    """Clients work for the first `work_ms` of every `period_ms`: long runs with few events."""

    work_ms: int
    period_ms: int

    def next_ms(self, at_ms: int) -> int:
        """When whoever wants to work at `at_ms` does."""
        into_ms = at_ms % self.period_ms
        return at_ms if into_ms < self.work_ms else at_ms - into_ms + self.period_ms


class Client:
    """It never crashes: it stands for the world outside. `operations` are chosen by weight."""

    def __init__(
        self,
        host: Host,
        working_ms: int,
        operations: dict[str, int] | None = None,
        think_ms_max: int = THINK_MS_MAX,
        answer_ms_max: int = ANSWER_MS_MAX,
        coordinators: tuple[str, ...] = COORDINATORS,
        bursts: Bursts | None = None,
    ) -> None:
        self._host = host
        self._bursts = bursts
        self._working_ms = working_ms
        self._think_ms_max = think_ms_max
        self._answer_ms_max = answer_ms_max
        self._coordinators = coordinators
        self._weights = OPERATIONS_WEIGHTS if operations is None else operations
        self._place = int(host.name.rpartition("-")[2])
        self._end_ms = 0
        self._transactions = 0
        self._questions = 0
        #: The highest timestamp that it knows of, and some that it read at.
        self.latest_ts = 0
        self._read_at: list[int] = []
        self._operation: Operation | None = None
        self._open: ReadAt | Submit | None = None
        #: A question whose answer came in pages, and those that came.
        self._page: tuple[ReadAt, RowsAt] | None = None
        self._asked = 0
        #: Whether what it does now is given up if it is not answered: then it never hears what became of it.
        self.abandons = False

    # The four inputs.

    def start(self, now_ms: int, disk: Sequence[object], incarnation: int) -> Outputs:
        self._end_ms = now_ms + self._working_ms
        return self._think(now_ms)

    def receive(self, sender: str, message: object, now_ms: int) -> Outputs:
        open_ = self._open
        if isinstance(message, Outcome):
            self._host.note("outcome", message)
            if message.state == COMMITTED:
                self.latest_ts = max(self.latest_ts, message.commit_ts)
            if isinstance(open_, Submit) and open_.tx_id == message.tx_id:
                return self._go_on(message, now_ms)
        elif isinstance(message, RowsAt) and isinstance(open_, ReadAt) and open_.number == message.number:
            if not message.error:
                open_, message = self._joined(open_, message)
                rest = rest_of(open_, message)
                if rest is not None:
                    self._page = (open_, message)
                    self._open, self._asked = rest, 0
                    return self._ask(now_ms)
            self._host.note("read", open_, message)
            if not message.error:
                self.latest_ts = max(self.latest_ts, message.at)
                self._read_at.append(message.at)
            return self._go_on(None if message.error else message, now_ms)
        return NOTHING

    def _joined(self, question: ReadAt, answer: RowsAt) -> tuple[ReadAt, RowsAt]:
        """What was asked for first, and all that is known of it."""
        if self._page is None:
            return question, answer
        first, known = self._page
        return first, with_more(known, answer)

    def persisted(self, lsn: int, now_ms: int) -> Outputs:
        raise AssertionError("a client writes nothing")

    def timer(self, token: object, now_ms: int) -> Outputs:
        if token == "next":
            if now_ms >= self._end_ms:
                self._host.note("done")
                return NOTHING
            self.abandons = False
            self._operation = self._choose()
            return self._go_on(None, now_ms)
        if self._open is None or token != self._questions:
            return NOTHING
        if self._asked >= READS_MAX if isinstance(self._open, ReadAt) else self.abandons:
            return self._go_on(None, now_ms)
        return self._ask(now_ms)

    # Asking.

    def _go_on(self, answer: RowsAt | Outcome | None, now_ms: int) -> Outputs:
        assert self._operation is not None
        self._open = self._page = None
        self._asked = 0
        try:
            self._open = next(self._operation) if answer is None else self._operation.send(answer)
        except StopIteration:
            return self._think(now_ms)
        return self._ask(now_ms)

    def _think(self, now_ms: int) -> Outputs:
        at_ms = now_ms + self._host.random.randint(1, self._think_ms_max)
        if self._bursts is not None:
            at_ms = self._bursts.next_ms(at_ms)
        return Outputs(timers=((at_ms, "next"),))

    def _ask(self, now_ms: int) -> Outputs:
        """Again, and of another coordinator, if it was asked before."""
        open_ = self._open
        assert open_ is not None
        self._questions += 1
        again = self._asked > 0
        self._asked += 1
        if isinstance(open_, ReadAt):
            open_ = open_._replace(number=self._place << 32 | self._questions)
            self._host.note("reads", open_.number)
        else:
            if not again:
                self._host.note("submit", open_)
            open_ = open_._replace(again=again)
        self._open = open_
        coordinator = self._coordinators[(self._place + self._questions) % len(self._coordinators)]
        return Outputs(send=((coordinator, open_),), timers=((now_ms + self._answer_ms_max, self._questions),))

    # What it does.

    def _choose(self) -> Operation:
        if not self.latest_ts:
            return self._first()
        name = self._host.random.choices(list(self._weights), list(self._weights.values()))[0]
        return OPERATIONS[name](self, self._host.random)

    def _first(self) -> Operation:
        """A transaction's name has a timestamp in it: one is drawn by reading nothing."""
        yield ReadAt(0, 0, ())

    def submit(
        self, writes: dict[str, dict[bytes, Intent]], read: RowsAt | None = None, asked: ReadAt | None = None
    ) -> Submit:
        self._transactions += 1
        tx_id = (self._place * 1_000_000 + self._transactions, self.latest_ts)
        wanted: Intents = tuple((name, tuple(intents.items())) for name, intents in writes.items())
        if read is None or asked is None:
            return Submit(tx_id, False, wanted)
        return Submit(tx_id, False, wanted, read.at, asked.keys, asked.ranges)

    def some_time(self, random: Random) -> int:
        """A new timestamp, or one that was read at before."""
        if self._read_at and random.random() < 0.3:
            return random.choice(self._read_at[-20:])
        return 0


def _put(row: Row, expect: int = ANY) -> Intent:
    return (expect, row, None, True)


DELETE: Intent = (ANY, None, None, True)


def transfer(client: Client, random: Random) -> Operation:
    """Some money goes from one account to others. Now and then an account moves to another branch with it."""
    numbers = random.sample(range(ACCOUNTS), random.choice((2, 2, 2, 3)))
    asked = ReadAt(0, 0, tuple(key("accounts", number) for number in numbers))
    read = cast("RowsAt | None", (yield asked))
    if read is None:
        return
    amounts = [random.randint(1, 50) for _ in numbers[1:]]
    writes = {}
    for number, amount, (_, row) in zip(numbers, [-sum(amounts), *amounts], read.rows, strict=True):
        _, branch, balance = (number, number % BRANCHES, 0) if row is None else cast("tuple[int, int, int]", row)
        if random.random() < 0.1:
            branch = random.randrange(BRANCHES)
        writes[key("accounts", number)] = _put((number, branch, balance + amount))
    yield client.submit({"accounts": writes}, read, asked)


def append(client: Client, random: Random) -> Operation:
    """A name that nobody else has goes to the end of one list, or of two, or of one of two that were read."""
    numbers = random.sample(range(LISTS), random.choice((1, 2, 2)))
    return append_to(client, numbers, random.randint(1, len(numbers)))


def append_to_last(client: Client, random: Random) -> Operation:
    return append_to(client, [LISTS - 1], 1)


def watch(client: Client, random: Random) -> Operation:
    """The last list is only looked at."""
    return append_to(client, [0, LISTS - 1], 1)


def append_to(client: Client, numbers: list[int], written: int) -> Operation:
    asked = ReadAt(0, 0, tuple(key("lists", number) for number in numbers))
    read = cast("RowsAt | None", (yield asked))
    if read is None:
        return
    name = str(client._place * 1_000_000 + client._transactions + 1)
    writes = {}
    for number, (_, row) in list(zip(numbers, read.rows, strict=True))[:written]:
        items = name if row is None else f"{row[1]} {name}"
        writes[key("lists", number)] = _put((number, items))
    yield client.submit({"lists": writes}, read, asked)


def count(client: Client, random: Random) -> Operation:
    number = random.randrange(COUNTERS)
    asked = ReadAt(0, 0, (key("counters", number),))
    read = cast("RowsAt | None", (yield asked))
    if read is None:
        return
    row = read.rows[0][1]
    value = 0 if row is None else cast(int, row[1])
    yield client.submit({"counters": {asked.keys[0]: _put((number, value + 1))}}, read, asked)


def write_events(client: Client, random: Random) -> Operation:
    """Blind: puts, inserts that may fail, changes of a column, deletes of what may not be there."""
    writes: dict[bytes, Intent] = {}
    for number in random.sample(range(EVENTS), random.choice((1, 1, 2, 3, 5))):
        row = (number, random.randrange(PRODUCTS), random.randint(1, 100))
        choice = random.random()
        if choice < 0.3:
            intent = DELETE
        elif choice < 0.35:
            intent = _put(row, ABSENT)
        elif choice < 0.45:
            intent = (ANY, row, {2: row[2]}, True)
        else:
            intent = _put(row)
        writes[key("events", number)] = intent
    client.abandons = random.random() < ABANDONED_RATIO
    yield client.submit({"events": writes})


def insert_or_delete(client: Client, random: Random) -> Operation:
    """Of few rows: what fails now could be done a moment later."""
    number = random.randrange(4)
    row = (number, random.randrange(PRODUCTS), random.randint(1, 100))
    yield client.submit({"events": {key("events", number): _put(row, ABSENT) if random.random() < 0.6 else DELETE}})


def write_products(client: Client, random: Random) -> Operation:
    number = random.randrange(PRODUCTS)
    row = (number, random.choice(CATEGORIES), random.randint(1, 30))
    writes = {"products": {key("products", number): DELETE if random.random() < 0.2 else _put(row)}}
    if random.random() < 0.3:
        event = random.randrange(EVENTS)
        writes["events"] = {key("events", event): _put((event, number, random.randint(1, 100)))}
    yield client.submit(writes)


def crowd(client: Client, random: Random, rows: int = 5) -> Operation:
    """Blind, and what everybody else writes, too, in any order."""
    writes = {}
    for number in random.sample(range(PRODUCTS), rows):
        writes[key("products", number)] = _put((number, random.choice(CATEGORIES), random.randint(1, 30)))
    yield client.submit({"products": writes})


def note_state(client: Client, random: Random) -> Operation:
    """What a view or a range shows decides what is written: it must still hold at the commit."""
    if random.random() < 0.5:
        name = random.choice(("by_category", "extremes", "busy"))
        asked = ReadAt(0, 0, (), tuple(whole(each) for each in with_hidden(name)))
    else:
        low = random.randrange(EVENTS - 8)
        asked = ReadAt(0, 0, (), ((key("events", low), key("events", low + 8), 0, False),))
    read = cast("RowsAt | None", (yield asked))
    if read is None:
        return
    number = random.randrange(EVENTS)
    cost = 1 + sum(len(rows) for rows in read.ranges)
    yield client.submit(
        {"events": {key("events", number): _put((number, random.randrange(PRODUCTS), cost))}}, read, asked
    )


def top_up(client: Client, random: Random) -> Operation:
    """What one row of a view shows decides about a change that makes it show something else."""
    product = random.randrange(POPULAR)
    asked = ReadAt(0, 0, (view_key("busy", product),))
    read = cast("RowsAt | None", (yield asked))
    if read is None:
        return
    row, number = read.rows[0][1], random.randrange(EVENTS)
    cost = 1 if row is None else 1 + len(row)
    yield client.submit({"events": {key("events", number): _put((number, product, cost))}}, read, asked)


def buy(client: Client, random: Random) -> Operation:
    """Blind, of what everybody buys."""
    writes = {}
    for number in random.sample(range(EVENTS), random.choice((1, 1, 2))):
        row = (number, random.randrange(POPULAR), random.randint(1, 100))
        writes[key("events", number)] = DELETE if random.random() < 0.3 else _put(row)
    yield client.submit({"events": writes})


def look(client: Client, random: Random) -> Operation:
    """A snapshot of some tables and views, whole, and of some keys."""
    names: list[str] = []
    for name in random.sample(list(VIEWS), random.choice((1, 1, 2, 3))):
        names += with_hidden(name)
    names += random.sample([name for name in tables().by_name if name != STEPS], random.choice((0, 1, 2)))
    if random.random() < 0.5:
        names += ["bank", "accounts", "lists"]
    keys = [key("counters", random.randrange(COUNTERS)), key("events", random.randrange(EVENTS))]
    yield ReadAt(0, client.some_time(random), tuple(keys), tuple(whole(name) for name in dict.fromkeys(names)))


def look_at_end(client: Client, random: Random) -> Operation:
    """The first or last rows of a range that has several owners."""
    name = random.choice(("events", "products", "event_rows"))
    start, stop, _, _ = whole(name)
    yield ReadAt(0, client.some_time(random), (), ((start, stop, random.randint(1, 4), random.random() < 0.5),))


OPERATIONS: dict[str, Callable[[Client, Random], Operation]] = {
    "transfer": transfer,
    "append": append,
    "append_to_last": append_to_last,
    "watch": watch,
    "count": count,
    "write_events": write_events,
    "write_products": write_products,
    "insert_or_delete": insert_or_delete,
    "crowd": crowd,
    "hoard": partial(crowd, rows=PRODUCTS),
    "note_state": note_state,
    "top_up": top_up,
    "buy": buy,
    "look": look,
    "look_at_end": look_at_end,
}
OPERATIONS_WEIGHTS = {
    "transfer": 22,
    "append": 12,
    "count": 8,
    "write_events": 22,
    "write_products": 8,
    "note_state": 5,
    "top_up": 6,
    "buy": 6,
    "look": 20,
    "look_at_end": 3,
}
