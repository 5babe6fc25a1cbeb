"""Settings of the transaction coordinator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Settings of the transaction coordinator.

    Attributes:
        transaction_timeout_ms_max: the longest timeout that a producer may request (`transaction.max.timeout.ms`).
        transactional_id_expiration_ms: the coordinator forgets an id that was not used for this time
            (`transactional.id.expiration.ms`).
        two_phase_commit_enable: whether transactions may stay open after their producers have stopped (KIP-939,
            `transaction.two.phase.commit.enable`).
        strict: whether TV1 (transaction version 1) is refused (`stablelog.transaction.strict`). With TV1, an EndTxn
            that the network has delayed can end the producer's next transaction, and a broker cannot detect it.
    """

    transaction_timeout_ms_max: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    two_phase_commit_enable: bool = False
    strict: bool = False
