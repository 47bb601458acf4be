"""Rules between the settings of an Iceberg sink."""

from urllib.parse import parse_qsl, unquote, urlsplit

from schemas.config.parse.origin import Origin
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.iceberg import ICEBERG_PATH, IcebergConfig
from schemas.masking import is_secret_name, mask_uri


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
    if lake.catalog != "rest":  # whose server knows where its tables stand; it may want a name of its own
        _check_warehouse(lake.warehouse, origin)


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


def _check_warehouse(warehouse: str, origin: Origin) -> None:
    path = (*ICEBERG_PATH, "warehouse")
    if not warehouse:
        raise origin.error(path, "warehouse is missing: write warehouse=file:///path into the sink URI")
    parts = urlsplit(warehouse)
    if parts.scheme in ("s3", "s3a", "gs", "gcs", "abfs", "hdfs"):
        raise origin.not_yet(path, f"a warehouse of scheme `{parts.scheme}` is not supported yet, only file is")
    if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise origin.error(path, "warehouse must be file:///path, an absolute path and nothing else")


def warehouse_folder(config: ChangefeedConfig) -> str:
    """Return the absolute path of a warehouse that :func:`check_lake` has let pass."""
    return unquote(urlsplit(config.sink.iceberg.warehouse).path)


def catalog_options(config: ChangefeedConfig) -> dict[str, str]:
    """Return how Iceberg is told which catalog it is, with its secrets, by the names of its catalog properties."""
    lake = config.sink.iceberg
    options: dict[str, str] = {"type": lake.catalog}
    if lake.warehouse:
        options["warehouse"] = lake.warehouse if lake.catalog == "rest" else warehouse_folder(config)
    user, password = lake.catalog_user, lake.catalog_password.reveal() if lake.catalog_password else ""
    if lake.catalog == "jdbc":
        options |= {"uri": lake.catalog_uri, "jdbc.schema-version": "V1", "clients": "1"}
        options |= {"jdbc.user": user} if user else {}
        options |= {"jdbc.password": password} if password else {}
    elif lake.catalog == "rest":
        options |= {"uri": lake.catalog_uri}
        options |= {"credential": f"{user}:{password}" if user else password} if password else {}
    return options
