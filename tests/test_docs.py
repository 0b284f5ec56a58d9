"""The documentation names what there is."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import tdsl
from docs.pictures.draw import pictures
from tdsl.autoschedule.recipes.online_tensor_cores import OnlineTensorCores
from tdsl.autoschedule.recipes.tensor_tiles import TensorCoreChoices

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
    blocks = re.findall(r"^```bash\n(python3 -m venv [^\n]*)\n```", (ROOT / "README.md").read_text(), re.M)
    assert len(blocks) == 2
    assert "tdsl demo" in blocks[0]
    assert "pytest" in blocks[1]


PROGRAM = re.compile(
    r"^```python\n(# (\w+\.py)\n.*?)^```\n(?:(?!```)[^\n]*\n)*```text\n(.*?)^```", re.M | re.S
)
PROGRAMS = [
    pytest.param(*program, id=f"{page.relative_to(ROOT)}-{program[1]}")
    for page in PAGES
    for program in PROGRAM.findall(page.read_text())
]


@pytest.mark.parametrize("source, name, shown", PROGRAMS)
def test_a_program_of_a_page_prints_what_the_page_shows(source, name, shown, tmp_path):
    """`name` is the file in the program's first line; of an uncaught error its text is shown."""
    program = tmp_path / name
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    error = re.search(r"^tdsl\.errors\..*", done.stderr, re.M | re.S)
    assert done.stdout + (error[0] if error else done.stderr) == shown


def test_the_readme_shows_an_operator_a_schedule_and_an_error():
    assert len(PROGRAM.findall((ROOT / "README.md").read_text())) == 3


@pytest.mark.parametrize("name, text", pictures().items())
def test_pictures_are_those_of_today(name, text):
    """`python -m docs.pictures.draw` renews them."""
    assert (ROOT / "docs" / "pictures" / name).read_text() == text + "\n"


def test_every_public_name_is_in_the_reference():
    pages = [(ROOT / "docs" / name).read_text() for name in ("language.md", "errors.md")]
    written = set(re.findall(r"`(?:td\.)?(\w+)`", "\n".join(pages)))
    assert set(tdsl.__all__) <= written


def test_every_recipe_is_on_a_page():
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("schedule", "distribution"))
    absent = [x for x in tdsl.recipes.__all__ if f"`{x}" not in pages and f"recipes.{x}" not in pages]
    assert not absent


@pytest.mark.parametrize("plan", [OnlineTensorCores, TensorCoreChoices], ids=lambda x: x.__name__)
def test_every_choice_of_a_recipe_is_in_its_table(plan):
    recipe = sys.modules[plan.__module__].__name__.rpartition(".")[2]
    name = "tensor_core_matmul" if recipe == "tensor_tiles" else recipe
    lines = (ROOT / "docs" / "schedule.md").read_text().splitlines()
    (row,) = (x for x in lines if x.startswith("|") and f"`{name}` |" in x and "(stage)" not in x)
    assert all(f"`{field.name}`" in row for field in fields(plan))


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference.md").read_text()
    listed = re.findall(r"auto(?:class|function):: tdsl\.(\w+)$|`td\.(\w+)`", page, re.M)
    modules = {"cuda", "mpi", "recipes"}  # pages of their own
    assert set(tdsl.__all__) - modules == {a or b for a, b in listed}


def test_the_list_of_decisions_has_all_of_them():
    folder = ROOT / "docs" / "decisions"
    linked = re.findall(r"\((0.*\.md)\)", (folder / "index.md").read_text())
    assert linked == sorted(path.name for path in folder.glob("0*.md"))
