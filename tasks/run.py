"""One run of a release: its folder, its store, and the ledger of what each stage cost."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tasks.artifacts import GateReport
from tasks.errors import BadInputError
from tasks.progress import Progress, silent
from tasks.spec import ReleaseSpec
from tasks.store import Entry, Store, write_whole


@dataclass(frozen=True)
class StageNote:
    """What a stage cost in this run: wall-clock seconds, and whether it was reused."""

    stage: str
    seconds: float
    reused: bool
    why: str = ""

    @property
    def skipped(self) -> bool:
        """Whether there was nothing to do; `why` says so."""
        return bool(self.why)


@dataclass(frozen=True)
class Run:
    """One run of a release; everything it leaves for people lies in `folder`."""

    spec: ReleaseSpec
    id: str
    root: Path
    folder: Path
    store: Store
    ledger: list[StageNote] = field(default_factory=list)
    bar: Callable[[str], Progress] = lambda stage: silent

    @classmethod
    def start(
        cls, spec: ReleaseSpec, root: Path, bar: Callable[[str], Progress] = lambda stage: silent
    ) -> Run:
        """Make the run's folder `root/releases/<name>/<id>` and keep the spec in it.

        `bar(stage)` gives the listener that shows a stage's progress to a person.

        Raises:
            BadInputError: the root cannot be written.
        """
        run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = root.resolve() / "releases" / spec.name / run_id
        try:
            (folder / "logs").mkdir(parents=True)
        except OSError as error:
            raise BadInputError(
                "root-unwritable",
                f"--root {root}: {error.strerror}.",
                "Give a folder that can be written (--root or QUANTGATE_ROOT).",
            ) from error
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_whole(folder / "spec.yaml", text)
        return cls(
            spec=spec, id=run_id, root=root.resolve(), folder=folder, store=Store(root), bar=bar
        )

    def make(
        self,
        stage: str,
        inputs: Mapping[str, Any],
        build: Callable[[Path], Mapping[str, Any]],
        *,
        resume: bool = False,
    ) -> Entry:
        """The stage's artifact from the store, built if need be, noted in the ledger."""
        started = time.monotonic()
        entry = self.store.get_or_build(
            stage, inputs, build, resume=resume, holder=self.id, waiting=self.bar(stage)
        )
        self.note(stage, time.monotonic() - started, reused=entry.reused)
        return entry

    def note(self, stage: str, seconds: float, *, reused: bool = False, why: str = "") -> None:
        """Write what a stage cost into the ledger."""
        self.ledger.append(StageNote(stage, seconds, reused, why))

    def log(self, name: str) -> Path:
        """The path of one of the run's log files."""
        return self.folder / "logs" / f"{name}.log"

    def keep_gate(self, report: GateReport, files: Path) -> GateReport:
        """Lay a gate's raw records into the run folder and write `gates/<gate>.json` beside.

        Returns the report with `records` relative to that file.
        """
        kept = self.folder / "gates" / report.gate
        shutil.copytree(files, kept, copy_function=_link, dirs_exist_ok=True)
        records = f"{report.gate}/{report.records}" if report.records else None
        report = report.model_copy(update={"records": records})
        write_whole(kept.with_name(f"{report.gate}.json"), report.model_dump_json(indent=2))
        return report


def default_root() -> Path:
    """Where runs and artifacts go: QUANTGATE_ROOT, else the working directory."""
    return Path(os.environ.get("QUANTGATE_ROOT") or Path.cwd())


def _link(source: str, target: str) -> None:
    """Hard-link where the file system can, else copy; an existing target is replaced."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
