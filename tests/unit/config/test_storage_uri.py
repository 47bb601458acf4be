"""URIs of storages: what a file system is told, and what may be shown."""

import pytest

from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.masking import mask_uri

SECRETS = "access-key=ak&secret-access-key=sk%2F&session-token=st"


def test_s3_uri_tells_the_file_system_what_ticdcs_parameters_say() -> None:
    parsed = parse_storage_uri(
        f"s3://bucket/a/b%20c/?{SECRETS}&endpoint=http://127.0.0.1:9&region=eu&sse=aws:kms&sse-kms-key-id=id"
        "&acl=private&storage-class=STANDARD_IA&provider=aws"
    )
    assert (parsed.protocol, parsed.root, parsed.public) == ("s3", "bucket/a/b c", "s3://bucket/a/b c")
    assert parsed.options == {
        "key": "ak",
        "secret": "sk/",
        "token": "st",
        "endpoint_url": "http://127.0.0.1:9",
        "client_kwargs": {"region_name": "eu"},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
        "s3_additional_kwargs": {
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": "id",
            "ACL": "private",
            "StorageClass": "STANDARD_IA",
        },
    }
    for secret in ("ak", "sk/", "st"):
        assert f"'{secret}'" not in repr(parsed)


def test_a_plus_in_a_secret_stays_one() -> None:
    parsed = parse_storage_uri("s3://b?access-key=A+K&secret-access-key=a%2Bb+c/d%20e&endpoint=http://h:9")
    assert (parsed.options["key"], parsed.options["secret"]) == ("A+K", "a+b+c/d e")
    assert parsed.options["endpoint_url"] == "http://h:9"


def test_s3_uri_names_a_role_a_profile_and_the_accelerated_endpoint() -> None:
    uri = "s3://b?role-arn=arn:aws:iam::1:role/r&external-id=e&profile=p&object-lock-enabled=true"
    parsed = parse_storage_uri(f"{uri}&use-accelerate-endpoint=true")
    assert parsed.options == {
        "role": {"arn": "arn:aws:iam::1:role/r", "external_id": "e"},
        "profile": "p",
        "config_kwargs": {"s3": {"addressing_style": "virtual", "use_accelerate_endpoint": True}},
    }
    assert parsed.unread == () and [name for name, _ in parsed.idle] == ["object-lock-enabled"]


def test_azure_uri_tells_what_ticdcs_parameters_say() -> None:
    parsed = parse_storage_uri(
        "azblob://c/p?Account_Name=n&account-key=key%2Bword&sas-token=%3Fsv=1%26sig=sig%2Bword"
        "&endpoint=http://127.0.0.1:9/n/&access-tier=cold&encryption-scope="
    )
    assert (parsed.protocol, parsed.root, parsed.public, parsed.extra) == ("az", "c/p", "azblob://c/p", "azure")
    assert parsed.options == {
        "account_name": "n",
        "account_key": "key+word",
        "sas_token": "sv=1&sig=sig+word",
        "endpoint": "http://127.0.0.1:9/n",
        "access_tier": "Cold",
    }
    said = parsed.masked("refused: key+word at url: /c?comp=block&sig=sig%2Bword&sv=1")
    assert "word" not in said and "comp=block" in said
    assert "word" not in repr(parsed)


def test_encryption_key_is_shown_neither_as_it_is_given_nor_as_it_is_sent() -> None:
    uri = f"azure://c?encryption-key={'k' * 32}"
    parsed = parse_storage_uri(uri)
    assert parsed.options == {"encryption_key": "k" * 32}
    assert "kkk" not in mask_uri(uri)
    assert "a2tr" not in parsed.masked("x-ms-encryption-key: " + "a2tr" * 10 + "a2s=")
    scoped = parse_storage_uri("azure://c?encryption-scope=s&encryption-key=&access-tier=")
    assert scoped.options == {"encryption_scope": "s"}


def test_gcs_uri_tells_what_ticdcs_parameters_say() -> None:
    parsed = parse_storage_uri("gcs://b/p?storage-class=NEARLINE&predefined_acl=private&credentials-file=/k.json")
    assert parsed.options == {"storage_class": "NEARLINE", "predefined_acl": "private", "credentials_file": "/k.json"}
    assert parsed.extra == "gcs"
    for host in ("http://127.0.0.1:9", "https://storage.me-central2.rep.googleapis.com"):
        for endpoint in (host, f"{host}/", f"{host}/storage/v1/"):
            assert parse_storage_uri(f"gs://b?endpoint={endpoint}").options == {"endpoint": host}


def test_s3_uri_addresses_by_host_only_where_it_says_so() -> None:
    assert parse_storage_uri("s3://b?force-path-style=false").options["config_kwargs"] == {
        "s3": {"addressing_style": "virtual"}
    }
    assert parse_storage_uri("s3://b").options["config_kwargs"] == {"s3": {"addressing_style": "path"}}


def test_s3_uri_with_empty_parameters_is_one_without_them() -> None:
    names = ["access-key", "secret-access-key", "session-token", "endpoint", "region", "sse", "sse-kms-key-id", "acl"]
    names += ["storage-class", "role-arn", "external-id", "profile", "force-path-style", "use-accelerate-endpoint"]
    parsed = parse_storage_uri(f"s3://b/p?{'&'.join(f'{name}=' for name in names)}")
    assert parsed.options == {"config_kwargs": {"s3": {"addressing_style": "path"}}}


@pytest.mark.parametrize(
    ("uri", "protocol", "root", "options"),
    [
        ("file:///a%20b/", "file", "/a b", {}),
        ("local:///x", "file", "/x", {}),
        ("gcs://b/p?credentials-file=/k.json", "gs", "b/p", {"credentials_file": "/k.json"}),
        ("gs://b", "gs", "b", {}),
        ("azure://c/p?account-name=n&account-key=k", "az", "c/p", {"account_name": "n", "account_key": "k"}),
        ("azure://c?endpoint=n.blob.core.windows.net/", "az", "c", {"endpoint": "https://n.blob.core.windows.net"}),
        ("azblob://c?sas-token=t", "az", "c", {"sas_token": "t"}),
    ],
)
def test_storage_uri_of_each_kind_names_its_file_system(
    uri: str, protocol: str, root: str, options: dict[str, str]
) -> None:
    parsed = parse_storage_uri(uri)
    assert (parsed.protocol, parsed.root, parsed.options) == (protocol, root, options)
    assert parsed.is_local == (protocol == "file")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("s3://", "must be s3://bucket"),
        ("s3://u:p@b/x", "must be s3://bucket"),
        ("gs:///x", "must be gs://bucket"),
        ("s3://b?external-id=hidden", "external-id without role-arn"),
        ("s3://b?use-accelerate-endpoint=maybe", "use-accelerate-endpoint"),
        ("azure://c?access-tier=hidden", "none of Hot, Cool and Cold"),
        ("azure://c?access-tier=archive", "access-tier Archive"),
        ("azure://c?endpoint=ftp://hidden", "no https://host"),
        ("azure://c?endpoint=https://u:hidden@h", "no https://host"),
        ("azure://c?endpoint=https://h/?sig=hidden", "sas-token"),
        ("azure://c?encryption-key=hidden", "not 32 bytes"),
        ("azure://c?encryption-scope=hidden&access-tier=hot", "access-tier, which excludes"),
        (f"azure://c?encryption-scope=hidden&encryption-key={'x' * 32}", "encryption-scope, which excludes"),
        ("s3://b?force-path-style=maybe", "force-path-style"),
        ("http://b", "must be file:///path, s3://"),
        ("x", "must be file:///path, s3://"),
        ("file://host/x", "an absolute path and nothing else"),
    ],
)
def test_storage_uri_that_is_not_usable_says_what_it_must_be(uri: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("/", "/")) as caught:
        parse_storage_uri(uri)
    assert "hidden" not in str(caught.value)
