"""`python -m tests.gates.matrix [--release DIR] [--only WORDS] [--stop-early] [--write]`.

Breaks the demo's release in every way of `breaks`, serves each with the reference engine, spoils
the fake server in every way of `wrong`, and prints which gate said what. Exit 1 when a fault went
through or changed no record.

    --release DIR   a release checkpoint; unset: the demo's is built
    --only WORDS    faults whose name holds these words
    --stop-early    after the first gate that stops a fault, no further ones; nothing is served
                    that the audit alone has stopped
    --limit N       GSM8K problems (200)
    --write         put the table into docs/gates.md
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from tasks.spec import GatesSpec, ReleaseSpec, load_spec
from tests.gates.conftest import GSM8K, questions
from tests.gates.matrix.breaks import BREAKS, Break
from tests.gates.matrix.running import Row, run_break, run_wrong, table
from tests.gates.matrix.wrong import WRONG, Wrong, poor
from tests.servers.fake import solver

DOCS = Path("docs/gates.md")


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.gates.matrix")
    parser.add_argument("--release", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--stop-early", action="store_true")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    spec = demo_spec(given.limit)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        served: list[Row] = []
        good: dict[str, Row] = {}
        breaks = [fault for fault in BREAKS if given.only in fault.name]
        if breaks:
            release = given.release or build_release(place)
            good["served"] = run_break(release, Break("(none: the release)"), spec, place, False)
            tell(good["served"])
            served.append(good["served"])
            for fault in breaks:
                served.append(run_break(release, fault, spec, place, given.stop_early))
                tell(served[-1])
        rows = fakes(spec, given.only, place)
        good["fake"] = rows[0]
        rows = served + rows
    print(table(rows, good))
    if given.write:
        text = DOCS.read_text(encoding="utf-8")
        new = re.sub(
            r"(<!-- matrix.*?-->\n).*?(<!-- end matrix -->)",
            lambda match: f"{match[1]}{table(rows, good)}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
        DOCS.write_text(new, encoding="utf-8")
    return 1 if gaps(rows, good) else 0


def gaps(rows: list[Row], good: dict[str, Row]) -> list[str]:
    """Good rows that were stopped, faults that were not, faults that changed nothing."""
    found = []
    for row in rows:
        if row in good.values():
            found += [f"{row.fault}: stopped by {name}" for name in row.stopped]
            continue
        kind = "served" if "audit" in row.reports else "fake"
        if not row.stopped:
            found.append(f"{row.fault}: nothing stopped it")
        if row.fingerprint and not row.changed(good[kind]):
            found.append(f"{row.fault}: changed no record")
    for gap in found:
        print(gap, file=sys.stderr)
    return found


def fakes(spec: ReleaseSpec, only: str, scratch: Path) -> list[Row]:
    """The good fake server first, then every way of being wrong."""
    faults = [Wrong("(none: the fake server)", poor)]
    faults += [fault for fault in WRONG if only in fault.name]
    brain, gates = solver(questions()), fake_gates(spec)
    return [run_wrong(fault, brain, gates, spec, scratch) for fault in faults]


def fake_gates(spec: ReleaseSpec) -> GatesSpec:
    """The demo's thresholds, on problems that the fake server knows and without a log."""
    gates = spec.gates
    assert gates.acceptance is not None
    return gates.model_copy(
        update={
            "smoke": gates.smoke.model_copy(update={"require_log": False}),
            "gsm8k": gates.gsm8k.model_copy(update={"data": GSM8K, "timeout": 6.0}),
            "acceptance": gates.acceptance.model_copy(update={"timeout": 6.0}),
        }
    )


def demo_spec(limit: int) -> ReleaseSpec:
    """The demo's spec on `limit` GSM8K problems, and a bar just under its known accept length."""
    changes = {"gates.gsm8k.limit": limit, "gates.acceptance.min_accept": 2.4}
    return load_spec(Path("deployments/demo/release.yaml"), changes)


def build_release(scratch: Path) -> Path:
    """The demo's release checkpoint, by the product's own stages."""
    from tasks.hub.task import fetch_source
    from tasks.quantize.task import quantize_checkpoint
    from tasks.requant.task import requantize_draft
    from tasks.run import Run

    run = Run.start(demo_spec(200), scratch / "root")
    source = fetch_source.fn(run)
    return requantize_draft.fn(run, source, quantize_checkpoint.fn(run, source)).path


def tell(row: Row) -> None:
    """One line as soon as it is known."""
    said = ", ".join(f"{name} {report.verdict}" for name, report in row.reports.items())
    print(f"[{time.strftime('%H:%M:%S')}] {row.fault}: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
