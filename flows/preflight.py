"""What is checked before anything is spent or written: a wrong spec ends here, in one line."""

from __future__ import annotations

from pathlib import Path

from flows.approval import check_askable
from tasks.errors import BadInputError
from tasks.gates.paired import check_baseline
from tasks.hub.publish import preflight_publish
from tasks.quantize.preflight import check_source
from tasks.spec import FolderSource, ReleaseSpec


def preflight(spec: ReleaseSpec, root: Path) -> None:
    """Check all that can be checked without a download.

    Raises:
        BadInputError: names the file or field, and the remedy.
    """
    if isinstance(spec.source, FolderSource):
        check_source(spec, spec.source.path, root)
    gates = spec.gates
    _check_file("gates.smoke.prompts", gates.smoke.prompts)
    _check_file("gates.gsm8k.data", gates.gsm8k.data)
    check_baseline(gates.gsm8k.baseline)
    if gates.acceptance is not None:
        _check_file("gates.acceptance.prompts", gates.acceptance.prompts)
    check_askable(spec.publish.approval)
    preflight_publish(spec.publish)


def _check_file(field: str, path: Path | None) -> None:
    if path is None:
        return
    if not path.is_file() or path.stat().st_size == 0:
        fault = "is empty" if path.is_file() else "does not exist"
        raise BadInputError("file-missing", f"{field}: {path} {fault}.", "Give a JSONL file.")
