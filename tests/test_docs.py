from __future__ import annotations

from pathlib import Path

from tasks.spec_page import SECTIONS, spec_page


def test_the_spec_page_is_what_the_spec_says() -> None:
    said = Path("docs/spec.md").read_text(encoding="utf-8")
    assert said == spec_page(), "run: python -m tasks.spec_page > docs/spec.md"


def test_the_spec_page_has_every_section() -> None:
    from tasks import spec

    parts = {
        value
        for value in vars(spec).values()
        if isinstance(value, type) and issubclass(value, spec.Part) and not value.__subclasses__()
    }
    assert parts == {model for _, model in SECTIONS}
