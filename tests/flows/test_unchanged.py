from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import flows.unchanged
from flows.decide import Basis, Decision
from flows.unchanged import basis_of, changes, decisions, recipe_digest, unchanged, why_again
from tasks.artifacts import Publication, ReleaseVerdict, Source
from tasks.run import Run
from tasks.spec import ReleaseSpec, load_spec

BASIS = Basis(source="s" * 20, recipe="r" * 20, image=None, code="c" * 20)


@pytest.fixture
def run(tmp_path: Path, demo_spec: ReleaseSpec) -> Run:
    return Run.start(demo_spec, tmp_path)


def ended(
    run: Run,
    name: str,
    verdict: ReleaseVerdict = ReleaseVerdict.RELEASED,
    basis: Basis | None = BASIS,
    published: Path | None = None,
) -> None:
    """An earlier run's decision."""
    where = published or run.root / "published"
    if published is None:
        where.mkdir(exist_ok=True)
    decision = Decision(
        verdict=verdict,
        published=True,
        why="4 gates passed",
        release=run.spec.name,
        run=name,
        basis=basis,
        publication=Publication(to="folder", location=str(where), revision="x"),
    )
    folder = run.folder.parent / name
    folder.mkdir()
    (folder / "decision.json").write_text(decision.model_dump_json())


def test_the_same_basis_as_the_last_release_is_unchanged_and_says_why(run: Run) -> None:
    ended(run, "20200101-000000-aaaa")
    decision = unchanged(run, BASIS)
    assert decision is not None
    assert decision.verdict is ReleaseVerdict.UNCHANGED
    assert not decision.published
    assert "20200101-000000-aaaa" in decision.why and "source ssssssssssss" in decision.why


@pytest.mark.parametrize("field", ["source", "recipe", "image", "code"])
def test_any_change_releases_again_and_says_which(run: Run, field: str) -> None:
    ended(run, "20200101-000000-aaaa")
    now = BASIS.model_copy(update={field: "new"})
    assert unchanged(run, now) is None
    words = "base image" if field == "image" else field
    assert f"{words} " in why_again(run, now) and "-> new" in why_again(run, now)


@pytest.mark.parametrize("verdict", [ReleaseVerdict.REJECTED, ReleaseVerdict.INCONCLUSIVE])
def test_what_was_not_released_is_tried_again(run: Run, verdict: ReleaseVerdict) -> None:
    ended(run, "20200101-000000-aaaa")
    ended(run, "20200102-000000-aaaa", verdict)
    assert unchanged(run, BASIS) is None
    assert f"ended {verdict}" in why_again(run, BASIS)


def test_an_unchanged_run_does_not_hide_the_release_before_it(run: Run) -> None:
    ended(run, "20200101-000000-aaaa")
    ended(run, "20200102-000000-aaaa", ReleaseVerdict.UNCHANGED)
    assert [decision.run for decision in decisions(run.folder.parent)] == ["20200101-000000-aaaa"]
    assert unchanged(run, BASIS) is not None


def test_a_release_that_is_gone_is_published_again(run: Run) -> None:
    ended(run, "20200101-000000-aaaa", published=run.root / "elsewhere")
    assert unchanged(run, BASIS) is None
    assert "is gone" in why_again(run, BASIS)


def test_nothing_known_is_no_reason_to_skip(run: Run) -> None:
    assert unchanged(run, BASIS) is None
    ended(run, "20200101-000000-aaaa", basis=None)
    (run.folder.parent / "20200102-000000-aaaa").mkdir()
    (run.folder.parent / "20200102-000000-aaaa" / "decision.json").write_text("{")
    assert unchanged(run, BASIS) is None
    assert why_again(run, BASIS) == "there is no earlier run"


def test_the_recipe_is_the_spec_and_the_bytes_it_names(
    tmp_path: Path, demo_spec: ReleaseSpec
) -> None:
    rows = tmp_path / "rows.jsonl"
    shutil.copy("deployments/demo/data/calibration.jsonl", rows)
    demo = Path("deployments/demo/release.yaml")
    spec = load_spec(demo, {"quantize.calibration.file": str(rows)})
    before = recipe_digest(spec)
    assert before == recipe_digest(spec)
    assert before != recipe_digest(load_spec(demo, {"gates.gsm8k.limit": 3}))
    with rows.open("a") as file:
        file.write('{"text": "more"}\n')
    assert before != recipe_digest(spec)


def test_the_basis_holds_source_image_and_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(path=run.root, repo=None, revision=None, digest="d1", architecture="X")
    before = basis_of(run, source, refresh=False)
    assert before == basis_of(run, source, refresh=False)
    moved = source.model_copy(update={"digest": "d2"})
    assert [line.split()[0] for line in changes(before, basis_of(run, moved, refresh=False))] == [
        "source"
    ]
    monkeypatch.setattr(flows.unchanged, "CODE", ("tasks",))
    assert [line.split()[0] for line in changes(before, basis_of(run, source, refresh=False))] == [
        "code"
    ]
