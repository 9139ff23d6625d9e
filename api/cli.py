"""The command line: `viewtide demo` and its relatives."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .changetables.errors import Error, NotSupportedError

if TYPE_CHECKING:
    from .cluster_commands import ClusterCommands
    from .database import Database
    from .key_files import KeyDirectory

SECONDS_MIN, SECONDS_MAX = 2.0, 3600.0
WRITERS_MAX = 64
#: Rows of one result that `viewtide sql` prints unless told otherwise. As JSON it prints all: a program reads it.
ROWS_SHOWN = 1_000
EXIT_FAILED = 1
#: What hints call by the names of Python's arguments.
OPTIONS = {
    "keys": "--keys",
    "server_key": "--server-key",
    "allowed": "--allowed",
    "insecure": "--insecure",
    "listen": "--listen",
}
#: What a shell reports for a program that Ctrl-C has ended.
EXIT_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="viewtide",
    help="ACID transactions and materialized views that stay right, on a key-value store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"viewtide {__version__}")
        raise typer.Exit


@app.callback()
def viewtide(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """ACID transactions and materialized views that stay right, on a key-value store."""


DEMO_HELP = (
    "Watch a live view survive kill -9.\n\n"
    "A dashboard of costs per category, kept by a synchronous view while writers commit as fast as they can. "
    "In the middle the writer process is killed with kill -9, and a new one recovers. All the time the stored view is "
    "compared with a recompute at the same snapshot; at the end every acknowledged commit must be there, and none half "
    "there.\n\n"
    "The exit code is 0 only if everything held."
)


@app.command(help=DEMO_HELP)
def demo(
    seconds: Annotated[
        float, typer.Option(min=SECONDS_MIN, max=SECONDS_MAX, help="How long it runs, beside start-up and last check.")
    ] = 15.0,
    writers: Annotated[int, typer.Option(min=1, max=WRITERS_MAX, help="Threads that write at the same time.")] = 4,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where the database goes, and stays; without it, a temporary directory."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
) -> None:
    if directory is not None:
        _check_new(directory)
    # Imported here: --help and --version need none of it.
    from .demo import run_demo

    with _ended_properly():
        held = run_demo(seconds, writers, directory, as_json)
    if not held:
        raise typer.Exit(EXIT_FAILED)


SERVE_HELP = (
    "Serve a database to clients in other processes, until Ctrl-C or SIGTERM.\n\n"
    "PATH is a directory, created if missing. Clients connect with viewtide.connect(ADDRESS). Without keys, only "
    "processes of this machine can; with --keys and --allowed (see: viewtide keys), whoever is on the list."
)


@app.command(help=SERVE_HELP)
def serve(
    path: Annotated[str, typer.Argument(help="The directory of the database, or memory:", show_default=False)],
    listen: Annotated[
        str, typer.Option(help="tcp://host:port (port 0: any that is free) or ipc://path.")
    ] = "tcp://127.0.0.1:7400",
    own_keys: Annotated[Path | None, typer.Option("--keys", help="The file of the node's own key.")] = None,
    allowed: Annotated[Path | None, typer.Option(help="The list of the keys that may connect.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, whoever can reach the address. For private networks only.")
    ] = False,
    view_managers: Annotated[int, typer.Option(min=1, help="Those who refresh deferred views.")] = 1,
    metrics: Annotated[
        str, typer.Option(help="host:port of /metrics, /healthz and /readyz, without keys.", show_default="none")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Say in JSON where it listens.")] = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .database import connect
    from .serve import run_serve

    with _ended_properly(terminated=0):
        run_serve(
            lambda: connect(path, view_managers=view_managers),
            not (Path(path) / "store").exists(),
            listen,
            keys=own_keys,
            allowed=allowed,
            insecure=insecure,
            metrics=metrics,
            as_json=as_json,
            out=sys.stdout,
        )


OwnKey = Annotated[
    Path | None, typer.Option("--keys", help="The file of your own key, for a node that wants one.", show_default=False)
]
ServerKey = Annotated[
    str, typer.Option("--server-key", help="The public key of the node; a cluster's are known.", show_default=False)
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="A node on another machine may have no keys. For private networks only.")
]

SQL_HELP = (
    "Run SQL on a database: from the terminal, from a script on the standard input, or from -c.\n\n"
    "PATH is a directory, created if missing; without it the database is in memory and gone at the end. Statements end "
    "with a semicolon, and each commits by itself unless it stands between BEGIN and COMMIT. In a terminal, \\? lists "
    "the commands.\n\n"
    "The exit code is 1 after an error; a script ends with its first one."
)


@app.command(help=SQL_HELP)
def sql(
    path: Annotated[
        str, typer.Argument(help="A directory, memory:, or the address of a served node.", show_default=True)
    ] = "memory:",
    texts: Annotated[
        list[str] | None, typer.Option("--command", "-c", help="Statements to run instead of the input; may repeat.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each statement.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Rows of a result that are printed; 0 for all.",
            show_default=f"{ROWS_SHOWN}, with --json all",
        ),
    ] = None,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .shell import run_shell

    if limit is None:
        limit = 0 if as_json else ROWS_SHOWN
    with _ended_properly():
        is_new = _is_missing(path)
        with _opened(path, own_keys, server_key, insecure) as database:
            if is_new:  # or a name that is mistyped, whose tables would be missed without a reason
                typer.echo(f"made a new database in {path}", err=True)
            fine = run_shell(
                database, texts or None, as_json=as_json, limit=limit, source=sys.stdin, out=sys.stdout, err=sys.stderr
            )
    if not fine:
        raise typer.Exit(EXIT_FAILED)


STATUS_HELP = (
    "Show what a database is doing: figures, view managers, and how far its views are behind.\n\n"
    "PATH is the directory of a database; if a process has it open, that one is asked. Or it is an address. --watch "
    "shows it again and again in a terminal, until Ctrl-C; elsewhere it is printed once."
)
VIEWS_HELP = (
    "Show everything about views: mode, lag, backlog, the cost of the last step, evaluator, hot groups, failures.\n\n"
    "PATH is the directory of a database; if a process has it open, that one is asked. Or it is an address. Without "
    "VIEWS all views are shown. --watch shows them again and again in a terminal, until Ctrl-C; elsewhere they are "
    "printed once."
)
DatabasePath = Annotated[
    str, typer.Argument(help="The directory of a database, or an address as `connect` takes it.", show_default=False)
]
Watched = Annotated[bool, typer.Option("--watch", help="Show it live in a terminal.")]


@app.command(help=STATUS_HELP)
def status(
    path: DatabasePath,
    watch: Watched = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .status import run_status
    from .targets import ZK, scheme_of

    with _ended_properly(), _known(path, own_keys, server_key, insecure) as database:
        is_cluster = scheme_of(path) == ZK
        run_status(database, as_json=as_json, watch=watch, out=sys.stdout, err=sys.stderr, is_cluster=is_cluster)


@app.command(help=VIEWS_HELP)
def views(
    path: DatabasePath,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[VIEWS]...", help="Names of views.", show_default=False)
    ] = None,
    watch: Watched = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each view.")] = False,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .status import run_views

    with _ended_properly(), _known(path, own_keys, server_key, insecure) as database:
        run_views(database, names or (), as_json=as_json, watch=watch, out=sys.stdout, err=sys.stderr)


VERIFY_HELP = (
    "Compare views with their definitions evaluated from scratch.\n\n"
    "PATH is the directory of a database; if a process has it open, that one is asked. Or it is an address. Without "
    "VIEWS all views are compared. A view that differs is named with its rows; --repair makes exactly these right, and "
    "those of the views made from it.\n\n"
    "The exit code is 1 if a view differs and was not repaired."
)


@app.command(help=VERIFY_HELP)
def verify(
    path: DatabasePath,
    views: Annotated[list[str] | None, typer.Argument(help="Names of views.", show_default=False)] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Make the rows right that differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object for each view.")] = False,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .verify import run_verify

    with _ended_properly(), _known(path, own_keys, server_key, insecure) as database:
        fine = run_verify(database, views or (), repair=repair, as_json=as_json, out=sys.stdout, err=sys.stderr)
    if not fine:
        raise typer.Exit(EXIT_FAILED)


LOAD_HELP = (
    "Load files into a table, as one transaction: all rows of all files, or none.\n\n"
    "FILES are CSV (the first line has the names), Parquet or JSON lines. The columns are those of the table, by name. "
    "Sync views change in the same moment, indexes and constraints are kept. --create makes the table if it is not "
    "there, with the types of the first file, and the database, too. - is the standard input; it needs --format."
)
FileFormat = Annotated[
    str, typer.Option("--format", help="csv, parquet or jsonl; without it, the suffix tells.", show_default=False)
]


@app.command(help=LOAD_HELP)
def load(
    table: Annotated[str, typer.Argument(help="The table.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(help="The files.", show_default=False)],
    into: Annotated[
        str, typer.Option("--into", help="The directory of a database, or the address of a node.", show_default=False)
    ],
    file_format: FileFormat = "",
    separator: Annotated[
        str, typer.Option(help="What separates the columns of CSV: a character, or tab.", show_default="a comma")
    ] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the table if it is missing.")] = False,
    key: Annotated[list[str] | None, typer.Option("--key", help="A column of the new table's key; may repeat.")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Let tasks of Spark read the files, one each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .file_commands import run_load
    from .files import opened_sources

    with _ended_properly():
        if not create:
            _check_known(into, "'--into'", "; check the name, or let --create make it")
        with_spark = None
        if spark:
            from .spark.options import load_options

            own = None if own_keys is None else str(own_keys)
            with_spark = load_options(into, table, own, server_key, insecure=insecure)
        with (
            opened_sources(files, file_format, separator, sys.stdin) as sources,
            _opened(into, own_keys, server_key, insecure) as database,
        ):
            run_load(
                database,
                table,
                sources,
                create=create,
                key=key or (),
                as_json=as_json,
                out=sys.stdout,
                err=sys.stderr,
                spark=with_spark,
            )


EXPORT_HELP = (
    "Write a table or a view to a file, as it is at one moment.\n\n"
    "FILE is CSV, Parquet or JSON lines; `viewtide load` reads the same values from it again. With - rows go to the "
    "standard output, and how many they are to the standard error; a pipe or device gets them as they come. Both need "
    "--format, and take no Parquet."
)


@app.command(help=EXPORT_HELP)
def export(
    name: Annotated[str, typer.Argument(metavar="TABLE_OR_VIEW", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(help="The file; one that is there is replaced. - is the standard output.", show_default=False),
    ],
    source: Annotated[
        str, typer.Option("--from", help="The directory of a database, or the address of a node.", show_default=False)
    ],
    file_format: FileFormat = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    own_keys: OwnKey = None,
    server_key: ServerKey = "",
    insecure: Insecure = False,
) -> None:
    # Imported here: --help and --version need none of it.
    from .file_commands import run_export

    with _ended_properly(), _known(source, own_keys, server_key, insecure, "'--from'") as database:
        run_export(database, name, file, wanted=file_format, as_json=as_json, out=sys.stdout, err=sys.stderr)


keys = typer.Typer(
    name="keys",
    help="The keys by which processes and clients know each other.\n\n"
    "A directory holds NAME.key for each key, readable by its owner only, and the list of all keys that are allowed. "
    "Servers look at the list again when it changes.",
    no_args_is_help=True,
)
app.add_typer(keys)
KeysIn = Annotated[Path, typer.Option("--dir", help="The directory with the keys and the list.", show_default=False)]
KeyName = Annotated[str, typer.Argument(help="Whose key it is.", show_default=False)]
Role = Annotated[str, typer.Option(help="client, ltm, view-manager or admin.", show_default=False)]
KeysJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@keys.command("new", help="Make a key and put it on the list.")
def new_key(name: KeyName, role: Role, directory: KeysIn, as_json: KeysJson = False) -> None:
    with _ended_properly():
        _key_directory(directory, as_json).new(name, role)


@keys.command("allow", help="Put a public key on the list whose owner keeps the secret one to himself.")
def allow_key(
    name: KeyName,
    public: Annotated[str, typer.Argument(help="The public key.", show_default=False)],
    role: Role,
    directory: KeysIn,
    as_json: KeysJson = False,
) -> None:
    with _ended_properly():
        _key_directory(directory, as_json).allow(name, role, public)


@keys.command("list", help="Show who is allowed.")
def list_keys(directory: KeysIn, as_json: KeysJson = False) -> None:
    with _ended_properly():
        _key_directory(directory, as_json).list()


@keys.command("rotate", help="Make a new key for a name. The old one stays allowed until it is revoked.")
def rotate_key(name: KeyName, directory: KeysIn, as_json: KeysJson = False) -> None:
    with _ended_properly():
        _key_directory(directory, as_json).rotate(name)


@keys.command("revoke", help="Take the keys of a name, or one public key, off the list.")
def revoke_keys(
    name: Annotated[str, typer.Argument(help="A name or a public key.", show_default=False)],
    directory: KeysIn,
    old: Annotated[bool, typer.Option("--old", help="All but the newest key of the name.")] = False,
    as_json: KeysJson = False,
) -> None:
    with _ended_properly():
        _key_directory(directory, as_json).revoke(name, only_old=old)


def _key_directory(directory: Path, as_json: bool) -> KeyDirectory:
    # Imported here: --help and --version need none of it.
    from .key_files import KeyDirectory

    return KeyDirectory(directory, as_json=as_json, out=sys.stdout)


PROCESS_HELP = (
    "Run a process of a cluster in the foreground, until SIGTERM or Ctrl-C.\n\n"
    "The configuration is a TOML file; --example prints one with all keys and their meanings. Log lines are JSON, on "
    "the standard error. The exit code is 65 if what it read is damaged, 69 if another process has taken its name, 70 "
    "after a defect."
)
ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="The configuration, a TOML file.", show_default=False)
]
Example = Annotated[bool, typer.Option("--example", help="Print a configuration with all keys, and exit.")]


LTM_HELP = "Run an LTM: it owns key ranges, coordinates transactions, and may lead the cluster.\n\n" + PROCESS_HELP


@app.command("ltm", help=LTM_HELP)
def ltm(config: ConfigPath = None, example: Example = False) -> None:
    _run_process("ltm", config, example)


@app.command("view-manager", help="Run a view manager: it refreshes deferred views.\n\n" + PROCESS_HELP)
def view_manager(config: ConfigPath = None, example: Example = False) -> None:
    _run_process("view-manager", config, example)


def _run_process(role: str, config: Path | None, example: bool) -> None:
    # Imported here: --help and --version need none of it.
    from .process_config import example_config, load_config

    if example:
        typer.echo(example_config(role), nl=False)
        return
    if config is None:
        raise typer.BadParameter("name a configuration, or print one with --example", param_hint="'--config'")
    with _ended_properly(has_options=False):
        settings = load_config(config)
        try:
            from .cluster_process import run_process
        except ImportError as error:
            raise _without_extra(error) from error
        code = run_process(settings, role)
    raise typer.Exit(code)


cluster = typer.Typer(
    name="cluster",
    help="A development cluster on this machine: ZooKeeper, HBase, LTMs and view managers, in one directory.\n\n"
    "It listens on this machine only, without keys. For production see `viewtide ltm` and `viewtide view-manager`.",
    no_args_is_help=True,
)
app.add_typer(cluster)
ClusterIn = Annotated[Path, typer.Option("--dir", help="The directory of the cluster.", show_default=False)]
ClusterJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ProcessName = Annotated[str, typer.Argument(help="A process, for example ltm-2.", show_default=False)]
SourceName = Annotated[str, typer.Argument(help="A table or view.", show_default=False)]


#: What `up` takes where nothing is said.
NEW_OR_KEPT = "{}, or as it was"


@cluster.command("up", help="Start a cluster, or what is missing of it. The data in the directory stays.")
def cluster_up(
    directory: ClusterIn,
    ltms: Annotated[int | None, typer.Option(min=1, help="LTM processes.", show_default=NEW_OR_KEPT.format(3))] = None,
    view_managers: Annotated[
        int | None, typer.Option(min=0, help="View managers.", show_default=NEW_OR_KEPT.format(2))
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="local: logs here, rows in memory, and of the servers only ZooKeeper. hbase: both in HBase.",
            show_default=NEW_OR_KEPT.format("hbase"),
        ),
    ] = None,
    as_json: ClusterJson = False,
) -> None:
    with _ended_properly():
        _cluster(directory, as_json).up(ltms, view_managers, storage)


@cluster.command("status", help="Show processes, key ranges, and who leads.")
def cluster_status(directory: ClusterIn, as_json: ClusterJson = False) -> None:
    with _ended_properly():
        _cluster(directory, as_json).status()


@cluster.command("down", help="End all processes. The data stays; `up` goes on with it.")
def cluster_down(directory: ClusterIn, as_json: ClusterJson = False) -> None:
    with _ended_properly():
        _cluster(directory, as_json).down()


@cluster.command("kill", help="End a process with kill -9, to see the others take over.")
def cluster_kill(name: ProcessName, directory: ClusterIn, as_json: ClusterJson = False) -> None:
    with _ended_properly():
        _cluster(directory, as_json).kill(name)


@cluster.command("start", help="Start a process again that was killed.")
def cluster_start(name: ProcessName, directory: ClusterIn, as_json: ClusterJson = False) -> None:
    with _ended_properly():
        _cluster(directory, as_json).start(name)


@cluster.command("add", help="Add a process: ltm or view-manager.")
def cluster_add(
    role: Annotated[str, typer.Argument(help="ltm or view-manager.", show_default=False)],
    directory: ClusterIn,
    as_json: ClusterJson = False,
) -> None:
    with _ended_properly():
        _cluster(directory, as_json).add(role)


@cluster.command("split", help="Let a key range begin at a key of a table or view, or at its first one.")
def cluster_split(
    table: SourceName,
    directory: ClusterIn,
    key: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Its columns, as JSON.", show_default=False)
    ] = None,
    as_json: ClusterJson = False,
) -> None:
    with _ended_properly():
        _cluster(directory, as_json).split(table, key or [])


@cluster.command("move", help="Move the keys of a table or view, or a part of them, to another LTM.")
def cluster_move(
    table: SourceName,
    target: Annotated[str, typer.Option("--to", help="The LTM process that gets them.", show_default=False)],
    directory: ClusterIn,
    start: Annotated[list[str] | None, typer.Option("--from", help="The first key; a column each, as JSON.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--before", help="The key that ends it; a column each.")] = None,
    as_json: ClusterJson = False,
) -> None:
    with _ended_properly():
        _cluster(directory, as_json).move(table, start or [], stop or [], target)


def _cluster(directory: Path, as_json: bool) -> ClusterCommands:
    # Imported here: --help and --version need none of it.
    try:
        from .cluster_commands import ClusterCommands
    except ImportError as error:
        raise _without_extra(error) from error

    return ClusterCommands(directory, as_json=as_json, out=sys.stdout)


def _without_extra(error: ImportError) -> NotSupportedError:
    return NotSupportedError(f"a cluster needs {error.name}", hint="pip install 'viewtide[cluster]'")


def _opened(path: str, own_keys: Path | None, server_key: str, insecure: bool) -> Database:
    """A database to look at: through the process that has it open, if there is one."""
    from .database import connect
    from .open_socket import running_address
    from .targets import MEMORY, scheme_of

    is_directory = path != MEMORY and not scheme_of(path)
    target = (running_address(Path(path)) or path) if is_directory else path
    return connect(target, keys=own_keys, server_key=server_key, insecure=insecure)


def _known(path: str, own_keys: Path | None, server_key: str, insecure: bool, said_by: str = "'PATH'") -> Database:
    """One that is there already."""
    _check_known(path, said_by)
    return _opened(path, own_keys, server_key, insecure)


def _check_known(path: str, said_by: str, otherwise: str = "") -> None:
    from .targets import MEMORY

    if path == MEMORY or _is_missing(path):
        raise typer.BadParameter(f"there is no database in {path}{otherwise}", param_hint=said_by)


def _is_missing(path: str) -> bool:
    """Whether it is a directory without a database, where one would be made."""
    from .targets import MEMORY, scheme_of

    # Not Path.exists, which raises where one may not look: opening it tells that better.
    return path != MEMORY and not scheme_of(path) and not os.path.exists(os.path.join(path, "store"))


def _check_new(directory: Path) -> None:
    """The demo checks every row that it finds, so it needs a database of its own."""
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise typer.BadParameter(
            f"{directory} exists and is not an empty directory; name a new one", param_hint="'--dir'"
        )
    if not directory.resolve().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {directory.resolve().parent}", param_hint="'--dir'")


@contextmanager
def _ended_properly(terminated: int = EXIT_INTERRUPTED, *, has_options: bool = True) -> Iterator[None]:
    """Errors become a message and an exit code. An end from outside cleans up as Ctrl-C does: no process and no
    temporary directory stays behind. `terminated`: the exit code after SIGTERM, 0 for what runs until then.
    `has_options`: OPTIONS are the command's, not keys of a configuration."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signum)

    before = {ending: signal.getsignal(ending) for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for ending, handler in before.items():
        # Who runs under nohup means to stay when the terminal goes.
        if ending != signal.SIGHUP or handler is not signal.SIG_IGN:
            signal.signal(ending, interrupt)
    try:
        yield
    except KeyboardInterrupt as ended:
        typer.echo("stopped", err=True)
        raise typer.Exit(terminated if ended.args == (signal.SIGTERM,) else EXIT_INTERRUPTED) from None
    except Error as error:
        typer.echo(f"viewtide: {_with_options(str(error)) if has_options else error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


def _with_options(text: str) -> str:
    """Arguments of Python that a message names, by the names that they have here."""
    for argument, option in OPTIONS.items():
        text = text.replace(f"`{argument}`", option)
    return text


class _OutputError(OSError):
    """Of the standard output, not of a file of a database."""


class _StandardOutput(FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise _OutputError(error.errno, error.strerror) from None


@contextmanager
def _told_of_output() -> Iterator[None]:
    """Output that cannot be written is an error like any other: a line, and exit code 1. What the encoding of a
    terminal or a file lacks is replaced: the other characters are worth more than an error."""
    before = sys.stdout
    if before is None:  # it is closed, so nobody wants it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the end
    elif isinstance(before, TextIOWrapper):
        raw = BufferedWriter(_StandardOutput(before.fileno(), "w", closefd=False))
        lines = before.line_buffering or before.write_through
        sys.stdout = TextIOWrapper(raw, before.encoding, errors="replace", line_buffering=lines)
    try:
        try:
            yield
        finally:
            # Here, not at the end of the interpreter, which tells of a failure in three lines and with exit code 120.
            sys.stdout.flush()
    except _OutputError as error:
        if error.errno != errno.EPIPE:  # who reads no further, as `head` does, knows
            typer.echo(f"viewtide: the output cannot be written: {error.strerror}", err=True)
        # What is left of it is tried once more at the end of the interpreter.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.exit(EXIT_FAILED)


def main() -> None:
    """The program `viewtide`."""
    with _told_of_output():
        app(prog_name="viewtide")


if __name__ == "__main__":
    main()
