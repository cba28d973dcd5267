"""Damage a good checkpoint on purpose: hard links for what stays, one shard written anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.header import DTYPES
from tasks.checkpoint.survey import INDEX
from tasks.checkpoint.write import link_or_copy, write_index, write_json, write_shard

Array = np.ndarray[Any, Any]
Edit = Callable[[Array], Array]
SPELLING = {dtype: name for name, dtype in DTYPES.items()}

LAYER = "model.language_model.layers"
MTP = "mtp.layers.0"


class Copy:
    """A checkpoint folder that may be damaged without harm to the one it was made from."""

    def __init__(self, good: Path, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        for path in good.rglob("*"):
            target = root / path.relative_to(good)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                link_or_copy(path, target)
        self.files = CheckpointFiles.open(root)

    @property
    def indexed(self) -> bool:
        return (self.root / INDEX).exists()

    def names(self, ending: str = "", within: str = "") -> list[str]:
        """Sorted names of tensors that contain `within` and end in `ending`."""
        return sorted(n for n in self.files.tensors if n.endswith(ending) and within in n)

    def find(self, ending: str, within: str = "") -> str:
        """The first such name."""
        found = self.names(ending, within)
        assert found, f"no tensor *{within}*{ending}"
        return found[0]

    def edit(self, name: str, edit: Edit) -> None:
        """Replace one tensor's values, dtype or shape."""
        self.rewrite({name: edit(self.files.array(name).copy())})

    def rewrite(
        self,
        changed: Mapping[str, Array] | None = None,
        dropped: tuple[str, ...] | list[str] = (),
        added: Mapping[str, Array] | None = None,
    ) -> None:
        """Write the shards concerned anew; the index follows, so that only the values are wrong."""
        changed, added = dict(changed or {}), dict(added or {})
        files = self.files
        touched = {files.tensors[name].file for name in (*changed, *dropped)}
        home = files.shards[-1]
        if added:
            touched.add(home)
        kept = {n: i for n, i in files.tensors.items() if n not in dropped}
        sizes = {n: i.nbytes for n, i in kept.items()}
        sizes |= {n: a.nbytes for n, a in (changed | added).items()}
        for shard in touched:
            arrays = {
                name: changed.get(name, files.array(name))
                for name, info in files.tensors.items()
                if info.file == shard and name not in dropped
            }
            if shard == home:
                arrays |= added
            if arrays:
                write_arrays(self.root / shard, arrays)
            else:
                (self.root / shard).unlink()
        if self.indexed:
            weight_map = {n: i.file for n, i in kept.items()} | dict.fromkeys(added, home)
            write_index(self.root, weight_map, sum(sizes.values()))
        self.files = CheckpointFiles.open(self.root)

    def json(self, name: str) -> dict[str, Any]:
        tree: dict[str, Any] = json.loads((self.root / name).read_text(encoding="utf-8"))
        return tree

    def edit_json(self, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
        """Change a JSON file in place."""
        tree = self.json(name)
        edit(tree)
        write_json(self.root / name, tree)

    def replace(self, name: str, content: bytes) -> None:
        """Write other bytes under a file's name, the original untouched."""
        (self.root / name).unlink(missing_ok=True)
        (self.root / name).write_bytes(content)

    def exclude(
        self, add: tuple[str, ...] | list[str] = (), drop: Callable[[str], bool] | None = None
    ) -> None:
        """Change both exclude lists alike."""

        def changed(entries: list[str]) -> list[str]:
            kept = [entry for entry in entries if drop is None or not drop(entry)]
            return sorted({*kept, *add})

        def hf(tree: dict[str, Any]) -> None:
            section = tree["quantization"]
            section["exclude_modules"] = changed(section["exclude_modules"])

        def config(tree: dict[str, Any]) -> None:
            section = tree["quantization_config"]
            section["ignore"] = changed(section["ignore"])

        self.edit_json("hf_quant_config.json", hf)
        self.edit_json("config.json", config)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    plan = [(name, SPELLING[array.dtype], array.shape) for name, array in arrays.items()]
    write_shard(path, plan, arrays.items())


@dataclass(frozen=True)
class Injected:
    """One fault on purpose: what it is, the code that must be found, and how it is made."""

    name: str
    code: str
    make: Callable[[Copy], None]
    needs_source: bool


FAULTS: list[Injected] = []


def fault(
    code: str, *, needs_source: bool = False, name: str | None = None
) -> Callable[[Callable[[Copy], None]], Callable[[Copy], None]]:
    """Register a function that damages a copy; `code` is what the audit must say."""

    def register(make: Callable[[Copy], None]) -> Callable[[Copy], None]:
        FAULTS.append(Injected(name or make.__name__, code, make, needs_source))
        return make

    return register
