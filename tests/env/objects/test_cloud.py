"""Errors of the stores of cloud providers show no credentials, whatever obstore or the store put into its message."""

import pytest

from stablelog.env.objects import cloud
from stablelog.env.objects.attempts import MissingError, RejectedError, UnclearError

URL = "s3://bucket/prefix"
OPTIONS = {
    "aws_region": "us-east-1",
    "aws_endpoint": "http://127.0.0.1:9",
    "aws_access_key_id": "theaccesskey",
    "aws_secret_access_key": "thesecret",
    "aws_session_token": "thesecret-and-more",
}
ANSWER = (
    "Error performing GET https://a.example/b?sig=thesignature&se=2026 in 1ms - 403 Forbidden: "
    "<Error><Code>AccessDenied</Code><AWSAccessKeyId>otherkey</AWSAccessKeyId><StringToSign>signed</StringToSign></Error>"
)


@pytest.fixture
def requests():
    return cloud.CloudRequests(URL, allow_http=True, options=OPTIONS)


@pytest.fixture
def failing(monkeypatch):
    """Let each request of obstore fail with an error."""

    def fail(error):
        def request(*_, **__):
            raise error

        monkeypatch.setattr(cloud.obstore, "get", request)

    return fail


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(ANSWER), RejectedError),
        (OSError("broken pipe of thesecret"), UnclearError),
        (FileNotFoundError(ANSWER), RejectedError),
    ],
)
def test_an_error_of_a_request_has_no_secret_and_no_cause(requests, failing, error, kind):
    failing(error)
    with pytest.raises(kind) as raised:
        requests.get("key")
    text = str(raised.value)
    assert [
        word for word in ("thesecret", "theaccesskey", "thesignature", "otherkey", "signed") if word in text
    ] == []
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None, "a traceback does not show the error of obstore"


def test_a_longer_secret_is_masked_before_one_that_it_contains(requests, failing):
    failing(OSError("a thesecret-and-more b us-east-1"))
    with pytest.raises(UnclearError) as raised:
        requests.get("key")
    assert str(raised.value) == "a *** b us-east-1"


def test_an_option_that_obstore_does_not_accept_is_named_without_its_value():
    with pytest.raises(ValueError, match="no_such_option") as raised:
        cloud.CloudRequests(URL, options={"no_such_option": "thesecret"})
    assert "thesecret" not in str(raised.value)
    with pytest.raises(ValueError) as raised:
        cloud.CloudRequests(
            URL, options={"aws_virtual_hosted_style_request": "true", "aws_unsigned_payload": "thesecret"}
        )
    assert "thesecret" not in str(raised.value)


def test_a_missing_object_is_still_missing(requests, failing):
    failing(FileNotFoundError("Object at location x not found"))
    with pytest.raises(MissingError):
        requests.get("key")


def test_options_of_the_http_client_and_options_with_two_names_are_refused():
    for name in ("timeout", "proxy_url", "allow_http"):
        with pytest.raises(ValueError, match=f"{name} is an option of the HTTP client"):
            cloud.CloudRequests(URL, options={name: "1"})
    with pytest.raises(ValueError, match="aws_region and region are the same option"):
        cloud.CloudRequests(URL, options={"aws_region": "a", "region": "a"})
    cloud.CloudRequests(URL, options={**OPTIONS, "unsigned_payload": "false"})


@pytest.mark.parametrize(
    ("url", "address", "names"),
    [
        (
            "s3://bucket/p",
            "http://169.254.169.254/latest/api/token",
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            "gs://bucket/p",
            "http://169.254.169.254/computeMetadata/v1/instance/x",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            "gs://bucket/p",
            "http://metadata.google.internal/computeMetadata",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ),
    ],
)
@pytest.mark.parametrize("error", [OSError, FileNotFoundError])
def test_missing_credentials_are_named_and_not_the_address_that_was_asked_for_them(
    failing, url, address, names, error
):
    requests = cloud.CloudRequests(url)
    failing(error(f"Error performing PUT {address} in 1ms - HTTP error: error sending request"))
    with pytest.raises(RejectedError, match=f"^credentials are missing: set {names}"):
        requests.get("key")


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDenied", RejectedError), ("InternalError", UnclearError), ("SlowDown", UnclearError)],
)
def test_a_delete_that_the_store_refuses_for_the_key_alone_is_not_repeated(requests, monkeypatch, code, kind):
    """The answer has status 200. An error of the store's own is repeated, also if the key names a refusal."""

    def delete(*_):
        raise cloud.exceptions.GenericError(
            f"Generic S3 error: DeleteObjects request failed for key p/(code: AccessDenied): no (code: {code})"
        )

    monkeypatch.setattr(cloud.obstore, "delete", delete)
    monkeypatch.setattr(cloud.obstore, "head", lambda *_: {"size": 1})
    with pytest.raises(kind):
        requests.delete("key")
