"""The evidence of a release as JSON trees, made from the material of its card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.card.evidence import Evidence
from tasks.card.material import CardMaterial
from tasks.card.weights import measure_weights
from tasks.checkpoint.manifest import Manifest, take_manifest
from tasks.errors import BadInputError


def evidence_of(material: CardMaterial) -> Evidence:
    """Gather everything that the card may show.

    Reads the headers of checkpoint and source, and digests the checkpoint's files.

    Raises:
        BadInputError: either folder is no checkpoint, or the checkpoint's files are no longer
            those that were measured (`card-weights`).
    """
    path = material.checkpoint.path
    trees: dict[str, Any] = {
        "provenance": _provenance(material),
        "spec": published_spec(material.spec.model_dump(mode="json")),
        "environment": {"packages": material.environment, "hardware": material.hardware},
        "samples": _samples(material),
        "manifest": manifest_tree(_unchanged(material)),
    }
    trees["provenance"]["weights"] = measure_weights(path, material.source.path).model_dump(
        mode="json"
    )
    if material.audit_summary:
        trees["audit"] = material.audit_summary
    for name, report in material.reports.items():
        trees[f"gates/{name}"] = report.model_dump(mode="json")
    if material.comparisons:
        trees["comparisons"] = material.comparisons
    return Evidence(trees, material.spec.card.not_measured)


def _unchanged(material: CardMaterial) -> Manifest:
    """The checkpoint's files, digested anew, if they are those that were gated."""
    manifest = take_manifest(material.checkpoint.path)
    if manifest.digest != material.checkpoint.digest:
        raise BadInputError(
            "card-weights",
            f"card: the files of {material.checkpoint.path} changed since they were measured"
            f" (digest {manifest.digest[:12]}, was {material.checkpoint.digest[:12]}).",
            "Run the release again; its damaged stage is built anew.",
        )
    return manifest


def _provenance(material: CardMaterial) -> dict[str, Any]:
    dump: dict[str, Any] = {
        "release": {
            "id": material.release_id,
            "name": material.spec.name,
            "repo": material.spec.publish.repo,
            "generated": material.generated.isoformat(timespec="seconds"),
        },
        "source": material.source.model_dump(mode="json", exclude={"path"}),
        "quantization": material.checkpoint.quantization.model_dump(mode="json"),
        "draft": material.checkpoint.draft.model_dump(mode="json")
        if material.checkpoint.draft
        else None,
        "image": material.image.model_dump(mode="json") if material.image else None,
        "patches": [patch.model_dump(mode="json") for patch in patches_of(material)],
        "command": list(portable(material)),
    }
    for part in ("quantization", "draft"):
        calibration = (dump[part] or {}).get("calibration")
        if calibration:
            calibration["dataset"] = bare_name(calibration["dataset"])
    return dump


def patches_of(material: CardMaterial) -> tuple[Any, ...]:
    """The patches of the engine that was measured: the image's own where there is one."""
    return material.image.patches if material.image else material.patches


def portable(material: CardMaterial) -> tuple[str, ...]:
    """The executed command with names that mean something on another machine.

    The checkpoint's path becomes the repository's name, the interpreter's its file name.
    """
    name = material.spec.publish.repo.partition("/")[2]
    local = material.checkpoint.path
    command = [
        word.replace(str(local.resolve()), name).replace(str(local), name)
        for word in material.endpoint_command
    ]
    return tuple([Path(command[0]).name, *command[1:]] if command else [])


def bare_name(dataset: str) -> str:
    """A data set without this machine's folders; a Hub id stays whole."""
    path = Path(dataset)
    return path.name if path.is_absolute() or path.suffix else dataset


def published_spec(tree: Any) -> Any:
    """The spec without absolute paths of the machine that made the release."""
    if isinstance(tree, dict):
        return {key: published_spec(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [published_spec(value) for value in tree]
    if isinstance(tree, str) and tree.startswith("/") and "\n" not in tree:
        return Path(tree).name
    return tree


def _samples(material: CardMaterial) -> dict[str, Any]:
    return {
        "samples": [sample.model_dump() for sample in material.samples],
        "run": material.sample_run.model_dump(mode="json") if material.sample_run else None,
        "skipped": material.samples_skipped,
    }


def manifest_tree(manifest: Manifest) -> dict[str, Any]:
    """A manifest as it is published: names, sizes and sha256, without this machine's times."""
    return {
        "digest": manifest.digest,
        "files": {
            name: {"size": entry.size, "sha256": entry.sha256}
            for name, entry in sorted(manifest.files.items())
        },
    }
