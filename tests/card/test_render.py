from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from huggingface_hub import EvalResultEntry, ModelCard
from huggingface_hub._eval_results import parse_eval_result_entries

from tasks.artifacts import Counts, GateReport, Verdict
from tasks.card.check import empty_values
from tasks.card.material import CardMaterial
from tasks.card.reconcile import reconcile
from tasks.card.regions import NAMES, find_regions
from tasks.card.render import render_card
from tasks.errors import BadInputError
from tests.card.making import make_material, make_reports


@pytest.fixture
def drawn() -> None:
    """For a test that looks at the plots: they are drawn."""


@pytest.fixture(autouse=True)
def quick_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("tasks.card.plots._canvas", lambda: (Mock(), Mock()))
        monkeypatch.setattr("tasks.card.plots._save", lambda figure, path: _touch(path))


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def render(root: Path, spec: dict[str, Any] | None = None, **changed: Any) -> str:
    return render_card(make_material(root, spec, **changed), root / "card").path.read_text()


def without(material: CardMaterial, gate: str, key: str) -> CardMaterial:
    report = material.reports[gate]
    measured = {**report.measured, key: None}
    reports = {**material.reports, gate: report.model_copy(update={"measured": measured})}
    return material.model_copy(update={"reports": reports})


def test_headline_says_what_was_measured(tmp_path: Path) -> None:
    card = render(tmp_path)
    for words in (
        "# Tiny-MoE-NVFP4-MTP",
        "[Qwen/Tiny-MoE](https://huggingface.co/Qwen/Tiny-MoE), revision `0f0f0f0f0f0f`",
        "**96.51 %** (at least 95.54 % with 95 % confidence; 1,319 problems)",
        "**2.713** of at most 3 tokens a verification (2.701 to 2.726 with 95 % confidence",
        "SGLang 0.5.17, NVIDIA H200",
        "256 rows, 24,117 tokens",
        "k_scale 0.0398000017",
        "borrowed, byte for byte, from `model.language_model.layers.3.self_attn`",
        "`registry/sglang@sha256:3434",
        "1,318 of 1,319",
    ):
        assert words in card


def test_a_gate_that_stopped_early_says_what_its_bounds_count(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    report = material.reports["gsm8k"]
    early = report.model_copy(update={"measured": {**report.measured, "problems": 1400}})
    card = render(tmp_path, reports={**material.reports, "gsm8k": early})
    assert "1,319 of 1,400 problems)" in card
    assert "The lower bound counts the rest as wrong, the upper one as right." in card
    assert reconcile(tmp_path / "card") == []


def test_the_program_and_the_seconds_of_the_calibration_are_named(tmp_path: Path) -> None:
    card = render(tmp_path, environment={"packages": {"quantgate": "0.1.0"}})
    assert ", by quantgate 0.1.0 |" in card
    assert "2026-11-30 12:00:00 UTC to 2026-11-30 12:" in card
    assert reconcile(tmp_path / "card") == []


def test_counts_come_from_the_files(tmp_path: Path) -> None:
    card = render(tmp_path)
    assert "| main model | routed experts | NVFP4 | 2 | 4,096 | 2.32 kB |" in card
    assert "| main model | vision | BF16 | 1 | 2,048 | 4.10 kB |" in card
    assert "| draft head | draft fc | BF16 | 1 | 2,048 | 4.10 kB |" in card


def test_the_card_is_the_same_twice(tmp_path: Path, drawn: None) -> None:
    material = make_material(tmp_path)
    first, second = render_card(material, tmp_path / "a"), render_card(material, tmp_path / "b")
    for one in (first.path, *first.files):
        other = second.path.parent / one.relative_to(first.path.parent)
        assert one.read_bytes() == other.read_bytes()
    before = first.path.read_bytes()
    assert render_card(material, tmp_path / "a").path.read_bytes() == before
    assert sum(path.stat().st_size for path in first.files) < 200_000
    plots = [path for path in first.files if path.suffix == ".png"]
    assert [path.read_bytes()[:4] for path in plots] == [b"\x89PNG"] * 2


def test_rendering_again_keeps_what_people_wrote(tmp_path: Path) -> None:
    render(tmp_path)
    path = tmp_path / "card" / "README.md"
    card = path.read_bytes()
    mine = card.replace(
        b"## License and use", b"My own {{ words }} \xc3\xa9?\t \n\n## License and use"
    )
    mine = mine.replace(b"# END quant:metadata", b"# END quant:metadata\nthumbnail: x.png")
    path.write_bytes(mine.replace(b"\n", b"\r\n"))
    reports = make_reports()
    changed = {**reports["gsm8k"].measured, "accuracy": 0.9876}
    reports["gsm8k"] = reports["gsm8k"].model_copy(update={"measured": changed})
    render_card(make_material(tmp_path, reports=reports), tmp_path / "card")
    after = path.read_bytes()
    assert b"98.76 %" in after and b"96.51 %" not in after
    assert _outside(after) == _outside(mine.replace(b"\n", b"\r\n"))
    assert after.count(b"\n") == after.count(b"\r\n")


def _outside(card: bytes) -> list[bytes]:
    regions = sorted(find_regions(card).values(), key=lambda region: region.start)
    starts = [0, *(region.end for region in regions)]
    ends = [*(region.start for region in regions), len(card)]
    return [card[start:end] for start, end in zip(starts, ends, strict=True)]


def test_every_number_is_in_the_evidence(tmp_path: Path) -> None:
    render(tmp_path)
    assert reconcile(tmp_path / "card") == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("README.md", "96.51 %", "96.52 %"),
        ("README.md", "tensors read 31", "tensors read 32"),
        ("README.md", "## Limits\n", "## Limits\n\n- It was 1.7 times faster.\n"),
        ("evidence/gates/gsm8k.json", '"low": 0.9554', '"low": 0.9654'),
        ("evidence/provenance.json", '"rows": 256', '"rows": 512'),
        ("evidence/numbers.json", '"2.713"', '"2.714"'),
        ("README.md", "value: 96.5125", "value: 97.5125"),
        (".eval_results/gsm8k.yaml", "value: 96.5", "value: 98.5"),
    ],
)
def test_a_number_that_no_file_bears_out_is_found(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    render(tmp_path)
    path = tmp_path / "card" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert reconcile(tmp_path / "card") != []


def test_evidence_ties_the_card_to_the_weights(tmp_path: Path) -> None:
    render(tmp_path)
    manifest = json.loads((tmp_path / "card/evidence/manifest.json").read_text())
    assert set(manifest["files"]) == {"config.json", "model.safetensors"}
    assert manifest["digest"][:12] in (tmp_path / "card/README.md").read_text()
    sums = (tmp_path / "card/evidence/SHA256SUMS").read_bytes()
    assert hashlib.sha256(sums).hexdigest() == manifest["digest"]
    provenance = (tmp_path / "card/evidence/provenance.json").read_text()
    assert str(tmp_path) not in provenance


def test_weights_that_changed_since_they_were_measured_get_no_card(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    (material.checkpoint.path / "config.json").write_text('{"architectures": []}')
    with pytest.raises(BadInputError, match="changed since they were measured") as caught:
        render_card(material, tmp_path / "card")
    assert caught.value.code == "card-weights"


@pytest.mark.parametrize(
    ("gate", "key"),
    [("gsm8k", "accuracy"), ("acceptance", "accept_length"), ("smoke", "known_right")],
)
def test_a_value_that_is_not_known_is_an_error(tmp_path: Path, gate: str, key: str) -> None:
    material = without(make_material(tmp_path), gate, key)
    with pytest.raises(BadInputError, match=f"gates.{gate}.measured") as caught:
        render_card(material, tmp_path / "card")
    assert caught.value.code == "card-unknown"
    assert not (tmp_path / "card" / "README.md").exists()


def test_unless_the_spec_declares_it(tmp_path: Path) -> None:
    reason = "the lab's GPU was taken"
    spec = {"card": {"not_measured": {"gates.smoke.measured.known_right": reason}}}
    material = without(make_material(tmp_path, spec), "smoke", "known_right")
    card = render_card(material, tmp_path / "card").path.read_text()
    assert card.count(reason) == 2


def test_skipped_samples_say_why(tmp_path: Path) -> None:
    why = "the source does not fit this machine"
    card = render(tmp_path, samples=(), sample_run=None, samples_skipped=why)
    assert why in card
    with pytest.raises(BadInputError, match="samples"):
        render(tmp_path, samples=(), sample_run=None)


def test_the_commands_are_those_that_ran(tmp_path: Path) -> None:
    card = render(tmp_path)
    assert "python -m sglang.launch_server \\\n  --model-path Tiny-MoE-NVFP4-MTP" in card
    assert "http://127.0.0.1:30123/v1/chat/completions" in card
    assert str(tmp_path) not in card


def test_a_release_without_draft_or_image_says_so(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    spec = {
        "draft": {"precision": "none"},
        "serve": {"engine": "reference", "speculation": {"algorithm": "none"}},
        "gates": {"engines": ["reference"], "acceptance": None},
    }
    reports = {name: report for name, report in make_reports().items() if name != "acceptance"}
    draft = material.checkpoint.draft
    assert draft is not None
    bare = draft.model_copy(update={"precision": "none", "scales": "none", "k_scale": None})
    checkpoint = material.checkpoint.model_copy(update={"draft": bare})
    card = render(tmp_path, spec, checkpoint=checkpoint, image=None, reports=reports)
    assert "This release has no draft head" in card
    assert "rounds no activation" in card
    assert "the reference engine of quantgate" in card
    assert "reference" not in ModelCard.load(tmp_path / "card" / "README.md").data.tags
    assert reconcile(tmp_path / "card") == []


def test_the_hub_reads_the_metadata(tmp_path: Path) -> None:
    render(tmp_path, {"card": {"tags": ["mine"]}})
    data = ModelCard.load(tmp_path / "card" / "README.md").data
    assert (data.license, data.base_model, data.base_model_relation) == (
        "apache-2.0",
        "Qwen/Tiny-MoE",
        "quantized",
    )
    assert data.pipeline_tag == "image-text-to-text"
    assert {"nvfp4", "sglang", "mtp", "mine"} <= set(data.tags)
    (result,) = data.eval_results
    assert (result.dataset_type, result.metric_type) == ("openai/gsm8k", "accuracy")
    assert result.metric_value == pytest.approx(96.5125, abs=1e-4)
    entries = parse_eval_result_entries(
        yaml.safe_load((tmp_path / "card/.eval_results/gsm8k.yaml").read_text())
    )
    assert isinstance(entries[0], EvalResultEntry)
    assert (entries[0].dataset_id, entries[0].task_id) == ("openai/gsm8k", "gsm8k")


def test_a_private_benchmark_makes_no_eval_result(tmp_path: Path) -> None:
    card = render(tmp_path, {"gates": {"gsm8k": {"data": "demo/problems.jsonl"}}})
    assert not (tmp_path / "card/.eval_results").exists()
    assert "**Math problems (problems.jsonl), accuracy**" in card
    assert "the figure is not a GSM8K score" in card
    assert "GSM8K, accuracy" not in card and "openai/gsm8k" not in card


def test_an_inherited_license_keeps_name_and_link(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    link = "https://example.org/license"
    source = material.source.model_copy(
        update={"license": "other", "license_name": "qwen", "license_link": link}
    )
    render(tmp_path, source=source)
    data = ModelCard.load(tmp_path / "card" / "README.md").data
    assert (data.license, data.license_name, data.license_link) == ("other", "qwen", link)


def test_comparisons_become_tables(tmp_path: Path) -> None:
    rows = [
        {"draft_head": "bf16", "accept_length": 2.7301, "requests": 240},
        {"draft_head": "heuristic", "accept_length": 2.7134, "requests": 240},
        {"draft_head": "calibrated", "accept_length": None, "requests": 240},
    ]
    tables = {"draft_heads": rows, "measured_on": {"hardware": "NVIDIA H200"}}
    card = render(tmp_path, comparisons=tables)
    assert "| calibrated |" not in card and "hardware NVIDIA H200" in card
    assert "| draft head | accept length | requests |" in card
    assert "| bf16 | 2.73 | 240 |" in card
    assert "was not compared with a BF16 one" not in card
    assert reconcile(tmp_path / "card") == []


@pytest.mark.parametrize(
    "line",
    [
        "| accuracy |  |",
        "| accuracy | ? |",
        "| a | None |",
        "- device: unknown",
        "It has ? rows",
        "1. nan",
    ],
)
def test_an_empty_value_is_found(line: str) -> None:
    assert empty_values(f"fine\n{line}\n") != []


def test_quoted_text_may_say_anything() -> None:
    quoted = "<table><tr><td>None? unknown ?</td></tr></table>\n```\n| ? | |\n```\n"
    assert empty_values(quoted + "| what? | it's **none** the worse |\n|---|--:|\n") == []


def test_all_regions_are_there(tmp_path: Path) -> None:
    assert set(find_regions(render(tmp_path).encode())) == {"metadata", *NAMES}


def test_an_unjudged_gate_is_shown_as_it_is(tmp_path: Path) -> None:
    extra = GateReport(
        gate="perplexity",
        verdict=Verdict.PASS,
        measured={"perplexity": 7.25},
        counts=Counts(asked=10, scored=10),
        engine={"name": "vllm"},
        hardware={"device": "NVIDIA L4"},
    )
    card = render(tmp_path, reports={**make_reports(), "perplexity": extra})
    assert "| perplexity | 7.25 |" in card and "vLLM, NVIDIA L4" in card
