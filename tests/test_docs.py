"""The documentation names what there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_environment_variable_is_documented():
    sources = "\n".join(path.read_text() for path in (ROOT / "tdsl").rglob("*.py"))
    used = set(re.findall(r"\bTDSL_[A-Z_]+\b", sources))
    documented = set(re.findall(r"\bTDSL_[A-Z_]+\b", (ROOT / "docs/environment.md").read_text()))
    assert used == documented


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_readme_has_one_command_for_the_demo_and_one_for_the_tests():
    blocks = re.findall(
        r"^```bash\n(python3 -m venv [^\n]*)\n```", (ROOT / "README.md").read_text(), re.M
    )
    assert len(blocks) == 2
    assert "tdsl demo" in blocks[0]
    assert "pytest" in blocks[1]
