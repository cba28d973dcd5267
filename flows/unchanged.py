"""Whether a release has anything to do: what it is made from now, against what it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from flows.decide import Basis, Decision
from tasks.artifacts import ReleaseVerdict, Source
from tasks.image.latest import image_identity
from tasks.run import Run
from tasks.spec import ReleaseSpec
from tasks.store import PROJECT, file_digest, key_of

CODE = ("flows", "tasks", "templates")
CODE_SUFFIXES = {".py", ".j2", ".jsonl"}


def basis_of(run: Run, source: Source, *, refresh: bool) -> Basis:
    """What this release would be made from; `refresh` looks for a newer base image first."""
    return Basis(
        source=source.revision or source.digest,
        recipe=recipe_digest(run.spec),
        image=image_identity(run.spec, refresh=refresh),
        code=_code_digest(),
    )


def recipe_digest(spec: ReleaseSpec) -> str:
    """The spec and the bytes of the files that it names."""
    gates = spec.gates
    files = [spec.quantize.calibration.file, gates.smoke.prompts, gates.gsm8k.data]
    files += [gates.acceptance.prompts] if gates.acceptance else []
    return key_of({"spec": spec, "files": [file_digest(file) for file in files]})


def changes(before: Basis, now: Basis) -> list[str]:
    """What differs, in words."""
    names = {"source": "source", "recipe": "recipe", "image": "base image", "code": "code"}
    return [
        f"{words} {_short(getattr(before, field))} -> {_short(getattr(now, field))}"
        for field, words in names.items()
        if getattr(before, field) != getattr(now, field)
    ]


def unchanged(run: Run, basis: Basis) -> Decision | None:
    """The UNCHANGED decision when the newest verdict on this very basis is a release; else None.

    Only a release counts: what was rejected or not decided is tried again (from the store, in
    seconds), and so is a release whose published folder is gone.
    """
    same = (decision for decision in decisions(run.folder.parent) if decision.basis == basis)
    last = next(same, None)
    if last is None or last.verdict is not ReleaseVerdict.RELEASED or _is_gone(last):
        return None
    why = (
        f"nothing to do since run {last.run}: same source {_short(basis.source)}, recipe"
        f" {_short(basis.recipe)}, base image {_short(basis.image)} and code {_short(basis.code)}"
    )
    return last.model_copy(
        update={
            "verdict": ReleaseVerdict.UNCHANGED,
            "published": False,
            "why": why,
            "run": run.id,
            "reused": [],
            "seconds": {note.stage: round(note.seconds, 3) for note in run.ledger},
        }
    )


def why_again(run: Run, basis: Basis) -> str:
    """Why a scheduled run releases again."""
    last = next(decisions(run.folder.parent), None)
    if last is None or last.basis is None:
        return "there is no earlier run"
    if differ := changes(last.basis, basis):
        return f"changed since run {last.run}: {'; '.join(differ)}"
    if last.verdict is not ReleaseVerdict.RELEASED:
        return f"run {last.run} ended {last.verdict}"
    return f"what run {last.run} published is gone"


def decisions(runs: Path) -> Iterator[Decision]:
    """The decisions under `releases/<name>/`, newest first, those that had nothing to do left out.

    A run that was killed has none.
    """
    for file in sorted(runs.glob("*/decision.json"), reverse=True):
        try:
            decision = Decision.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            continue
        if decision.verdict is not ReleaseVerdict.UNCHANGED:
            yield decision


def _is_gone(last: Decision) -> bool:
    publication = last.publication
    return (
        publication is not None
        and publication.to == "folder"
        and not Path(publication.location).is_dir()
    )


def _short(value: str | None) -> str:
    return "none" if value is None else value.removeprefix("sha256:")[:12]


def _code_digest() -> str:
    digest = hashlib.sha256()
    for part in CODE:
        for file in sorted((PROJECT / part).rglob("*")):
            if file.suffix in CODE_SUFFIXES:
                digest.update(str(file.relative_to(PROJECT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
