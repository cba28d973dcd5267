"""Look at a checkpoint folder and list everything that is structurally wrong; raise nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.checkpoint.header import HeaderError, TensorInfo, open_regular, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"
MAX_JSON = 256 * 2**20


@dataclass(frozen=True)
class Problem:
    """One structural fault: a stable code, the tensor or file it is about, and a sentence."""

    code: str
    where: str
    detail: str


@dataclass
class Survey:
    """What a folder holds, as far as it can be read, and what is wrong with it."""

    root: Path
    config: dict[str, Any] = field(default_factory=dict)
    quant_config: dict[str, Any] | None = None
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    shards: tuple[str, ...] = ()
    declared_total: Any = None
    """`metadata.total_size` of the index, as it stands there."""
    problems: list[Problem] = field(default_factory=list)

    def report(self, code: str, where: str, detail: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(code, where, detail))


def survey(root: Path, *, as_source: bool = False) -> Survey:
    """Read the configs, the index and every shard's header under the folder `root`.

    With `as_source`, shards that the index does not list are taken in too (some sources keep their
    draft head in such a file), and links may lead out of the folder (the Hub's cache is made so).
    """
    found = Survey(root)
    found.config = _config(found)
    found.quant_config = _optional_json(found, QUANT_CONFIG, "quant-config-unreadable")
    weight_map = _weight_map(found)
    present = _present_shards(root)
    listed = (
        sorted(set(weight_map.values()))
        if weight_map is not None
        else _unindexed(found, present, as_source)
    )
    shards = [name for name in listed if _shard_is_sound(found, name, as_source)]
    for name in present:
        if weight_map is None or name in listed:
            continue
        if as_source:
            shards.append(name)
        else:
            found.report(
                "index-mismatch", name, "The index does not list this shard: never loaded."
            )
    found.shards = tuple(shards)
    _read_shards(found)
    if weight_map is not None:
        _compare_index(found, weight_map, as_source)
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the regular file at `path`.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it holds no JSON object, or is absurdly large.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        raw = file.read(MAX_JSON + 1)
    if len(raw) > MAX_JSON:
        raise ValueError("larger than 256 MiB")
    try:
        tree = json.loads(raw.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(tree, dict):
        raise ValueError("no JSON object")
    return tree


def leads_out(root: Path, path: Path) -> bool:
    """Whether `path`, links followed, lies outside `root`."""
    return not path.resolve().is_relative_to(root.resolve())


def walk_files(root: Path) -> Iterator[str]:
    """Relative posix paths of all files under `root`, sorted; `.git` and `.cache` left out.

    A link to a folder is given as a file and not followed: whoever reads it gets an error.
    """
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in {".git", ".cache"})
        base = Path(folder)
        links = [name for name in folders if (base / name).is_symlink()]
        for name in sorted(files + links):
            yield (base / name).relative_to(root).as_posix()


def _config(found: Survey) -> dict[str, Any]:
    if not os.path.lexists(found.root / CONFIG):
        found.report("config-missing", CONFIG, "It is not there.")
        return {}
    return _optional_json(found, CONFIG, "config-unreadable") or {}


def _optional_json(found: Survey, name: str, code: str) -> dict[str, Any] | None:
    path = found.root / name
    if not os.path.lexists(path):
        return None
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        found.report(code, name, f"Cannot be read as a JSON object: {_line(error)}.")
        return None


def _line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return " ".join(str(text).split())[:200]


def _weight_map(found: Survey) -> dict[str, str] | None:
    if not os.path.lexists(found.root / INDEX):
        return None
    tree = _optional_json(found, INDEX, "index-unreadable")
    if tree is None:
        return None
    mapping = tree.get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
        found.report("index-unreadable", INDEX, "Has no weight_map of tensor -> file name.")
        return None
    metadata = tree.get("metadata")
    found.declared_total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return mapping


def _present_shards(root: Path) -> list[str]:
    try:
        return sorted(
            entry.name for entry in os.scandir(root) if entry.name.endswith(".safetensors")
        )
    except OSError:
        return []


def _unindexed(found: Survey, present: list[str], as_source: bool) -> list[str]:
    broken_index = os.path.lexists(found.root / INDEX)
    if not present:
        found.report("shard-missing", SINGLE, "There is no safetensors file at all.")
    elif not broken_index and not as_source and present != [SINGLE]:
        found.report(
            "index-missing", INDEX, f"{len(present)} weight file(s) {present[0]}... and no index."
        )
    return present


def _shard_is_sound(found: Survey, name: str, as_source: bool) -> bool:
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        found.report("shard-name", name[:200], "A shard must be a plain file name in the folder.")
        return False
    if not name.endswith(".safetensors"):
        found.report("shard-name", name[:200], "A shard's name must end in .safetensors.")
        return False
    path = found.root / name
    if not os.path.lexists(path):
        found.report("shard-missing", name, "The index names this file, and it is not there.")
        return False
    if not as_source and leads_out(found.root, path):
        found.report("shard-name", name, "A link that leads out of the folder.")
        return False
    return True


def _read_shards(found: Survey) -> None:
    readable = []
    for name in found.shards:
        try:
            header = read_header(found.root / name)
        except HeaderError as error:
            where = f"{name}: {error.tensor}" if error.tensor else name
            found.report(error.code, where, f"{error.what[0].upper()}{error.what[1:]}.")
            continue
        readable.append(name)
        for tensor in header.tensors:
            first = found.tensors.setdefault(tensor.name, tensor)
            if first is not tensor:
                found.report("tensor-twice", tensor.name, f"In {first.file} and in {name}.")
    found.shards = tuple(readable)


def _compare_index(found: Survey, weight_map: dict[str, str], as_source: bool) -> None:
    readable = set(found.shards)
    for name, file in weight_map.items():
        tensor = found.tensors.get(name)
        if file in readable and (tensor is None or tensor.file != file):
            place = f"it is in {tensor.file}" if tensor else "no shard has it"
            found.report("index-mismatch", name, f"The index says {file}; {place}.")
    if not as_source:
        for name, tensor in found.tensors.items():
            if name not in weight_map:
                found.report("index-mismatch", name, f"In {tensor.file}, and not in the index.")
    if readable >= set(weight_map.values()):
        _compare_total(found, weight_map)


def _compare_total(found: Survey, weight_map: dict[str, str]) -> None:
    declared = found.declared_total
    if declared is None or found.problems:
        return
    actual = sum(tensor.nbytes for name, tensor in found.tensors.items() if name in weight_map)
    if declared != actual:
        found.report("total-size", INDEX, f"total_size is {declared}; the tensors take {actual}.")
