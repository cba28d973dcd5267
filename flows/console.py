"""The command line's manners: one JSON object or readable tables, one-line errors, exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tasks.artifacts import ReleaseVerdict, Verdict
from tasks.errors import QuantgateError

EXIT_CODES: Mapping[str, int] = {
    Verdict.PASS: 0,
    Verdict.FAIL: 3,
    Verdict.INVALID: 4,
    ReleaseVerdict.RELEASED: 0,
    ReleaseVerdict.UNCHANGED: 0,
    ReleaseVerdict.REJECTED: 3,
    ReleaseVerdict.INCONCLUSIVE: 4,
}
BAD_USAGE = 2
CTRL_C = 130
"""What typer returns when a command was interrupted."""
INTERRUPTED = {"code": "interrupted", "message": "Interrupted.", "remedy": "Run again to go on."}

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; logs on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True)
class Outcome:
    """What a command ends with: the JSON payload, the tables for people, the exit code."""

    payload: Mapping[str, Any]
    code: int = 0
    shown: Sequence[Table | str] = ()


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., Outcome]], None]:
    """Register a function that returns an Outcome; adds `--json` and `--debug` to it."""

    def register(function: Callable[..., Outcome]) -> None:
        @functools.wraps(function)
        def body(**options: Any) -> Outcome:
            options.pop("json_output")
            options.pop("debug")
            return function(**options)

        signature = inspect.signature(function, eval_str=True)
        more = [
            inspect.Parameter(
                "json_output", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json
            ),
            inspect.Parameter(
                "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
            ),
        ]
        parameters = [*signature.parameters.values(), *more]
        body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        body.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name)(body)

    return register


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        outcome = app(list(arguments), standalone_mode=False)
    except QuantgateError as error:
        return _fail(error.as_dict(), error.exit_code, as_json=as_json, debug=debug)
    except typer.exceptions.TyperException as error:
        message = error.format_message() or "No command was given."
        told = {"code": "usage", "message": message, "remedy": "See --help."}
        return _fail(told, BAD_USAGE, as_json=as_json, debug=debug)
    except (KeyboardInterrupt, typer.Abort):
        outcome = CTRL_C
    except Exception as error:
        told = {
            "code": "unexpected",
            "message": f"{type(error).__name__}: {' '.join(str(error).split())}",
            "remedy": "Run with --debug and report the traceback.",
        }
        return _fail(told, 1, as_json=as_json, debug=debug)
    if outcome == CTRL_C:
        return _fail(INTERRUPTED, 1, as_json=as_json, debug=debug)
    if not isinstance(outcome, Outcome):
        return int(outcome or 0)
    _show(outcome, as_json=as_json)
    return outcome.code


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table for people."""
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def quiet_tracebacks() -> None:
    """Prefect logs the traceback of every failure; ours say what to do in one line instead."""

    def without_traceback(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, QuantgateError):
            record.exc_info, record.exc_text = None, None
            record.msg, record.args = f"{error.code}: {error}", ()
        return True

    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(without_traceback)


def _show(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.payload, ensure_ascii=False))
        return
    console = Console()
    for part in outcome.shown:
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)


def _fail(told: dict[str, str], code: int, *, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    if as_json:
        print(json.dumps({"error": told}, ensure_ascii=False))
    else:
        print(f"Error: {told['message']} {told['remedy']}".rstrip(), file=sys.stderr)
    return code
