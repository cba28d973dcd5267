from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.errors import BadInputError
from tasks.spec import ReleaseSpec, SpeculationSpec, load_spec, parse_override

DEMO = Path("deployments/demo/release.yaml")
REAL = Path("deployments/releases/qwen3.6-35b-a3b-nvfp4-mtp.yaml")


def refused(path: Path, **overrides: Any) -> str:
    settings = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(BadInputError) as caught:
        load_spec(path, settings)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", [DEMO, *sorted(REAL.parent.glob("*.yaml"))], ids=str)
def test_every_shipped_spec_loads(path: Path) -> None:
    assert load_spec(path).name


def test_the_real_release_holds_its_thresholds() -> None:
    spec = load_spec(REAL)
    assert spec.gates.gsm8k.min_accuracy == 0.94
    assert spec.gates.gsm8k.confidence == 0.95
    assert spec.gates.gsm8k.limit is None
    assert spec.gates.acceptance is not None
    assert (spec.gates.acceptance.min_accept, spec.gates.acceptance.max_accept) == (2.5, 2.97)
    assert spec.serve.engine == "sglang"


def test_the_real_release_refuses_the_reference_engine() -> None:
    assert "`reference` does not count" in refused(REAL, serve__engine="reference")


def test_an_unknown_key_is_named() -> None:
    assert "gates.gsm8k.min_acuracy" in refused(DEMO, gates__gsm8k__min_acuracy=0.9)


def test_a_threshold_out_of_range_is_named() -> None:
    assert "gates.gsm8k.min_accuracy" in refused(DEMO, gates__gsm8k__min_accuracy=1.01)


@pytest.mark.parametrize("repo", ["../x", "a/..", "../..", "./.", "-a/b", "a b/c", "a/b/c", "a"])
def test_a_repository_name_leads_nowhere_else(repo: str) -> None:
    assert "publish.repo" in refused(DEMO, publish__repo=repo)
    assert "source.folder.repo" in refused(DEMO, source__repo=repo)


@pytest.mark.parametrize("prompt", ["Solve it.", "{questions}", "{question} {", "{{question}}"])
def test_a_prompt_that_does_not_ask_the_question_is_refused(prompt: str) -> None:
    assert "gates.gsm8k.prompt" in refused(DEMO, gates__gsm8k__prompt=prompt)


def test_the_paired_rule_needs_something_to_pair_with() -> None:
    assert "needs a baseline" in refused(DEMO, gates__gsm8k__rule="non-inferior")


@pytest.mark.parametrize(
    "env", [{"HF_TOKEN": "x"}, {"MY_API_KEY": "x"}, {"OTHER": "hf_abc"}], ids=str
)
def test_a_secret_is_refused_because_the_spec_is_published(env: dict[str, str]) -> None:
    assert "looks like a secret" in refused(DEMO, serve__env=env)


def test_settings_that_only_sound_like_a_secret_are_not() -> None:
    assert load_spec(DEMO, {"serve.env": {"MAX_TOKENS": "8"}}).serve.env == {"MAX_TOKENS": "8"}


def test_what_was_not_measured_needs_a_reason() -> None:
    assert "card.not_measured" in refused(DEMO, card__not_measured={"gates.smoke": " "})


def test_a_tag_that_no_repository_takes_is_refused() -> None:
    assert "publish.tag" in refused(DEMO, publish__tag="-v 1")


def test_accept_bounds_must_be_in_order_and_reachable() -> None:
    assert "min_accept" in refused(DEMO, gates__acceptance__min_accept=2.98)
    assert "draft_tokens" in refused(DEMO, gates__acceptance__max_accept=3.5)


def test_one_branch_makes_one_token_more_than_steps() -> None:
    said = refused(DEMO, serve__speculation__num_steps=5)
    assert "5 draft steps and topk 1 make 6 tokens" in said
    assert SpeculationSpec(num_steps=5, topk=2, draft_tokens=8).draft_tokens == 8
    with pytest.raises(ValidationError, match="make 5 tokens"):
        SpeculationSpec(num_steps=4)


def test_a_release_without_draft_head_gates_no_acceptance() -> None:
    assert "algorithm" in refused(DEMO, draft__precision="none")
    settings = {
        "draft.precision": "none",
        "serve.speculation": {"algorithm": "none"},
        "gates.acceptance": None,
    }
    assert load_spec(DEMO, settings).gates.acceptance is None


def test_a_calibration_without_text_is_refused() -> None:
    assert "calibration" in refused(DEMO, quantize__calibration={"rows": 4})


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [1\n"])
def test_a_file_that_is_no_spec_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert str(path) in refused(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.yaml")


def test_overrides_are_yaml() -> None:
    assert parse_override("gates.gsm8k.limit=40") == ("gates.gsm8k.limit", 40)
    assert parse_override("card.tags=[a, b]") == ("card.tags", ["a", "b"])
    with pytest.raises(BadInputError, match="no `=`"):
        parse_override("gates.gsm8k.limit")


def test_every_field_is_described_for_the_form() -> None:
    definitions = ReleaseSpec.model_json_schema()["$defs"]
    undescribed = [
        f"{model}.{name}"
        for model, body in definitions.items()
        for name, field in body.get("properties", {}).items()
        if "description" not in field and "const" not in field and not _is_section(field)
    ]
    assert undescribed == []


def _is_section(field: dict[str, Any]) -> bool:
    return "$ref" in str(field)


def test_what_the_form_left_of_another_tab_is_dropped_and_nothing_else() -> None:
    carried = {"how": "url", "url": "http://127.0.0.1:1", "python": None, "command": []}
    assert load_spec(DEMO, {"serve.start": carried}).serve.start.how == "url"
    assert "serve.start" in refused(DEMO, serve__start={**carried, "python": "python3.11"})
    assert "serve.start" in refused(DEMO, serve__start={**carried, "pyton": None})
