"""Each page of the gallery does what it shows, and draws its picture."""

from pathlib import Path

import pytest

from docs.pictures.draw import GALLERY, gallery_pages, run_page


@pytest.mark.parametrize("page", gallery_pages(), ids=lambda p: p.stem)
def test_a_page_shows_what_its_program_does(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, picture = run_page(page)
    assert not failed, capsys.readouterr().out
    assert page.with_suffix(".svg").read_text() == picture + "\n", "python -m docs.pictures.draw renews it"


def test_each_page_is_in_the_index_with_its_picture() -> None:
    pages = {p.stem for p in GALLERY.glob("*.md")} - {"index"}
    index = (GALLERY / "index.md").read_text()
    assert len(pages) >= 14
    assert all(
        f"({name}.md)" in index and f"({name}.svg)" in (GALLERY / f"{name}.md").read_text() for name in pages
    )
