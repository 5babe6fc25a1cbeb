"""Spark's source and sink over TLS and SASL; and no secret in anything that Spark, the broker or the client writes."""

import contextlib
import io
import json
import logging
import traceback
import urllib.request

import pytest

import stablelog
from stablelog.client.core.security import read_security_settings
from tests.client.transactions import create
from tests.clients.logins import TokenEndpoint, bearer, token_settings
from tests.commands import run
from tests.secured import PASSWORD, USER, jaas, secured
from tests.spark.starting import in_time

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.extended]
WRONG = "wrong-S3cret-wrong"
KEY_PASSWORD = "key-S3cret-key"
SECRETS = (PASSWORD, WRONG, KEY_PASSWORD, "BEGIN PRIVATE KEY")
VIEW = "secured_records"
TIMEOUT_S = 300


@pytest.fixture(autouse=True)
def no_view(spark):
    yield
    spark.catalog.dropTempView(VIEW)


@pytest.fixture(scope="module")
def server(module_path):
    with secured(module_path, **token_settings(module_path), **{"stablelog.metrics.port": "0"}) as server:
        yield server


@pytest.fixture
def event_log(spark, tmp_path):
    """Spark's event log, which its history server shows: a function that returns its text up to now."""
    folder = tmp_path / "events"
    folder.mkdir()
    context = spark.sparkContext._jsc.sc()
    conf = context.conf().clone()
    conf.set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    jvm = spark._jvm
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "security",
        jvm.scala.Option.empty(),
        jvm.java.net.URI(folder.as_uri()),
        conf,
        context.hadoopConfiguration(),
    )
    listener.start()
    context.addSparkListener(listener)

    def text():
        context.listenerBus().waitUntilEmpty()
        listener.stop()
        (path,) = (path for path in folder.iterdir() if not path.name.startswith("."))
        return path.read_text()

    yield text
    context.removeSparkListener(listener)


def options(server, way):
    """The options of a read or write: at the listener of this security protocol, or in one of two other ways to give the
    same secrets.
    """
    protocol = way.partition(", ")[0]
    settings = dict(server.settings(protocol))
    if way == "SASL_SSL, password":
        del settings["sasl.jaas.config"]
        settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
    if way == "SSL, text":
        del settings["ssl.keystore.location"]
        settings |= {
            "ssl.keystore.key": server.certificates.encrypted_key(KEY_PASSWORD),
            "ssl.keystore.certificate.chain": server.certificates.chain,
            "ssl.key.password": KEY_PASSWORD,
        }
    named = {f"kafka.{name}": value for name, value in settings.items()}
    return {"kafka.bootstrap.servers": server.at[protocol], **named}


def token_options(server, url):
    """The options of a read or write that logs in with a token."""
    return {
        "kafka.bootstrap.servers": server.at["SASL_SSL"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(server.certificates.trust),
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
    }


def copy(spark, server, given, tmp_path):
    """Write rows in a batch, and copy them by a stream. Return the texts of the plans."""
    source, target = (create(server.at["PLAINTEXT"]) for _ in range(2))
    rows = spark.range(40).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format("stablelog").mode("append").options(**given, topic=source).save()
    read = spark.read.format("stablelog").options(**given, subscribe=source).load()
    read.createOrReplaceTempView(VIEW)
    assert sorted(int(row.value) for row in read.collect()) == list(range(40))
    stream = spark.readStream.format("stablelog").options(
        startingOffsets="earliest", **given, subscribe=source
    )
    streamed = stream.load()
    writer = streamed.select("key", "value").writeStream.format("stablelog")
    writer = writer.options(**given, topic=target, checkpointLocation=str(tmp_path / "checkpoint"))
    query = in_time(lambda: writer.trigger(availableNow=True).start())
    assert query.awaitTermination(TIMEOUT_S)
    copied = spark.read.format("stablelog").options(**given, subscribe=target).load()
    assert sorted(int(row.value) for row in copied.collect()) == list(range(40))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            read.explain(mode=mode)
        query.explain(extended=True)
        streamed.explain(extended=True)
        spark.sql("explain extended select value from secured").show(truncate=False)
    progress = [json.dumps(one, default=str) for one in query.recentProgress]
    return "\n".join([told.getvalue(), repr(read), repr(query), str(query.status), *progress])


@pytest.mark.parametrize(
    "way",
    [
        "SASL_SSL",
        "SSL, text",
        pytest.param("SASL_SSL, password", marks=pytest.mark.night),
        pytest.param("SSL", marks=pytest.mark.night),
    ],
)
def test_source_and_sink_connect_on_the_driver_and_in_tasks(spark, server, tmp_path, event_log, way):
    check_copy(spark, server, options(server, way), tmp_path, event_log)


def check_copy(spark, server, given, tmp_path, event_log, *secrets):
    plans = copy(spark, server, given, tmp_path)
    assert "stablelog" in plans
    events = event_log()
    assert "SparkListenerSQLExecutionStart" in events
    assert "kafka.ssl.truststore.location" in events  # Spark shows the options that it takes for harmless
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    texts = {str(path): path.read_bytes().decode(errors="replace") for path in files}
    metrics = metrics_page(server)
    assert "stablelog_logins" in metrics
    texts |= {"plans": plans, "event log": events, "metrics": metrics}
    check_no_secret(texts, server, *secrets)


def metrics_page(server):
    log = server.broker.log_path.read_text()
    port = log.partition("metrics are served at http://127.0.0.1:")[2].partition("/")[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return page.read().decode()


def test_a_private_key_that_is_not_encrypted_is_refused(spark, server, event_log):
    given = options(server, "SSL, text") | {"kafka.ssl.keystore.key": server.certificates.key}
    given["subscribe"] = "t"
    rows = spark.range(1).selectExpr("cast(id as string) value")
    write = rows.write.format("stablelog").mode("append").options(**given, topic="t")
    texts = {
        "batch": failure(spark.read.format("stablelog").options(**given).load),
        "stream": failure(spark.readStream.format("stablelog").options(**given).load),
        "write": failure(write.save),
    }
    # If the columns are given, Spark does not ask the source before it shows a plan. The settings of `session` hide the
    # key in it.
    read = spark.read.schema("value binary").format("stablelog").options(**given).load()
    read.createOrReplaceTempView(VIEW)
    texts["batch with columns"] = failure(read.collect)
    for where, text in texts.items():
        assert "Spark would show it" in text, where
    stream = spark.readStream.schema("value binary").format("stablelog").options(**given).load()
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        stream.explain(extended=True)
    assert "kafka.ssl.keystore.key=*" in told.getvalue()
    check_no_secret(texts | {"plan": told.getvalue(), "event log": event_log()}, server)


def check_no_secret(texts, server, *more):
    key = server.certificates.key.splitlines()[1]  # a part of the key itself
    for where, text in texts.items():
        # Texts in JSON and in a JAAS configuration have their quotation marks escaped.
        for secret in (
            *SECRETS,
            key,
            PASSWORD.replace('"', '\\"'),
            PASSWORD.partition('"')[2].partition('"')[0],
            *more,
        ):
            assert secret not in text, where


@pytest.mark.parametrize("source", ["file", "endpoint"])
def test_source_and_sink_log_in_with_a_token(spark, server, tmp_path, event_log, source):
    text, foreign, path = bearer(), bearer(key=1), tmp_path / "token"
    path.write_text(text)
    with TokenEndpoint() as endpoint:
        given = token_options(server, path.as_uri() if source == "file" else endpoint.url)
        if source == "endpoint":
            names = {"id": "alice", "secret": endpoint.SECRET}
            given |= {
                f"kafka.sasl.oauthbearer.client.credentials.client.{name}": names[name] for name in names
            }
        check_copy(spark, server, given, tmp_path, event_log, text, endpoint.SECRET)
        assert bool(endpoint.given) == (source == "endpoint")
    path.write_text(foreign)
    wrong = token_options(server, path.as_uri())
    told = failure(lambda: spark.read.format("stablelog").options(**wrong, subscribe="t").load().collect())
    assert "Get a valid token" in told
    check_no_secret({"error": told, "log": server.broker.log_path.read_text()}, server, text, foreign)


def test_no_secret_stands_in_an_error_a_log_or_a_metric(spark, server, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "stablelog")
    texts = {}
    login, mutual = server.login, server.mutual
    mutual_by_text = {
        name.removeprefix("kafka."): value
        for name, value in options(server, "SSL, text").items()
        if "bootstrap" not in name
    }
    wrong = (
        ("password", "SASL_SSL", login | {"sasl.jaas.config": jaas(password=WRONG)}),
        ("authority", "SASL_SSL", login | {"ssl.truststore.location": str(server.certificates.stranger)}),
        ("protocol", "PLAINTEXT", login),
        ("quotes", "SASL_SSL", login | {"sasl.jaas.config": jaas(password=WRONG)[:-2]}),
        ("module", "SASL_SSL", login | {"sasl.jaas.config": jaas(password=WRONG, module="x.OtherModule")}),
        ("unknown", "SASL_SSL", login | {"sasl.jass.config": jaas(password=WRONG)}),
        ("both", "SSL", mutual | {"ssl.keystore.key": server.certificates.key}),
        ("key", "SSL", mutual_by_text | {"ssl.keystore.key": server.certificates.key[:-60]}),
        ("key password", "SSL", mutual_by_text | {"ssl.key.password": WRONG}),
    )
    for name, protocol, settings in wrong:
        texts[f"native client, {name}"] = failure(
            lambda at=server.at[protocol], settings=settings: (
                stablelog.connect(at, deadline=20, settings=settings).transaction().write("t", b"v", key=b"k")
            )
        )
        spark_options = {f"kafka.{setting}": value for setting, value in settings.items()}
        at = {"kafka.bootstrap.servers": server.at[protocol], "subscribe": "t"}
        texts[f"Spark, {name}"] = failure(
            lambda given=spark_options | at: spark.read.format("stablelog").options(**given).load().collect()
        )
        lines = "".join(
            f"{setting}={value.encode('unicode_escape').decode()}\n" for setting, value in settings.items()
        )
        (tmp_path / "config").write_text(lines)
        done = run(
            "topics", "list", "--command-config", str(tmp_path / "config"), bootstrap=server.at[protocol]
        )
        assert done.returncode == 2, name
        texts[f"command, {name}"] = done.stdout + done.stderr
    good = read_security_settings(login)
    objects = (good, good.credentials, stablelog.connect("h:1", settings=login))
    texts["objects"] = "".join(map(repr, objects))
    # py4j, Spark's bridge to Java, logs every option of a query at the level DEBUG, and is nothing of stablelog.
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("stablelog")]
    texts["log of the client"] = "\n".join(ours)
    texts["metrics"] = metrics_page(server)
    texts["log of the broker"] = server.broker.log_path.read_text()
    assert "has failed" in texts["log of the broker"]  # the wrong password is in the log as a failed login
    texts["settings"] = run("config", "show", "--json", bootstrap=server.at["PLAINTEXT"]).stdout
    texts["users"] = run("users", "list", "--json", bootstrap=server.at["PLAINTEXT"]).stdout
    assert USER in texts["users"]
    check_no_secret(texts, server)


def failure(call):
    """The whole text of an error, with its causes."""
    with pytest.raises(Exception) as failed:
        call()
    return "".join(traceback.format_exception(failed.value))
