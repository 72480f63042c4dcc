"""One browser for all tests of the live page; each opens the page anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found
