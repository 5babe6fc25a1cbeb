"""Login modules in the language of JAAS."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.wire.sasl.jaas import check_module, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_the_form_of_kafkas_documentation():
    jaas = parse_jaas(
        f'{PLAIN} required \\\n  username="admin" \n password="admin-secret" user_admin="admin-secret" user_alice=bare;'.replace(
            "\\\n", "\n"
        )
    )
    assert jaas.module == "PlainLoginModule"
    assert jaas.users == {"admin": "admin-secret", "alice": "bare"}
    assert jaas.options["username"] == "admin"
    assert parse_jaas("ScramLoginModule required;").users == {}
    assert check_module("SCRAM-SHA-512", parse_jaas("x.ScramLoginModule required;")).options == {}


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ('password="a\\tb\\nc"', "a\tb\nc"),
        (r'password="\"\\ \x"', '"\\ x'),
        (r'password="\101\0\477\08"', "A\0'7\0" + "8"),
        ("password='it\\'s \"'", "it's \""),
        ("password=bare-5", "bare-5"),
        ('// "quoted\n password="a // b" /* user_a="c"; \n */', "a // b"),
        ('\r\n\tpassword = "a"\n', "a"),
    ],
)
def test_texts_are_read_as_java_reads_them(text, password):
    """Compared with java.io.StreamTokenizer, as Kafka's JaasConfig sets it up."""
    for flag in ("required", "REQUIRED"):
        jaas = parse_jaas(f'{PLAIN} {flag} username="a" {text}; // the end')
        assert jaas.options == {"username": "a", "password": password}


@pytest.mark.extended
@given(st.text(min_size=1))
def test_any_password_can_be_quoted(password):
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_jaas(f'{PLAIN} required user_alice="{quoted}";').users == {"alice": password}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        PLAIN,
        f"{PLAIN} required",
        f"{PLAIN};",
        f"{PLAIN} needed;",
        f'{PLAIN} required user_a="secret"',
        f'{PLAIN} required user_a "secret";',
        f'{PLAIN} required user_a="secret;',
        f'{PLAIN} required user_a="secret" user_a="secret";',
        f'{PLAIN} required user_="secret";',
        f'{PLAIN} required user_a="";',
        f'{PLAIN} required user_a="secret"; {PLAIN} required;',
        f'{PLAIN} required ="secret";',
        f"{PLAIN} required user_a==secret;",
    ],
)
def test_other_text_is_refused_without_a_quotation(text):
    with pytest.raises(ValueError) as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)


def test_a_module_belongs_to_its_mechanism():
    with pytest.raises(ValueError, match="the login module of OAUTHBEARER is OAuthBearerLoginModule"):
        check_module("OAUTHBEARER", parse_jaas(f"{PLAIN} required;"))


def test_a_module_does_not_show_its_options():
    assert "secret" not in repr(parse_jaas(f'{PLAIN} required user_a="secret";'))
