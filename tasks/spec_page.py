"""`python -m tasks.spec_page > docs/spec.md`: every field of the release spec, from its schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticUndefined

from tasks import spec
from tasks.spec import Part, ReleaseSpec

INTRODUCTION = """# The release spec

One model, three forms: the YAML file, `--set section.field=value` on the command line, and the form
in the Prefect UI. An unknown field is an error. Relative paths are relative to the working
directory. This page is made by `python -m tasks.spec_page > docs/spec.md`.
"""
SECTIONS: tuple[tuple[str, type[Part]], ...] = (
    ("(top level)", ReleaseSpec),
    ("source (at: hub)", spec.HubSource),
    ("source (at: folder)", spec.FolderSource),
    ("quantize", spec.QuantizeSpec),
    ("quantize.calibration", spec.CalibrationSpec),
    ("quantize.launch", spec.LaunchSpec),
    ("draft", spec.DraftSpec),
    ("image", spec.ImageSpec),
    ("serve", spec.ServeSpec),
    ("serve.start (how: container)", spec.ContainerStart),
    ("serve.start (how: process)", spec.ProcessStart),
    ("serve.start (how: url)", spec.UrlStart),
    ("serve.speculation", spec.SpeculationSpec),
    ("gates", spec.GatesSpec),
    ("gates.audit", spec.AuditGate),
    ("gates.smoke", spec.SmokeGate),
    ("gates.gsm8k", spec.Gsm8kGate),
    ("gates.acceptance", spec.AcceptanceGate),
    ("card", spec.CardSpec),
    ("publish", spec.PublishSpec),
    ("publish.approval", spec.ApprovalSpec),
)


def spec_page() -> str:
    """The page's text."""
    return INTRODUCTION + "".join(
        f"\n## {title}\n{model.__doc__}\n\n" + "".join(_table(model)) for title, model in SECTIONS
    )


def _table(model: type[Part]) -> Iterator[str]:
    yield "| field | default | limits | meaning |\n| --- | --- | --- | --- |\n"
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        meaning = field.description or "a section of its own, below"
        default = _default(field.default, field.default_factory is not None)
        yield f"| `{name}` | {default} | {_limits(properties[name])} | {meaning} |\n"


def _default(value: Any, made: bool) -> str:
    if value is PydanticUndefined:
        return "empty" if made else "required"
    if isinstance(value, Part):
        return "its defaults"
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "empty"
    text = str(value).replace("\n", " ")
    return f"`{text}`" if text else "empty"


def _limits(field: dict[str, Any]) -> str:
    branches = [field, *field.get("anyOf", [])]
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [
        f"{sign} {branch[key]}"
        for branch in branches
        for key, sign in words.items()
        if key in branch
    ]
    for branch in branches:
        found += [f"`{choice}`" for choice in branch.get("enum", [])]
    return ", ".join(found) or "-"


if __name__ == "__main__":
    print(spec_page(), end="")
