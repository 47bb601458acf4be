"""Catalogs, partitions, order and maintenance of lake tables, as sink URIs say them."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.lake_rules import catalog_options
from schemas.config.sink.iceberg import IcebergConfig
from schemas.config.sink.lake_layout import PartitionTerm, SortTerm, parse_partitioning, parse_sort_order
from schemas.errors import BusError, ConfigError
from sorters.core.lake.columns import LakeColumn
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import LakeField, field_doc, plan_evolution
from sorters.core.lake.layout import LakeLayout, lake_layout

WAREHOUSE = "warehouse=file:///srv/lake"


def test_partitioning_is_read_as_iceberg_writes_it() -> None:
    assert parse_partitioning("days(_tidb_commit_time), bucket( 16 , id ),truncate(4,name),region") == (
        PartitionTerm("days", "_tidb_commit_time"),
        PartitionTerm("bucket", "id", 16),
        PartitionTerm("truncate", "name", 4),
        PartitionTerm("identity", "region"),
    )
    assert parse_partitioning("") == ()


@pytest.mark.parametrize("text", ["bucket(id)", "days(2,at)", "weeks(at)", "a,,b", "days()", "bucket(0,id)", "f(g(a))"])
def test_partitioning_that_iceberg_has_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        parse_partitioning(text)
    with pytest.raises(ConfigError, match="partitioning"):
        load_changefeed(f"iceberg://?{WAREHOUSE}&partitioning={text}", None)


def test_sort_order_is_read_with_its_directions() -> None:
    assert parse_sort_order("region,at DESC, big name asc") == (
        SortTerm("region"),
        SortTerm("at", descends=True),
        SortTerm("big name"),
    )
    with pytest.raises(ConfigError, match="sort-order"):
        load_changefeed(f"iceberg://?{WAREHOUSE}&sort-order=lower(a)", None)


def test_layout_leaves_out_what_a_table_has_not_and_takes_its_own_names() -> None:
    settings = IcebergConfig(partitioning="days(at),bucket(4,ID)", sort_order="region desc,Id")
    columns = [LakeColumn(1, "Id", "long"), LakeColumn(2, "v", "int")]
    assert lake_layout(settings, columns) == LakeLayout((PartitionTerm("bucket", "Id", 4),), (SortTerm("Id"),))


def test_column_that_a_table_is_laid_out_by_cannot_be_dropped() -> None:
    columns = [LakeColumn(1, "id", "int"), LakeColumn(2, "region", "string")]
    fields = [LakeField(each.name, each.type, field_doc(each)) for each in columns]
    assert plan_evolution(fields, columns[:1], "d.t", {"id"}).drops == ("region",)
    with pytest.raises(LakeSchemaError, match="partitions or sort order"):
        plan_evolution(fields, columns[:1], "d.t", {"region"})


def test_schedule_of_maintenance_has_a_default_and_may_be_never() -> None:
    def interval_s(more: str) -> float:
        return load_changefeed(f"iceberg://?{WAREHOUSE}{more}", None).sink.iceberg.compaction_interval_s

    assert [interval_s(more) for more in ("", "&compaction-interval=0s", "&compaction-interval=90s")] == [3600, 0, 90]
    with pytest.raises(ConfigError, match="compaction-interval"):
        interval_s("&compaction-interval=10ms")


def test_catalog_options_are_icebergs() -> None:
    config = load_changefeed(f"iceberg://?{WAREHOUSE}", None)
    assert catalog_options(config) == {"type": "hadoop", "warehouse": "/srv/lake"}
    jdbc = "catalog=jdbc&catalog-uri=jdbc:mysql://db:3306/cat&catalog-user=u&catalog-password=p"
    assert catalog_options(load_changefeed(f"iceberg://?{WAREHOUSE}&{jdbc}", None)) == {
        "type": "jdbc",
        "warehouse": "/srv/lake",
        "uri": "jdbc:mysql://db:3306/cat",
        "jdbc.schema-version": "V1",
        "clients": "1",
        "jdbc.user": "u",
        "jdbc.password": "p",
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("&catalog-uri=jdbc:x", "no address"),
        ("&catalog=jdbc", "begin with jdbc:"),
        ("&catalog=jdbc&catalog-uri=http://h", "begin with jdbc:"),
        ("&catalog=jdbc&catalog-uri=jdbc:mysql://h/d%3Fuser=a%26password=b", "no password"),
        ("&catalog=jdbc&catalog-uri=jdbc:mysql://u:p@h/d", "no password"),
        ("&catalog=glue", "glue"),
        ("&s3-region=eu-west-1", "s3-… keys"),
        ("&catalog=rest&catalog-uri=http://h&s3-access-key=a", "together"),
        ("&catalog=rest&catalog-uri=http://h&s3-endpoint=h:9000", "must be http"),
    ],
)
def test_catalog_that_cannot_be_is_refused(more: str, said: str) -> None:
    with pytest.raises(BusError, match=said) as raised:
        load_changefeed(f"iceberg://?{WAREHOUSE}{more}", None)
    assert "password=b" not in str(raised.value)


@pytest.mark.parametrize("host", ["[x", "secret]", "secret\N{ADDRESSED TO THE SUBJECT}"])
@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("warehouse", "warehouse=s3://"),
        ("warehouse", "catalog=jdbc&catalog-uri=jdbc:x&warehouse=file://"),
        ("warehouse", "catalog=rest&catalog-uri=http://h&warehouse=s3://"),
        ("s3-endpoint", "catalog=rest&catalog-uri=http://h&s3-endpoint=http://"),
    ],
)
def test_uri_of_a_lake_that_cannot_be_taken_apart_is_refused_and_not_shown(host: str, key: str, more: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is no URI that can be read") as raised:
        load_changefeed(f"iceberg://?{more}{host}", None)
    assert raised.value.fields["key"] == f"sink.iceberg-config.{key}"
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("jdbc:mysql://h/d?autoDeserialize=true", "parameter `autoDeserialize`; allowed are ApplicationName, "),
        ("jdbc:mysql://h/d?useSSL=true&allowLoadLocalInfile=true", "`allowLoadLocalInfile`"),
        ("jdbc:mysql://h/d?useSSL=true&queryInterceptors", "`queryInterceptors`"),
        ("jdbc:mysql://h/d?use%53SL=true", "`use%53SL`"),
        ("jdbc:mysql://(host=h,autoDeserialize=true)/d", "no brackets"),
        ("jdbc:mysql://address=(host=h)(autoDeserialize=true)/d", "no brackets"),
        ("jdbc:postgresql://h/d?ssl=true&socketFactory=a.B&socketFactoryArg=x", "`socketFactory`"),
        ("jdbc:postgresql://h/d?user=u", "`user`"),
        ("jdbc:h2:mem:d;INIT=RUNSCRIPT FROM 'http://h/x.sql'", "`INIT`"),
        ("jdbc:sqlite:/x.db?enable_load_extension=true", "`enable_load_extension`"),
        ("jdbc:db2://h:1/d:clientRerouteServerListJNDIName=ldap://h/x;", "no brackets"),
        (f"jdbc:mysql://h/d?{'x' * 500}=1", f"`{'x' * 60}…"),
    ],
)
def test_parameters_of_a_jdbc_catalog_that_no_connection_needs_are_refused(uri: str, said: str) -> None:
    table = {"sink": {"iceberg-config": {"catalog": "jdbc", "catalog-uri": uri}}}
    with pytest.raises(ConfigError) as raised:
        load_changefeed(f"iceberg://?{WAREHOUSE}", table)
    assert said in raised.value.message and raised.value.fields["key"] == "sink.iceberg-config.catalog-uri"


@pytest.mark.parametrize(
    "uri",
    [
        "jdbc:mysql://h:3306/d?useSSL=true&connectTimeout=5000",
        "jdbc:mariadb://h1,h2/d?sslMode=verify-full&serverSslCert=/ca.pem",
        "jdbc:postgresql://h/d?sslmode=verify-full&sslrootcert=/ca.pem&currentSchema=lake",
        "jdbc:sqlserver://h:1433;databaseName=d;encrypt=true;",
        "jdbc:sqlite:/x.db",
    ],
)
def test_parameters_of_a_jdbc_catalog_that_a_connection_needs_are_taken(uri: str) -> None:
    table = {"sink": {"iceberg-config": {"catalog": "jdbc", "catalog-uri": uri}}}
    assert catalog_options(load_changefeed(f"iceberg://?{WAREHOUSE}", table))["uri"] == uri


def test_tables_on_s3_are_icebergs_own_client_behind_a_catalog_that_is_safe_there() -> None:
    said = "warehouse=s3://b/p&catalog=jdbc&catalog-uri=jdbc:sqlite:/x.db"
    options = catalog_options(load_changefeed(f"iceberg://?{said}", None))
    assert (options["warehouse"], options["io-impl"]) == ("s3://b/p", "org.apache.iceberg.aws.s3.S3FileIO")
    assert not any(name.startswith(("s3.", "client.")) for name in options), "AWS's own, found as its tools find them"
    keys = "s3-endpoint=http://h:9000&s3-access-key=a&s3-secret-access-key=verysecret"
    config = load_changefeed(f"iceberg://?{said}&{keys}", None)
    given = {name: value for name, value in catalog_options(config).items() if name.startswith(("s3.", "client."))}
    assert given == {
        "client.region": "us-east-1",
        "s3.endpoint": "http://h:9000",
        "s3.path-style-access": "true",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "verysecret",
    }
    assert "verysecret" not in repr(config)
    for warehouse, why in (
        ("s3://b/p", "not safe on s3"),
        ("gs://b/p", "not supported yet"),
        ("s3a://b", "not suppor"),
    ):
        with pytest.raises(BusError, match=why):
            load_changefeed(f"iceberg://?warehouse={warehouse}", None)
    with pytest.raises(BusError, match="s3://bucket"):
        load_changefeed("iceberg://?warehouse=s3:///p&catalog=jdbc&catalog-uri=jdbc:sqlite:/x.db", None)
