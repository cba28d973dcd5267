"""The exclude lists of hf_quant_config.json and config.json, made to tell the truth of the head.

Engines match an entry as a glob over the whole module name (SGLang also over the prefix of a fused
module, `...mlp.experts` for all routed experts), and ModelOpt writes a parent whose linears are all
BF16 as one `parent*`. The same form is used here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

DRAFT = "mtp"


def corrected(entries: Iterable[str], kept: Sequence[str], quantized: Collection[str]) -> list[str]:
    """An exclude list with exactly the head's BF16 modules in it.

    Args:
        entries: the export's list; what it says of the draft head is dropped, blanket entries too.
        kept: the head's BF16 modules.
        quantized: the head's NVFP4 modules.

    Returns:
        The list, sorted as ModelOpt sorts it.
    """
    others = [entry for entry in entries if not _of_draft(entry, quantized)]
    return sorted({*others, *draft_entries(kept, quantized)})


def draft_entries(kept: Sequence[str], quantized: Collection[str]) -> list[str]:
    """Entries that match all of `kept` and none of `quantized`.

    A parent below a layer, such as `mtp.layers.0.self_attn`, is written as one glob when nothing
    that the glob matches is quantized; all else by name.
    """
    entries: list[str] = []
    for name in kept:
        glob = _parent_glob(name)
        whole = glob is not None and not any(fnmatchcase(other, glob) for other in quantized)
        entry = glob if whole and glob else name
        if entry not in entries:
            entries.append(entry)
    return entries


def _parent_glob(name: str) -> str | None:
    parent = name.rpartition(".")[0]
    if ".experts." in name:
        parent = name.partition(".experts.")[0] + ".experts"
    leaf = parent.rpartition(".")[2]
    return f"{parent}*" if leaf in {"self_attn", "experts", "shared_expert"} else None


def _of_draft(entry: str, quantized: Collection[str]) -> bool:
    if entry.startswith(DRAFT) or entry.startswith(f"model.{DRAFT}"):
        return True
    return "*" in entry and any(fnmatchcase(name, entry) for name in quantized)
