"""The reference engine's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Options:
    """What to serve, and how.

    Attributes:
        checkpoint: folder of an NVFP4 or a plain BF16 checkpoint.
        context_length: tokens a request, at most.
        num_steps: tokens drafted a verification; 0: plain decoding, no draft head is read.
        max_batch: requests decoded together.
        dtype: of all arithmetic; see the package's docstring.
        draft_kv_scales: `ignore` reads the draft head's K/V scales as 1.0, as an engine without the
            patch for them does.
        record: JSONL file that gets every request's proposals and final ids.
    """

    checkpoint: Path
    port: int
    host: str = "127.0.0.1"
    served_model_name: str = "default"
    context_length: int | None = None
    num_steps: int = 2
    max_batch: int = 64
    device: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"
    draft_kv_scales: Literal["use", "ignore"] = "use"
    record: Path | None = None

    @property
    def speculates(self) -> bool:
        """Whether a draft head proposes tokens."""
        return self.num_steps > 0


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; argparse's own message and exit 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.serve.reference",
        description="Serve a checkpoint over HTTP as SGLang does, on a CPU or one GPU.",
    )
    add = parser.add_argument
    add("--checkpoint", "--model-path", type=Path, required=True, metavar="DIR")
    add("--port", type=_port, required=True)
    add("--host", default="127.0.0.1", choices=("127.0.0.1", "localhost"), help="loopback only")
    add("--served-model-name", metavar="NAME", help="default: the folder's name")
    add("--context-length", type=_positive, metavar="L", help="default: the model's, at most 32768")
    add("--num-steps", type=_positive, default=2, metavar="N", help="tokens drafted a verification")
    add("--no-speculation", action="store_true", help="decode without the draft head")
    add("--max-batch", type=_positive, default=64, metavar="B", help="requests decoded together")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add("--dtype", default="float64", choices=("float64", "float32"), help="of all arithmetic")
    add(
        "--draft-kv-scales",
        default="use",
        choices=("use", "ignore"),
        help="ignore: 1.0 for the draft head's K and V",
    )
    add("--record", type=Path, metavar="FILE", help="JSONL of proposals and final ids")
    given = parser.parse_args(arguments)
    steps = 0 if given.no_speculation else given.num_steps
    name = given.served_model_name or given.checkpoint.resolve().name
    fields = vars(given) | {"num_steps": steps, "served_model_name": name}
    del fields["no_speculation"]
    return Options(**fields)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError("must be between 1 and 65535")
    return value
