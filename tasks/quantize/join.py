"""The other nodes of a calibration: `torchrun ... -m tasks.quantize.join` on each.

They are told by the first node, where the flow runs, what to quantize. Code, source and calibration
text lie at the same paths on all nodes.
"""

from __future__ import annotations

from tasks.quantize.quantize import Order, quantize_together
from tasks.quantize.ranks import joined


def main() -> None:
    """Take part in one calibration."""
    nothing: Order | None = None
    with joined() as ranks:
        quantize_together(ranks, ranks.share(nothing))


if __name__ == "__main__":
    main()
