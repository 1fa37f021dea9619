"""The pages that derive from code say what the code says."""

from docs.generate import PAGE, page


def test_the_log_page_is_what_the_declared_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.generate`"
