from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.cli import app
from flows.console import Outcome, command, run
from tasks.errors import BadInputError, QuantgateError, TransientError


def made(error: BaseException | None = None, code: int = 0) -> typer.Typer:
    toy = typer.Typer()
    toy.callback()(lambda: None)

    def body(number: int = 1) -> Outcome:
        if error is not None:
            raise error
        return Outcome(payload={"number": number}, code=code, shown=["shown to people"])

    command(toy, "do")(body)
    return toy


def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made(code=3), ["do", "--number", "7", "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"number": 7}


def test_people_see_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made(), ["do"]) == 0
    assert "shown to people" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInputError("bad", "Wrong.", "Mend it."), 2),
        (TransientError("slow", "Late.", "Again."), 1),
        (QuantgateError("odd", "Odd.", "Look."), 1),
        (ValueError("two\nlines"), 1),
    ],
)
def test_an_error_is_one_line_or_one_object(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    assert run(made(error), ["do"]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert run(made(error), ["do", "--json"]) == code
    told = capsys.readouterr()
    assert set(json.loads(told.out)["error"]) == {"code", "message", "remedy"}
    assert "Traceback" not in told.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    run(made(BadInputError("bad", "Wrong.", "Mend it.")), ["do", "--debug"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["release"],
        ["release", "absent.yaml"],
        ["release", "deployments/demo/release.yaml", "--set", "gates.gsm8k.min_accuracy=1.01"],
        ["release", "deployments/demo/release.yaml", "--set", "nonsense"],
        ["audit", "absent-folder"],
        ["gate", "gsm8k", "--url", "nope"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--data", "absent.jsonl"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--min-accuracy", "1.2"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--engine", "tgi"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--rule", "non-inferior"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--baseline", "absent-folder"],
        ["gate", "gsm8k", "--url", "http://127.0.0.1:9", "--data", "README.md"],
        ["gate", "acceptance", "--url", "http://127.0.0.1:9"],
        ["gate", "acceptance", "--url", "http://127.0.0.1:9", "--draft-tokens", "1"],
        ["gate", "smoke", "--url", "http://127.0.0.1:9", "--resume", "absent-folder"],
        ["gate", "smoke", "--url", "http://127.0.0.1:9", "--out", "tests"],
        ["patches", "--sglang", "absent-folder"],
        ["requant", "--source", "a", "--quantized", "b"],
        ["deploy"],
        ["card", "--release", "absent-folder"],
        ["publish", "--release", "absent-folder"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2_with_one_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    before = set(Path.cwd().iterdir())
    assert run(app, [*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] and error["remedy"]
    assert set(Path.cwd().iterdir()) == before


def test_no_command_is_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == 2
    assert "No command was given." in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("quantgate ")


def test_deploying_to_no_server_is_a_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9/api"
    monkeypatch.setenv("PREFECT_API_URL", nowhere)
    with temporary_settings({PREFECT_API_URL: nowhere}):
        assert run(app, ["deploy", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "server-unreachable" and nowhere in error["message"]


def test_an_interrupt_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(made(KeyboardInterrupt()), ["do"]) == 1
    assert capsys.readouterr().err == "Error: Interrupted. Run again to go on.\n"
