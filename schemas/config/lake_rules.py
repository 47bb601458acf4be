"""Rules between the settings of an Iceberg sink."""

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from schemas.config.parse.origin import Origin, Path
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.iceberg import ICEBERG_PATH, IcebergConfig
from schemas.errors import shortened
from schemas.masking import is_secret_name, mask_uri

S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
S3_REGION = "us-east-1"
"""Of servers that are not AWS's and have none."""
JDBC_PARAMETERS = (
    *("ApplicationName", "characterEncoding", "connectTimeout", "currentSchema", "databaseName", "encrypt"),
    *("loginTimeout", "serverSslCert", "serverTimezone", "socketTimeout", "ssl", "sslMode", "sslrootcert"),
    *("tcpKeepAlive", "trustServerCertificate", "useSSL", "useUnicode"),
)
"""Of a JDBC catalog's address, in any case: what a connection needs. Drivers have others that load classes, run
statements or read files, and whoever may create a changefeed may not do that on a capture's machine."""
_JDBC_NAMES = frozenset(name.lower() for name in JDBC_PARAMETERS)
_SHOWN_CHARS_MAX = 60


def check_lake(config: ChangefeedConfig, origin: Origin) -> None:
    """Hold the settings of an Iceberg sink against each other.

    Raises:
        ConfigError: the first rule that is broken.
        NotSupportedYetError: what TiCDC's branch or Iceberg has and we do not yet.
    """
    sink, lake = config.sink, config.sink.iceberg
    if sink.protocol is not None:
        raise origin.error(("sink", "protocol"), "an Iceberg sink has no protocol")
    if lake.mode == "upsert" and config.force_replicate:
        text = "force-replicate excludes mode upsert: a row without a key cannot be found again; mode append takes it"
        raise origin.error(("force-replicate",), text)
    if config.state_proofs:
        text = "state-proofs are not supported yet with an Iceberg sink"
        raise origin.not_yet(("state-proofs",), text)
    if sink.column_selectors:
        text = "column-selectors are not supported yet with an Iceberg sink: lake tables have whole rows"
        raise origin.not_yet(("sink", "column-selectors"), text)
    if config.integrity.enabled:
        text = "integrity-check-level `correctness` is not supported yet with an Iceberg sink"
        raise origin.not_yet(("integrity", "integrity-check-level"), text)
    _check_namespace(lake.namespace, origin)
    _check_catalog(lake, origin)
    _check_oauth2(lake, origin)
    if lake.catalog == "rest":  # whose server knows where its tables stand; it may want a name of its own
        _split(lake.warehouse, "warehouse", origin)
    else:
        _check_warehouse(lake, origin)
    _check_s3(lake, origin)


def _check_namespace(namespace: str, origin: Origin) -> None:
    if namespace and not namespace.replace("_", "").replace("-", "").isalnum():
        text = "namespace may hold only letters, digits, `_` and `-`"
        raise origin.error((*ICEBERG_PATH, "namespace"), text)


def _check_catalog(lake: IcebergConfig, origin: Origin) -> None:
    path = (*ICEBERG_PATH, "catalog-uri")
    forms = {"jdbc": ("jdbc:",), "rest": ("http://", "https://")}.get(lake.catalog, ())
    if not forms:
        if lake.catalog_uri or lake.catalog_user or lake.catalog_password:
            raise origin.error(path, "a hadoop catalog is files alone: it has no address and no user")
        return
    if not lake.catalog_uri.startswith(forms):
        raise origin.error(path, f"catalog-uri of a {lake.catalog} catalog must begin with {' or '.join(forms)}")
    query = lake.catalog_uri.partition("?")[2].replace(";", "&")
    if mask_uri(lake.catalog_uri) != lake.catalog_uri or any(map(is_secret_name, dict(parse_qsl(query)))):
        raise origin.error(path, "catalog-uri must hold no password: catalog-user and catalog-password take them")
    if lake.catalog == "jdbc":
        _check_jdbc_parameters(lake.catalog_uri, path, origin)


def _check_oauth2(lake: IcebergConfig, origin: Origin) -> None:
    server, scope, token = lake.catalog_oauth2_server_uri, lake.catalog_scope, lake.catalog_token
    given = {"catalog-oauth2-server-uri": server, "catalog-scope": scope, "catalog-token": token}
    for name, value in given.items():
        path = (*ICEBERG_PATH, name)
        if not value:
            continue
        if lake.catalog != "rest":
            raise origin.error(path, f"{name} is of catalog=rest alone")
        if name != "catalog-token" and lake.catalog_password is None:
            raise origin.error(path, f"{name} needs catalog-password: it is the client that asks for a token")
    if token is not None and lake.catalog_password is not None:
        raise origin.error((*ICEBERG_PATH, "catalog-token"), "catalog-token stands instead of catalog-password")
    if server:
        path = (*ICEBERG_PATH, "catalog-oauth2-server-uri")
        if not server.startswith(("http://", "https://")):
            raise origin.error(path, "catalog-oauth2-server-uri must begin with http:// or https://")
        if mask_uri(server) != server:
            raise origin.error(path, "catalog-oauth2-server-uri must hold no password: catalog-password takes it")


def _check_jdbc_parameters(uri: str, path: Path, origin: Origin) -> None:
    """Refuse all parameters but those that are known to do no harm, whichever driver reads them."""
    address, *parameters = re.split("[?;&]", uri)
    if any(sign in address for sign in "()="):  # MySQL's and Oracle's other ways to write parameters
        raise origin.error(path, "catalog-uri must have no `=` and no brackets before its `?` or `;`")
    for parameter in filter(None, parameters):
        name = parameter.partition("=")[0]
        if name.lower() not in _JDBC_NAMES:
            shown, allowed = shortened(name, _SHOWN_CHARS_MAX), ", ".join(JDBC_PARAMETERS)
            raise origin.error(path, f"catalog-uri must not have the parameter `{shown}`; allowed are {allowed}")


def _check_warehouse(lake: IcebergConfig, origin: Origin) -> None:
    path = (*ICEBERG_PATH, "warehouse")
    if not lake.warehouse:
        raise origin.error(path, "warehouse is missing: write warehouse=file:///path into the sink URI")
    parts = _split(lake.warehouse, "warehouse", origin)
    if parts.scheme in ("s3a", "s3n", "gs", "gcs", "abfs", "hdfs"):
        raise origin.not_yet(path, f"a warehouse of scheme `{parts.scheme}` is not supported yet, only file and s3 are")
    if is_on_s3(lake):
        if lake.catalog == "hadoop":
            text = "a hadoop catalog is not safe on s3, which renames nothing in one step: catalog=jdbc and rest are"
            raise origin.error(path, text)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise origin.error(path, "warehouse must be s3://bucket or s3://bucket/prefix and nothing else")
        return
    if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise origin.error(path, "warehouse must be file:///path, an absolute path and nothing else")


def _check_s3(lake: IcebergConfig, origin: Origin) -> None:
    given = lake.s3_endpoint or lake.s3_region or lake.s3_access_key or lake.s3_secret_access_key
    if given and lake.catalog != "rest" and not is_on_s3(lake):
        raise origin.error((*ICEBERG_PATH, "s3-endpoint"), "s3-… keys are of a warehouse s3://bucket/prefix")
    if (lake.s3_access_key is None) is not (lake.s3_secret_access_key is None):
        text = "s3-access-key and s3-secret-access-key are given together or not at all"
        raise origin.error((*ICEBERG_PATH, "s3-access-key"), text)
    endpoint = _split(lake.s3_endpoint, "s3-endpoint", origin)
    if lake.s3_endpoint and (endpoint.scheme not in ("http", "https") or not endpoint.netloc or "@" in endpoint.netloc):
        raise origin.error((*ICEBERG_PATH, "s3-endpoint"), "s3-endpoint must be http://host:port or https://host:port")


def _split(text: str, key: str, origin: Origin) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:  # its text shows the host, and what may be a password before it
        reason = f"{key} is no URI that can be read: its host has a lone bracket, or a sign that is none of a host's"
        raise origin.error((*ICEBERG_PATH, key), reason) from None


def is_on_s3(lake: IcebergConfig) -> bool:
    """Tell whether a warehouse is a bucket's."""
    return urlsplit(lake.warehouse).scheme == "s3"


def warehouse_folder(config: ChangefeedConfig) -> str:
    """Return the absolute path of a warehouse of files that :func:`check_lake` has let pass."""
    return unquote(urlsplit(config.sink.iceberg.warehouse).path)


def catalog_options(config: ChangefeedConfig) -> dict[str, str]:
    """Return how Iceberg is told which catalog it is, with its secrets, by the names of its catalog properties."""
    lake = config.sink.iceberg
    options: dict[str, str] = {"type": lake.catalog}
    if lake.warehouse:
        has_folder = lake.catalog != "rest" and not is_on_s3(lake)
        options["warehouse"] = warehouse_folder(config) if has_folder else lake.warehouse
    user, password = lake.catalog_user, lake.catalog_password.reveal() if lake.catalog_password else ""
    if lake.catalog == "jdbc":
        options |= {"uri": lake.catalog_uri, "jdbc.schema-version": "V1", "clients": "1"}
        options |= {"jdbc.user": user} if user else {}
        options |= {"jdbc.password": password} if password else {}
    elif lake.catalog == "rest":
        options |= {"uri": lake.catalog_uri}
        options |= {"credential": f"{user}:{password}" if user else password} if password else {}
        token = lake.catalog_token.reveal() if lake.catalog_token else ""
        given = {"oauth2-server-uri": lake.catalog_oauth2_server_uri, "scope": lake.catalog_scope, "token": token}
        options |= {name: value for name, value in given.items() if value}
    return options | _s3_options(lake)


def _s3_options(lake: IcebergConfig) -> dict[str, str]:
    region = lake.s3_region or (S3_REGION if lake.s3_endpoint else "")
    options = {"client.region": region, "s3.endpoint": lake.s3_endpoint}
    for name, secret in (("access-key-id", lake.s3_access_key), ("secret-access-key", lake.s3_secret_access_key)):
        options[f"s3.{name}"] = "" if secret is None else secret.reveal()
    given = {name: value for name, value in options.items() if value}
    if lake.s3_endpoint:
        given["s3.path-style-access"] = "true"
    return {"io-impl": S3_FILE_IO, **given} if given or is_on_s3(lake) else {}
