"""The spec's engine flags in the words of the engine that will read them.

SGLang renames its flags between versions; a spec is written once. `RENAMES` holds what changed,
read from the `server_args` of each version's own sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import BadInputError
from tasks.spec import ServeSpec, SpeculationSpec

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Rename:
    """One flag that changed its name.

    `old` takes `values` words after it (0: a switch); `new` replaces flag and values, `{value}`
    standing for the old value. From `since` on the new spelling is used.
    """

    old: str
    values: int
    new: tuple[str, ...]
    since: Version
    reason: str


_ALIAS = "0.5.15.post1 warns that the old word is an alias; it is gone in 0.5.21"
RENAMES: tuple[Rename, ...] = (
    Rename(
        "--mamba-scheduler-strategy",
        1,
        ("--mamba-radix-cache-strategy", "{value}"),
        (0, 5, 20),
        "the old word went in 0.5.20",
    ),
    Rename("--cuda-graph-max-bs", 1, ("--cuda-graph-max-bs-decode", "{value}"), (0, 5, 21), _ALIAS),
    Rename(
        "--disable-piecewise-cuda-graph",
        0,
        ("--cuda-graph-backend-prefill", "disabled"),
        (0, 5, 21),
        _ALIAS,
    ),
    Rename(
        "--enforce-piecewise-cuda-graph",
        0,
        ("--cuda-graph-backend-prefill", "tc_piecewise"),
        (0, 5, 21),
        _ALIAS,
    ),
    Rename(
        "--piecewise-cuda-graph-max-tokens",
        1,
        ("--cuda-graph-max-bs-prefill", "{value}"),
        (0, 5, 21),
        _ALIAS,
    ),
)
OWN_FLAGS = frozenset(
    {"--model-path", "--model", "--checkpoint", "--host", "--port", "--served-model-name"}
)


def engine_command(
    spec: ServeSpec,
    *,
    python: str,
    checkpoint: str,
    port: int,
    version: str | None = None,
    nvfp4: bool = False,
    host: str = "127.0.0.1",
) -> tuple[str, ...]:
    """The command line that serves `checkpoint` at `host:port`.

    Args:
        spec: engine, model name, context length, speculation and more flags; a flag given there
            replaces the one that would be set here.
        python: interpreter that has the engine.
        checkpoint: folder of the checkpoint as the engine will see it.
        version: the engine's own version, by which flags are translated; None leaves them as they
            are.
        nvfp4: whether the checkpoint says NVFP4 (SGLang is told so).

    Raises:
        BadInputError: `serve.flags` sets what is set by this program (model, host, port, name).
    """
    taken = sorted(OWN_FLAGS.intersection(flag.split("=", 1)[0] for flag in spec.flags))
    if taken:
        raise BadInputError(
            "serve-flags",
            f"serve.flags: {taken[0]} is set by this program.",
            "Remove it; use serve.port and serve.model_name.",
        )
    build = {"reference": _reference, "sglang": _sglang, "vllm": _vllm}[spec.engine]
    module, defaults = build(spec, checkpoint, host, port, nvfp4)
    flags = spec.flags
    if spec.engine == "sglang":
        flags = translate(flags, version)
    return (python, "-m", module, *_without(defaults, flags), *flags)


Flags = list[tuple[str, ...]]


def _reference(
    spec: ServeSpec, checkpoint: str, host: str, port: int, nvfp4: bool
) -> tuple[str, Flags]:
    flags: Flags = [
        ("--checkpoint", checkpoint),
        ("--port", str(port)),
        ("--served-model-name", spec.model_name),
        ("--context-length", str(spec.context_length)),
    ]
    if spec.speculation.algorithm == "none":
        flags.append(("--no-speculation",))
    else:
        flags.append(("--num-steps", str(spec.speculation.num_steps)))
    if host != "127.0.0.1":
        flags.append(("--host", host))
    return "tasks.serve.reference", flags


def _sglang(
    spec: ServeSpec, checkpoint: str, host: str, port: int, nvfp4: bool
) -> tuple[str, Flags]:
    flags: Flags = [
        ("--model-path", checkpoint),
        ("--host", host),
        ("--port", str(port)),
        ("--served-model-name", spec.model_name),
        ("--context-length", str(spec.context_length)),
        ("--enable-metrics",),
    ]
    if nvfp4:
        flags.append(("--quantization", "modelopt_fp4"))
    return "sglang.launch_server", [*flags, *_sglang_speculation(spec.speculation)]


def _sglang_speculation(speculation: SpeculationSpec) -> Flags:
    if speculation.algorithm == "none":
        return []
    return [
        ("--speculative-algorithm", speculation.algorithm),
        ("--speculative-num-steps", str(speculation.num_steps)),
        ("--speculative-eagle-topk", str(speculation.topk)),
        ("--speculative-num-draft-tokens", str(speculation.draft_tokens)),
    ]


def _vllm(spec: ServeSpec, checkpoint: str, host: str, port: int, nvfp4: bool) -> tuple[str, Flags]:
    flags: Flags = [
        ("--model", checkpoint),
        ("--host", host),
        ("--port", str(port)),
        ("--served-model-name", spec.model_name),
        ("--max-model-len", str(spec.context_length)),
    ]
    if spec.speculation.algorithm != "none":
        config = {"method": "mtp", "num_speculative_tokens": spec.speculation.num_steps}
        flags.append(("--speculative-config", json.dumps(config)))
    return "vllm.entrypoints.openai.api_server", flags


def _without(defaults: Flags, given: Sequence[str]) -> Iterator[str]:
    names = {flag.split("=", 1)[0] for flag in given if flag.startswith("--")}
    for words in defaults:
        if words[0] not in names:
            yield from words


def translate(flags: Sequence[str], version: str | None) -> tuple[str, ...]:
    """`flags` with the names that SGLang `version` knows; `--flag value` and `--flag=value` alike.

    Raises:
        BadInputError: a renamed flag stands without its value.
    """
    number = parse_version(version)
    if number is None:
        return tuple(flags)
    renames = {rename.old: rename for rename in RENAMES if number >= rename.since}
    words, out = list(flags), []
    while words:
        word = words.pop(0)
        name, equals, inline = word.partition("=")
        rename = renames.get(name)
        if rename is None:
            out.append(word)
            continue
        value = inline
        if rename.values and not equals:
            if not words:
                raise BadInputError(
                    "serve-flags",
                    f"serve.flags: {name} stands without its value.",
                    "Add the value.",
                )
            value = words.pop(0)
        out.extend(part.replace("{value}", value) for part in rename.new)
    return tuple(out)


def parse_version(version: str | None) -> Version | None:
    """The first three numbers of `0.5.15.post1`; None for None or what is no version."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def says_nvfp4(checkpoint: Path) -> bool:
    """Whether the checkpoint's `hf_quant_config.json` names NVFP4 as its weights' format."""
    try:
        config = json.loads((checkpoint / "hf_quant_config.json").read_text(encoding="utf-8"))
        return "NVFP4" in str(config["quantization"]["quant_algo"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
