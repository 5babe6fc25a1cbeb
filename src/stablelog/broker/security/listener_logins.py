"""Reads the settings of logins of each listener with SASL."""

from collections.abc import Mapping
from typing import Any

from stablelog.broker.security.logins import ListenerLogins
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.listeners import Listener
from stablelog.broker.settings.logins import JAAS, MAX_REAUTH, mechanism_setting
from stablelog.errors import UsageError
from stablelog.security.login import LoginRules
from stablelog.security.tokens import TokenRules
from stablelog.wire.sasl import OAUTHBEARER, PLAIN


def listener_logins(config: BrokerConfig) -> Mapping[str, ListenerLogins]:
    """Return the settings of the logins of each listener with SASL, by the name of the listener.

    Raises:
        UsageError: a listener has no mechanism, or it has OAUTHBEARER and no URL of the keys that sign tokens.
    """
    return {listener.name: _logins_of(config, listener) for listener in config.listeners if listener.is_sasl}


def _logins_of(config: BrokerConfig, listener: Listener) -> ListenerLogins:
    def value(name: str) -> Any:
        return config.listener_value(listener.name, name)

    mechanisms: tuple[str, ...] = value("sasl.enabled.mechanisms")
    if not mechanisms:
        raise UsageError(f"listener {listener.name} has no mechanism: set sasl.enabled.mechanisms")
    session_ms_max = {}
    for mechanism in mechanisms:
        own = value(mechanism_setting(mechanism, MAX_REAUTH))
        session_ms_max[mechanism] = value(MAX_REAUTH) if own < 0 else own
    jaas = value(mechanism_setting(PLAIN, JAAS))
    rules, url = None, value("sasl.oauthbearer.jwks.endpoint.url")
    if OAUTHBEARER in mechanisms:
        if not url:
            raise UsageError(
                f"listener {listener.name} has OAUTHBEARER, and no keys that sign tokens: set "
                "sasl.oauthbearer.jwks.endpoint.url"
            )
        rules = TokenRules(
            audiences=value("sasl.oauthbearer.expected.audience"),
            issuer=value("sasl.oauthbearer.expected.issuer"),
            user_claim=value("sasl.oauthbearer.sub.claim.name"),
            scope_claim=value("sasl.oauthbearer.scope.claim.name"),
            clock_skew_ms=value("sasl.oauthbearer.clock.skew.seconds") * 1000,
        )
    return ListenerLogins(
        LoginRules(mechanisms, session_ms_max),
        jaas.users if jaas is not None and PLAIN in mechanisms else {},
        rules,
        url,
        value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
    )
