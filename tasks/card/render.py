"""Material -> model card: README.md, plots, evidence and eval results, in one folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tasks.artifacts import Card
from tasks.card.check import empty_values
from tasks.card.escape import Safe
from tasks.card.evidence import Evidence
from tasks.card.material import CardMaterial
from tasks.card.metadata import dataset_of, eval_results, metadata_yaml
from tasks.card.plots import plots_of
from tasks.card.reconcile import TEMPLATES
from tasks.card.regions import METADATA, NAMES, replace_regions
from tasks.card.trees import evidence_of
from tasks.card.view import view_of
from tasks.errors import BadInputError

README = "README.md"


def render_card(material: CardMaterial, out: Path) -> Card:
    """Write the card of a release into `out`, or renew the regions of the card that is there.

    A README.md in `out` keeps every byte outside its regions. The evidence is written anew.
    Rendering the same material again gives the same bytes.

    Args:
        material: what was measured and recorded.
        out: folder of the card; made if need be.

    Returns:
        The card and the files beside it: `plots/`, `evidence/` and `.eval_results/`.

    Raises:
        BadInputError: a value is not known (`card-unknown`), a marker is wrong (`card-markers`),
            the Hub's classes refuse the metadata (`card-metadata`), or something on the finished
            card is empty (`card-empty`).
    """
    evidence = evidence_of(material)
    plots = plots_of(evidence, dataset_of(material.spec)[1])
    view = view_of(material, evidence, plots)
    contents = {name: _render(f"{name}.md.j2", evidence, view) for name in NAMES}
    _refuse_empty(contents)
    contents[METADATA] = metadata_yaml(material)
    path = out / README
    old = path.read_bytes() if path.exists() else None
    base = old if old is not None else _render("card.md.j2", evidence, view).encode("utf-8")
    card = replace_regions(base, contents, origin=str(path))
    beside = eval_results(material)
    files = evidence.write(out)
    for name, text in beside.items():
        _write_whole(out / name, text.encode("utf-8"))
    for plot in plots:
        plot.draw(out / plot.path)
    _write_whole(path, card)
    files += [out / name for name in (*beside, *(plot.path for plot in plots))]
    return Card(path=path, files=tuple(sorted(files)))


def _refuse_empty(contents: dict[str, str]) -> None:
    faults = [f"{name}, {fault}" for name in NAMES for fault in empty_values(contents[name])]
    if faults:
        raise BadInputError(
            "card-empty",
            f"card: without a value: {'; '.join(faults[:5])}.",
            "Record it, or declare it not measured.",
        )


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    beside.write_bytes(content)
    beside.replace(path)


def _render(template: str, evidence: Evidence, view: dict[str, Any]) -> str:
    try:
        return (
            _environment().get_template(template).render(view, show=evidence.show, has=evidence.has)
        )
    except TemplateError as error:
        raise BadInputError(
            "card-template", f"templates/{template}: {error}.", "Correct the template."
        ) from error


def _only_safe(value: Any) -> str:
    """What a template writes must have been escaped: anything else is an error, never output."""
    if isinstance(value, Safe):
        return value
    if isinstance(value, StrictUndefined):
        return str(value)
    raise TemplateError(f"an unescaped value was to be written ({type(value).__name__})")


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=_only_safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
