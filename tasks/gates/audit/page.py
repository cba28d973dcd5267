"""The page that lists every fault: `python -m tasks.gates.audit.page > docs/faults.md`."""

from __future__ import annotations

from tasks.gates.audit.codes import CODES

INTRO = """# Faults that the audit finds

`quantgate audit CHECKPOINT [--source DIR]` reads every byte of a checkpoint once, builds no model,
and ends PASS (exit 0) without a fault or FAIL (exit 3) with the list of faults:
`{"verdict", "faults": [{"code", "tensor", "detail"}], "summary"}`. A code is stable; `tensor`
names the tensor, module or file; `detail` says what is wrong and what it would do when serving.
Of one code a hundred faults are listed, the rest are counted. Only a path that is no folder, or a
source that cannot be read, is a usage error (exit 2): whatever is wrong inside is a fault.

The rules are derived from what a right checkpoint is, so that damage that has no name here is found
as well:

- Headers and indexes: every byte of a shard belongs to one tensor; index and shards name the same
  tensors; nothing leads out of the folder.
- config.json implies every module, its shape and its kind; the exclude lists, the dtypes and the
  scales must tell the same story of each, and modules that engines fuse are treated alike.
- The packer: the largest block scale of a group that shares `weight_scale_2` is 448; a block's
  largest code is 6, or 4 under a subnormal scale; a block of zeros has scale 1; the larger a
  block's scale, the smaller its other codes, or the scales belong to other blocks or to other
  weights; codes of both signs, in the low nibbles as in the high ones.
- The chat template: every turn of a conversation is found again, in order, and an assistant's is
  marked otherwise than a user's.
- The norms: inputs of q, k, v, in_proj, gate and up, and K, are outputs of RMS norms, whose gains
  bound their amax from both sides; V, and the inputs of o_proj, out_proj and down_proj, follow
  from these and from the lengths of the weights' rows. Where a draft head's scales are borrowed,
  each is its analogue's.
- With `--source`: `weight_scale_2`, block scales and codes are recomputed from the BF16 weights and
  must be equal (ties that another device rounds the other way apart); all that is not quantized
  must be equal bit for bit; the relative error of each tensor is in the summary (NVFP4 gives about
  0.095). Metadata must be the source's; what may differ is listed in `gates.audit.may_change`.

Without `--source` the audit cannot know that a sound tensor is not this model's: experts or layers
exchanged, nibbles swapped, a draft head that was trained for less. Releases compare.

## Codes
"""


def faults_page() -> str:
    """docs/faults.md."""
    lines = [INTRO, f"There are {len(CODES)} kinds.", ""]
    groups = dict.fromkeys(kind.group for kind in CODES.values())
    for group in groups:
        lines += [f"### {group.capitalize()}", "", "| code | what is wrong | when serving |"]
        lines.append("|---|---|---|")
        for code, kind in CODES.items():
            if kind.group == group:
                wrong = kind.wrong[0].upper() + kind.wrong[1:]
                lines.append(f"| `{code}` | {wrong} | {kind.serving} |")
        lines.append("")
    lines += [
        "## Tests",
        "",
        "`pytest tests/faults` injects each of these into the demo's release, most in several",
        "ways, and prints the matrix of faults and the codes that caught them.",
        "`tests/faults/test_good.py` shows that every qformat, cache format, draft head and source",
        "layout passes, and an export by ModelOpt alone.",
        "`python -m tests.faults CHECKPOINT SOURCE` prints the matrix for any good checkpoint,",
        "each fault with and without the source.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(faults_page(), end="")
