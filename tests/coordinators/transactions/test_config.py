"""The settings of the transaction coordinator."""

from stablelog.coordinators.transactions.config import TransactionConfig


def test_what_is_not_set_is_kafkas_default():
    assert TransactionConfig() == TransactionConfig(
        transaction_timeout_ms_max=15 * 60_000,
        transactional_id_expiration_ms=7 * 24 * 3_600_000,
        two_phase_commit_enable=False,
        strict=False,
    )
