"""The token of a login with OAUTHBEARER: from a file, a function or a token endpoint."""

import pytest

from stablelog.client.core.security import (
    read_security_settings,
)
from stablelog.client.core.tokens import get_token
from stablelog.errors import AuthenticationError
from tests.client.core.test_security import SECRET


def test_a_token_comes_from_a_file_or_a_function_at_each_login(tmp_path):
    (tmp_path / "a token").write_text(f"{SECRET}\n")
    by_file = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": (tmp_path / "a token").as_uri(),
    }
    assert get_token(read_security_settings(by_file).credentials, "h:1") == SECRET
    (tmp_path / "a token").write_text("\n")
    with pytest.raises(AuthenticationError, match="a token is empty"):
        get_token(read_security_settings(by_file).credentials, "h:1")
    (tmp_path / "a token").unlink()
    with pytest.raises(AuthenticationError, match="a token: No such file"):
        get_token(read_security_settings(by_file).credentials, "h:1")

    def failing(_):
        raise ValueError(SECRET)

    for function, wanted in ((lambda _: SECRET, SECRET), (lambda _: (SECRET, 9.0), SECRET), (failing, None)):
        by_function = {**by_file, "oauth_cb": function}
        del by_function["sasl.oauthbearer.token.endpoint.url"]
        credentials = read_security_settings(by_function).credentials
        if wanted:
            assert get_token(credentials, "h:1") == wanted
        else:
            with pytest.raises(AuthenticationError, match="raised ValueError") as refused:
                get_token(credentials, "h:1")
            assert SECRET not in str(refused.value)
