"""`python -m bench [COMMAND]`: without a command, all benches one after another. Every bench takes --json and --quick.

Exit status: 0 all went well, 1 a system gave a wrong answer, 2 the bench could not run (the message says why).
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import bulk, choice, dashboard, evaluators, hbase, intervals, machines, report, scale, served, spark, views
from .errors import BenchError

ALL = "all"
#: What `--json` means without a file.
STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Command:
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], dict[str, object]]


COMMANDS: dict[str, Command] = {
    "dashboard": Command(dashboard.SUMMARY, dashboard.add_arguments, dashboard.run),
    "choice": Command(choice.SUMMARY, choice.add_arguments, choice.run),
    "evaluators": Command(evaluators.SUMMARY, evaluators.add_arguments, evaluators.run),
    "bulk": Command(bulk.SUMMARY, bulk.add_arguments, bulk.run),
    "views": Command(views.SUMMARY, views.add_arguments, views.run),
    "intervals": Command(intervals.SUMMARY, intervals.add_arguments, intervals.run),
    "hbase": Command(hbase.SUMMARY, hbase.add_arguments, hbase.run),
    "spark": Command(spark.SUMMARY, spark.add_arguments, spark.run),
    "served": Command(served.SUMMARY, served.add_arguments, served.run),
    "scale": Command(scale.SUMMARY, scale.add_arguments, scale.run),
    "machines": Command(machines.SUMMARY, machines.add_arguments, machines.run),
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench", description="Benches of Viewtide against its peers.")
    commands = top.add_subparsers(dest="command", required=True)
    _add_common(commands.add_parser(ALL, help="every bench, with its defaults (the default command)"))
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.summary)
        _add_common(sub)
        command.add_arguments(sub)
    return top


def _add_common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=STANDARD_OUTPUT,
        metavar="FILE",
        help="write machine, rows and ratios to this file; without a name, print them, and all else to stderr",
    )
    sub.add_argument("--quick", action="store_true", help="the cells that matter most, within a minute or two")


def run_command(arguments: list[str]) -> None:
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = [ALL, *arguments]
    options = parser().parse_args(arguments)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise BenchError(f"--json {options.json}: there is no such folder")  # Now, not after minutes of measuring.
    if options.json == STANDARD_OUTPUT:
        with redirect_stdout(sys.stderr):
            result = _result(options)
        print(report.json_text(result))
        return
    result = _result(options)
    if options.json is not None:
        report.write_json(options.json, result)


def _result(options: argparse.Namespace) -> dict[str, object]:
    if options.command == ALL:
        return {name: COMMANDS[name].run(_defaults(name, options.quick)) for name in COMMANDS}
    return COMMANDS[options.command].run(options)


def _defaults(name: str, quick: bool) -> argparse.Namespace:
    return parser().parse_args([name, "--quick"] if quick else [name])


def _end_in_order(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds the stack like Ctrl-C, so that the server which the bench started is stopped and deleted."""
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        run_command(sys.argv[1:])
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
