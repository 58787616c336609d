"""The promises of each port, written once, and held by every adapter of it."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.contracts.{name}_contract" for name in ("fact", "outbox", "reader", "store", "unit"))
)
