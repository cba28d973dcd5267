"""The source model, on disk and checked: from a folder in place, or from the Hugging Face Hub."""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path
from typing import Any, Protocol

import yaml
from pydantic import SecretStr

from tasks.artifacts import Source
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.manifest import Manifest, quick_faults, take_manifest
from tasks.errors import BadInputError, TransientError
from tasks.hub.patience import patiently
from tasks.hub.session import Hub
from tasks.progress import Progress, silent
from tasks.spec import FolderSource, HubSource

KEPT_SUFFIXES = (".safetensors", ".json", ".txt", ".jinja", ".model", ".tiktoken", ".py")
KEPT_NAMES = ("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
LEFT_OUT_PREFIXES = ("consolidated", "pytorch_model", "training_args", "optimizer")


class RemoteFile(Protocol):
    """What a Hub listing says of a file (`huggingface_hub.hf_api.RepoSibling`)."""

    rfilename: str
    size: int | None
    blob_id: str | None
    lfs: Any


def fetch(
    source: HubSource | FolderSource,
    cache: Path,
    progress: Progress = silent,
    token: SecretStr | None = None,
    endpoint: str | None = None,
) -> Source:
    """Bring a source model to disk, check its structure, and digest it.

    A folder is used where it lies. A Hub repository is downloaded into
    `cache/hub/<namespace>--<name>/<commit>/`, only the files that a quantization needs, and every
    file is compared with the checksum that the Hub lists. Both are resumable: what is there and
    unchanged (size, mtime, header) is not read again.

    Args:
        source: where the model is.
        cache: folder for downloads and for remembered digests.
        progress: told how far it is.
        token: Hub token; unset: the environment's or the login's.
        endpoint: the Hub's URL; unset: HF_ENDPOINT, else huggingface.co.

    Raises:
        BadInputError: no such folder, repository or revision; a structure that cannot be read.
        TransientError: the Hub could not be reached, or sent bytes that are not what it lists.
    """
    if isinstance(source, FolderSource):
        return _fetch_folder(source, cache, progress)
    return _fetch_hub(source, cache, progress, Hub.connect(token, endpoint))


def _fetch_folder(source: FolderSource, cache: Path, progress: Progress) -> Source:
    root = source.path
    if not root.is_dir():
        raise BadInputError(
            "source-missing",
            f"source.path: {root} is no folder.",
            "Give the source model's folder.",
        )
    key = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    manifest = _digest(root, cache / "digests" / f"{key}.json", progress)
    return describe(root, manifest.digest, repo=source.repo, revision=None)


def _fetch_hub(source: HubSource, cache: Path, progress: Progress, hub: Hub) -> Source:
    what = f"source {source.repo}@{source.revision}"
    progress(0.0, f"resolving {what}")
    info = patiently(
        what,
        lambda: hub.api.model_info(source.repo, revision=source.revision, files_metadata=True),
    )
    commit = str(info.sha)
    wanted = [item for item in info.siblings or [] if is_needed(item.rfilename)]
    root = cache / "hub" / source.repo.replace("/", "--") / commit
    progress(0.05, f"downloading {len(wanted)} files of {source.repo}")
    patiently(
        what,
        lambda: hub.api.snapshot_download(
            source.repo,
            revision=commit,
            local_dir=root,
            allow_patterns=[glob.escape(item.rfilename) for item in wanted],
        ),
    )
    manifest = _digest(root, root.with_suffix(".json"), progress)
    _check_against_listing(source, root, manifest, wanted)
    return describe(root, manifest.digest, repo=source.repo, revision=commit)


def is_needed(name: str) -> bool:
    """Whether a quantization needs this repository file: weights, configuration, tokenizer, card.

    Other frameworks' weights, images and subfolders are left on the Hub.
    """
    if "/" in name or name.startswith(LEFT_OUT_PREFIXES):
        return False
    return name in KEPT_NAMES or name.endswith(KEPT_SUFFIXES)


def _digest(root: Path, memory: Path, progress: Progress) -> Manifest:
    """The folder's manifest, remembered in `memory` while sizes, mtimes and headers hold."""
    if memory.is_file():
        try:
            known = Manifest.model_validate_json(memory.read_text(encoding="utf-8"))
        except ValueError:
            memory.unlink()
        else:
            if not quick_faults(root, known):
                return known
    manifest = take_manifest(root, progress)
    memory.parent.mkdir(parents=True, exist_ok=True)
    beside = memory.with_suffix(".partial")
    beside.write_text(manifest.model_dump_json(), encoding="utf-8")
    beside.replace(memory)
    return manifest


def _check_against_listing(
    source: HubSource, root: Path, manifest: Manifest, wanted: list[Any]
) -> None:
    for item in wanted:
        entry = manifest.files.get(item.rfilename)
        if entry is None or not _is_same(root / item.rfilename, entry.sha256, item):
            (root / item.rfilename).unlink(missing_ok=True)
            raise TransientError(
                "source-checksum",
                f"{source.repo}: {item.rfilename} is not what the Hub lists.",
                "It was removed; start again to download it anew.",
            )


def _is_same(path: Path, sha256: str, item: RemoteFile) -> bool:
    if item.lfs is not None:
        return bool(item.lfs.sha256 == sha256)
    if item.blob_id is None:
        return item.size is None or path.stat().st_size == item.size
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == item.blob_id


def describe(root: Path, digest: str, repo: str | None, revision: str | None) -> Source:
    """The Source record of a model folder: architecture and licence read from its own files.

    Raises:
        BadInputError: `config.json` is missing, unreadable, or names no architecture.
    """
    config = CheckpointFiles.open(root, as_source=True).config
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise BadInputError(
            "config-architecture",
            f"{root / 'config.json'}: `architectures` names none.",
            "Name the model class, as transformers writes it.",
        )
    card = front_matter(root / "README.md")
    return Source(
        path=root,
        repo=repo,
        revision=revision,
        digest=digest,
        architecture=names[0],
        license=_text(card.get("license")),
        license_name=_text(card.get("license_name")),
        license_link=_text(card.get("license_link")),
    )


def _text(value: object) -> str | None:
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, str) and value.strip() else None


def front_matter(readme: Path) -> dict[str, Any]:
    """The YAML metadata at the top of a model card; empty when there is none."""
    if not readme.is_file():
        return {}
    lines = readme.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            try:
                data = yaml.safe_load("\n".join(lines[1:number]))
            except yaml.YAMLError:
                return {}
            return data if isinstance(data, dict) else {}
    return {}
