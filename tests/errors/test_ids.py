"""Messages have identifiers that stay and lead to an explanation; names of other libraries lead to hints."""

import pytest
from typer.testing import CliRunner

import tdsl as td
from tdsl.core.error_ids import find, id_of, messages
from tdsl.core.other_names import OTHER_NAMES
from tdsl.schedule.fluent import Stage
from tdsl.tools.cli import app
from tests.errors.ids import PAGE, page, templates

RENEW = "renew the list: python -m tests.errors.ids"


def test_every_message_has_one_identifier():
    listed = [(m.code, m.template) for m in messages() if not m.retired]
    assert {*listed} == templates(), RENEW
    assert len(listed) == len({*listed})


def test_identifiers_are_counted():
    """No entry is removed: an identifier that was printed once keeps its meaning."""
    assert [m.id for m in messages()] == [f"TD{n:04}" for n in range(1, len(messages()) + 1)]


def test_the_page_lists_all_messages():
    assert PAGE.read_text() == page([*messages()]), RENEW


def test_the_template_with_most_words_is_the_one():
    twice = id_of("definition", "'x' is defined twice")
    assert twice == id_of("definition", "'weights' is defined twice")
    assert twice != id_of("definition", "'x' has no definition")
    assert id_of("no code", "'x' is defined twice") == ""


def test_an_error_has_the_identifier_in_its_text():
    with pytest.raises(td.TypeMismatch) as caught:
        td.vars(3)
    error = caught.value
    assert error.id in {m.id for m in messages()}
    assert f"[type {error.id}]" in str(error)


@pytest.mark.parametrize("words", ["td0076", "'f' is defined twice", "defined TWICE"])
def test_explain(words):
    result = CliRunner().invoke(app, ["explain", words])
    assert result.exit_code == 0
    assert "... is defined twice [definition]" in result.output
    assert "# <- here" in result.output
    assert "hint:" in result.output


def test_explain_of_what_is_not_known():
    result = CliRunner().invoke(app, ["explain", "TD9999"])
    assert result.exit_code == 2
    assert "'TD9999'" in result.output
    assert find("") == []


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_other_libraries(name):
    assert not hasattr(Stage, name)
    with pytest.raises(td.UnknownAttribute) as caught:
        getattr(td, name)
    assert caught.value.hint == OTHER_NAMES[name]
