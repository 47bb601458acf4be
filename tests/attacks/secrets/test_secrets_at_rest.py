"""What somebody reads who sees ZooKeeper, logs, errors and the API, and what one finds who writes there."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from compose.cli import cli
from compose.stack.local import Addresses
from consumers.control.changefeeds.sealing import not_sealed, seal
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore
from edges.secrets import (
    Keyring,
    SecretKeyError,
    SecretReferenceError,
    UnsealedSettingsError,
    decode_info,
    load_with_secrets,
    resolve,
)
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError, CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.masking import mask_uri
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from tests.support.control.lasting_session import lasting_session
from tests.support.sources.repository import ROOT, sources

WORD = "pass-word-that-nobody-may-see"
URI = f"kafka://127.0.0.1:9092/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=u&sasl-password={WORD}"
INFO = ChangefeedInfo(
    changefeed_id="cf",
    upstream=UpstreamId("u"),
    sink_uri=URI,
    config={"sink": {"kafka-config": {"sasl-password": WORD}}},
    start_ts=Ts(5),
)


def _json(raw: dict[str, int]) -> bytes:
    return json.dumps(raw).encode()


def key_file(folder: Path, *lines: str) -> Path:
    path = folder / f"key-{len(list(folder.iterdir()))}"
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


@pytest.fixture
def old(tmp_path: Path) -> Keyring:
    return Keyring.read(key_file(tmp_path, "an old key of the cluster"))


def test_sealed_node_shows_no_setting_and_comes_back(old: Keyring, tmp_path: Path) -> None:
    node = old.encode(INFO)
    assert WORD not in node.decode() and "kafka://" not in node.decode()
    assert old.decode(node) == INFO
    assert old.encode(INFO) != node, "each has a nonce of its own"
    rotated = Keyring.read(key_file(tmp_path, "the next key of the cluster", "an old key of the cluster"))
    assert rotated.decode(node) == INFO
    with pytest.raises(SecretKeyError):
        old.decode(rotated.encode(INFO))


def test_sealed_node_opens_with_no_other_key_and_for_no_other_changefeed(old: Keyring, tmp_path: Path) -> None:
    node = json.loads(old.encode(INFO))
    other = Keyring.read(key_file(tmp_path, "a key of another cluster"))
    moved = {**node, "changefeed_id": "mine"}
    cut = {**node, "sealed": node["sealed"][:30]}
    newer = {**node, "sealed": "v9:" + node["sealed"][3:]}
    for keyring, tried in ((Keyring(), node), (other, node), (old, moved), (old, cut), (old, newer)):
        with pytest.raises(SecretKeyError, match=r"\[secrets.no_key\]") as refused:
            keyring.decode(json.dumps(tried).encode())
        assert "\n" not in str(refused.value) and WORD not in str(refused.value)


@given(st.data())
def test_any_change_to_a_sealed_node_is_refused(data: st.DataObject) -> None:
    keyring = _keyring_of("a key that lives as long as the tests")
    node = bytearray(keyring.encode(INFO))
    at = data.draw(st.integers(0, len(node) - 1))
    node[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != node[at]))
    try:
        read = keyring.decode(bytes(node))
    except (SecretKeyError, CorruptDataError) as error:
        assert "\n" not in str(error) and WORD not in str(error)
        return
    assert (read.sink_uri, read.config) in ((INFO.sink_uri, INFO.config), ("", {}))


@given(st.binary(max_size=200) | st.dictionaries(st.text(max_size=9), st.integers(), max_size=4).map(_json))
def test_any_node_is_a_changefeed_or_refused(node: bytes) -> None:
    with pytest.raises((CorruptDataError, SecretKeyError)):
        Keyring().decode(node)


def _keyring_of(line: str) -> Keyring:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"tidebus-key-{os.getpid()}"
    path.touch(0o600)
    path.write_text(line)
    try:
        return Keyring.read(path)
    finally:
        path.unlink()


def test_settings_in_the_clear_are_refused_by_who_has_a_key(old: Keyring) -> None:
    planted = encode_changefeed_info(INFO)
    with pytest.raises(
        UnsealedSettingsError, match=r"\[secrets.unsealed\].*seal-changefeeds.*changefeed=cf"
    ) as refused:
        old.decode(planted)
    assert WORD not in str(refused.value)
    assert Keyring().decode(planted) == INFO
    assert replace(old, accepts_unsealed=True).decode(planted) == INFO
    assert not old.has_sealed(planted) and old.has_sealed(old.encode(INFO))


@pytest.fixture
def session(stack: Addresses) -> Iterator[Session]:
    with lasting_session(ZooKeeperAccess(stack.zookeeper)) as session:
        yield session


@pytest.fixture
def paths(fresh_name: Callable[[str], str]) -> ZkPaths:
    return ZkPaths(fresh_name("sealed"))


def plant(session: Session, paths: ZkPaths, *infos: ChangefeedInfo) -> None:
    """Write settings in the clear, as before there was a key, or as somebody does who has got at ZooKeeper."""
    for info in infos:
        path = paths.changefeed_info("default", info.changefeed_id)
        session.client.create(path, encode_changefeed_info(info), makepath=True)


def test_store_seals_what_it_writes(
    session: Session,
    paths: ZkPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant(session, paths, INFO)
    monkeypatch.setenv("TIDEBUS_SECRET_KEY_FILE", str(key_file(tmp_path, "a key of this cluster")))
    store = ChangefeedStore(session, paths)
    with pytest.raises(UnsealedSettingsError):
        store.get("cf")
    with monkeypatch.context() as moving:
        moving.setenv("TIDEBUS_ACCEPT_UNSEALED", "1")
        assert store.get("cf").sink_uri == URI
        store.update("cf", lambda info: info)
    node = session.client.get(paths.changefeed_info("default", "cf"))[0]
    assert WORD not in node.decode()
    assert decode_info(node).sink_uri == store.get("cf").sink_uri == URI
    monkeypatch.delenv("TIDEBUS_SECRET_KEY_FILE")
    with pytest.raises(SecretKeyError, match="--secret-key-file"):
        store.get("cf")
    assert WORD not in caplog.text
    assert WORD not in repr(ChangefeedRequest(upstream=UpstreamId("u"), sink_uri=URI, config={}))


def test_operator_seals_what_is_shown_and_what_is_under_a_former_key(
    stack: Addresses, session: Session, paths: ZkPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEBUS_ACCEPT_UNSEALED", "")
    former, first = "a key of the cluster so far", "the next key of the cluster"
    plant(session, paths, INFO, replace(INFO, changefeed_id="clear"))
    path = paths.changefeed_info("default", "cf")
    session.client.set(path, Keyring.read(key_file(tmp_path, former)).encode(INFO))
    rotated = key_file(tmp_path, first, former)
    words = ["cli", "unsafe", "seal-changefeeds", "--zookeeper", stack.zookeeper, "--cluster", paths.cluster]
    words += ["--no-confirm", "--secret-key-file", str(rotated)]
    monkeypatch.setenv("TIDEBUS_SECRET_KEY_FILE", "")  # put back: the command hands its key on to children
    ran = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert ran.output.count("kafka://127.0.0.1:9092/t") == 2 and ran.output.endswith("sealed 2\n")
    assert WORD not in ran.output
    assert CliRunner().invoke(cli, words, catch_exceptions=False).output == "sealed 0\n"
    next_alone = Keyring.read(key_file(tmp_path, first))
    for name in ("cf", "clear"):
        assert next_alone.decode(session.client.get(paths.changefeed_info("default", name))[0]).sink_uri == URI


def test_settings_that_change_after_they_were_shown_are_not_sealed(
    session: Session, paths: ZkPaths, old: Keyring
) -> None:
    plant(session, paths, INFO)
    shown = not_sealed(session, paths, old)
    elsewhere = replace(INFO, sink_uri="kafka://attacker:9092/t?protocol=canal-json")
    path = paths.changefeed_info("default", "cf")
    session.client.set(path, encode_changefeed_info(elsewhere))
    assert seal(session, paths, old, shown) == 0
    session.client.set(path, encode_changefeed_info(replace(INFO, epoch=9)))
    assert seal(session, paths, old, shown) == 1
    assert old.decode(session.client.get(path)[0]).epoch == 9
    with pytest.raises(ConfigError, match="--secret-key-file"):
        not_sealed(session, paths, Keyring())


def test_owner_with_a_key_passes_over_what_somebody_has_planted_and_goes_on_with_the_others(
    session: Session,
    paths: ZkPaths,
    old: Keyring,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant(session, paths, INFO, replace(INFO, changefeed_id="planted"), replace(INFO, changefeed_id="strange"))
    stranger = Keyring.read(key_file(tmp_path, "a key of somebody else"))
    session.client.set(
        paths.changefeed_info("default", "strange"), stranger.encode(replace(INFO, changefeed_id="strange"))
    )
    session.client.set(paths.changefeed_info("default", "cf"), old.encode(INFO))
    monkeypatch.setenv("TIDEBUS_SECRET_KEY_FILE", str(key_file(tmp_path, "an old key of the cluster")))
    states = FeedStates(session, paths, UpstreamId("u"))
    states.look()
    assert states.wanted().keys() == {("default", "cf")}
    codes = {
        str(vars(record)["changefeed"]): vars(record)["code"] for record in caplog.records if "code" in vars(record)
    }
    assert codes == {"planted": "secrets.unsealed", "strange": "secrets.no_key"}
    assert WORD not in caplog.text


def test_maintenance_of_lake_tables_takes_settings_that_its_key_opens_and_no_others(
    stack: Addresses, session: Session, paths: ZkPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = key_file(tmp_path, "a key of this cluster"), key_file(tmp_path, "a key of another cluster")
    plant(session, paths, replace(INFO, changefeed_id="planted"))
    sealed = Keyring.read(key).encode(INFO)
    session.client.create(paths.changefeed_info("default", "cf"), sealed, makepath=True)
    monkeypatch.setenv("TIDEBUS_SECRET_KEY_FILE", "")  # put back: the command hands its key on to children
    monkeypatch.setenv("TIDEBUS_ACCEPT_UNSEALED", "")

    def refused(feed: str, file: Path) -> str:
        words = ["lake", "compact", "-c", feed, "--zookeeper", stack.zookeeper, "--cluster", paths.cluster]
        ran = CliRunner().invoke(cli, [*words, "--secret-key-file", str(file), "--data-dir", str(tmp_path)])
        return f"{ran.output} {ran.exception}"

    assert "this changefeed has no lake tables" in refused("cf", key), "it was opened, and is one of topics"
    assert "secrets.no_key" in refused("cf", other)
    assert "secrets.unsealed" in refused("planted", key)


def test_stored_settings_are_read_by_who_opens_seals_alone() -> None:
    readers = {
        file.relative_to(ROOT)
        for file in sources()
        if "decode_changefeed_info" in file.read_text() and not file.is_relative_to(ROOT / "tests")
    }
    assert readers == {Path("edges/secrets.py"), Path("schemas/nodes/changefeed.py")}


# -- references


def info(uri: str, config: dict[str, Any] | None = None) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="cf", upstream=UpstreamId("u"), sink_uri=uri, config=config or {}, start_ts=Ts(5)
    )


def test_reference_is_kept_and_the_secret_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "db").write_text("p@ss/w:rd?&%\n")
    monkeypatch.setenv("TIDEBUS_SECRET_DIR", str(tmp_path))
    monkeypatch.setenv("TIDEBUS_SECRET_KAFKA", WORD + "&#")
    kept = info("mysql://root:${file:sub/db}@127.0.0.1:3306/")
    server = load_with_secrets(kept).uri.server
    assert server is not None and server.password is not None and server.password.reveal() == "p@ss/w:rd?&%"
    checked = load_changefeed(kept.sink_uri, kept.config).uri.server
    assert checked is not None and checked.host == server.host
    kafka = info(URI.replace(WORD, "${env:TIDEBUS_SECRET_KAFKA}"))
    assert WORD in str(load_with_secrets(kafka).kafka.sasl_password.reveal())  # type: ignore[union-attr]
    assert WORD not in encode_changefeed_info(kafka).decode()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("env", "PATH"),
        ("env", "TIDEBUS_SECRET_KEY_FILE"),
        ("env", "TIDEBUS_SECRET_NONE"),
        ("file", "/etc/passwd"),
        ("file", "../outside"),
        ("file", "link"),
        ("file", "none"),
        ("file", "."),
        ("file", "large"),
        ("file", "binary"),
    ],
)
def test_reference_to_what_is_no_secret_is_refused(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (tmp_path / "outside").write_text(WORD)
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "large").write_text("x" * (65 << 10))
    (folder / "binary").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("TIDEBUS_SECRET_DIR", str(folder))
    monkeypatch.setenv("TIDEBUS_SECRET_KEY_FILE", WORD)
    with pytest.raises(SecretReferenceError, match=r"\[secrets.reference\]") as refused:
        resolve(kind, name)
    assert WORD not in str(refused.value) and "\n" not in str(refused.value)


def test_files_are_no_secrets_where_no_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEBUS_SECRET_DIR", raising=False)
    with pytest.raises(SecretReferenceError, match="TIDEBUS_SECRET_DIR"):
        resolve("file", "/etc/hostname")


def test_key_file_that_is_weak_is_refused_without_its_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secret-key-file") as refused:
        Keyring.read(key_file(tmp_path, "word123"))
    assert "word123" not in str(refused.value)


@pytest.mark.parametrize("name", ["account_key", "account-key", "Account%5Fkey", "sas_token", "AWS_SECRET_ACCESS_KEY"])
def test_secret_parameter_is_masked_however_it_is_written(name: str) -> None:
    shown = mask_uri(f"abfs://c/p?protocol=csv&{name}={WORD}&a=b")
    assert WORD not in shown and shown.endswith("&a=b")
