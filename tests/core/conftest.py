"""The store that the tests of conversations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.talks import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.assert_nothing_is_left()
