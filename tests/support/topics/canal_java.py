"""canal packets read by Alibaba's own Java classes, ``com.alibaba.otter:canal.protocol`` from Maven Central."""

import base64
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from compose.stack.checksums import check_part
from compose.stack.jars import cache_dir, pyspark_jars
from compose.stack.java import find_java

VERSION, PROTOBUF_VERSION = "1.1.8", "3.6.1"
"""The protobuf runtime is the one that this release of canal.protocol was generated for."""
_IVY = f"""<ivy-module version="2.0"><info organisation="tidebus" module="canal"/>
<configurations><conf name="canal"/></configurations><dependencies>
<dependency org="com.alibaba.otter" name="canal.protocol" rev="{VERSION}" conf="canal->default" transitive="false"/>
<dependency org="com.google.protobuf" name="protobuf-java" rev="{PROTOBUF_VERSION}" conf="canal->default"/>
</dependencies></ivy-module>
"""
_SUMS = {
    f"canal-{VERSION}/canal.protocol-{VERSION}.jar": "254cb95712dd2bb2fdc5fa92687f58e1cad6c643057249037ab67e1ca89394e8",
    f"canal-{VERSION}/protobuf-java-{PROTOBUF_VERSION}.jar": (
        "fb66d913ff0578553b2e28a3338cbbbe2657e6cfe0e98d939f23aea219daf508"
    ),
}
_JAVA = """
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.CanalPacket;
import com.google.protobuf.ByteString;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;

public class ReadCanal {
    static String text(String value) {
        return "=" + Base64.getEncoder().encodeToString(value.getBytes(StandardCharsets.UTF_8));
    }

    static void columns(StringBuilder line, String side, List<CanalEntry.Column> columns) {
        for (CanalEntry.Column c : columns) {
            line.append('|').append(side).append(',').append(text(c.getName())).append(',').append(c.getSqlType());
            line.append(',').append(c.getIsKey()).append(',').append(c.getUpdated()).append(',').append(c.getIsNull());
            line.append(',').append(text(c.getMysqlType())).append(',').append(text(c.getValue()));
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, "US-ASCII");
        for (String row = in.readLine(); row != null; row = in.readLine()) {
            CanalPacket.Packet packet = CanalPacket.Packet.parseFrom(Base64.getDecoder().decode(row));
            if (packet.getType() != CanalPacket.PacketType.MESSAGES || packet.getVersion() != 1) {
                throw new IllegalStateException("not a packet of messages");
            }
            for (ByteString message : CanalPacket.Messages.parseFrom(packet.getBody()).getMessagesList()) {
                CanalEntry.Entry entry = CanalEntry.Entry.parseFrom(message);
                CanalEntry.Header header = entry.getHeader();
                CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
                StringBuilder line = new StringBuilder();
                line.append(entry.getEntryType()).append('|').append(header.getEventType()).append('|');
                line.append(header.getExecuteTime()).append('|').append(text(header.getSchemaName())).append('|');
                line.append(text(header.getTableName())).append('|').append(change.getIsDdl()).append('|');
                line.append(text(change.getSql())).append('|').append(change.getRowDatasCount());
                for (CanalEntry.RowData data : change.getRowDatasList()) {
                    columns(line, "before", data.getBeforeColumnsList());
                    columns(line, "after", data.getAfterColumnsList());
                }
                out.println(line);
            }
            out.println("end");
        }
        out.flush();
    }
}
"""


class CanalJavaMissingError(Exception):
    """The jars do not resolve, or there is no Java compiler; says why."""


@dataclass(frozen=True, slots=True)
class CanalColumn:
    name: str
    sql_type: int
    is_key: bool
    updated: bool
    is_null: bool
    mysql_type: str
    value: str


@dataclass(frozen=True, slots=True)
class CanalRow:
    """One entry, as Java's getters tell it."""

    entry_type: str
    event_type: str
    execute_time: int
    schema: str
    table: str
    is_ddl: bool
    sql: str
    before: tuple[CanalColumn, ...]
    after: tuple[CanalColumn, ...]


def canal_jars() -> str:
    """Return the class path, fetched once.

    Raises:
        CanalJavaMissingError: it does not resolve.
        JarChecksumError: what resolves is not what is pinned here.
    """
    folder = cache_dir() / "jars" / f"canal-{VERSION}"
    if not folder.is_dir():
        fresh = folder.with_name(f".{folder.name}@{os.getpid()}")
        try:
            fresh.mkdir(parents=True)
            (fresh / "ivy.xml").write_text(_IVY)
            ivy = next(pyspark_jars().glob("ivy-*.jar"))
            command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", "-m2compatible", "-warn"]
            command += ["-cache", str(folder.parent / ".ivy"), "-ivy", str(fresh / "ivy.xml"), "-confs", "canal"]
            command += ["-retrieve", f"{fresh}/[artifact]-[revision].[ext]"]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode or len(list(fresh.glob("*.jar"))) < 2:
                raise CanalJavaMissingError(f"canal.protocol {VERSION} does not resolve: {ran.stdout[-300:]}")
            check_part(fresh, _SUMS)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    check_part(folder, _SUMS)
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def read_packets(packets: list[bytes], folder: Path) -> list[list[CanalRow]]:
    """Return the entries of each packet.

    Raises:
        CanalJavaMissingError: see :func:`canal_jars`.
        AssertionError: Java does not take the packets.
    """
    source = folder / "ReadCanal.java"
    source.write_text(_JAVA)
    command = [str(find_java()), "-cp", canal_jars(), str(source)]
    given = "\n".join(base64.b64encode(packet).decode() for packet in packets)
    ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
    if "error: no compiler" in ran.stderr or "jdk.compiler" in ran.stderr:
        raise CanalJavaMissingError("this Java has no compiler")
    assert ran.returncode == 0, ran.stderr[-2000:]
    decoded: list[list[CanalRow]] = [[]]
    for line in ran.stdout.splitlines():
        if line == "end":
            decoded.append([])
        else:
            decoded[-1].append(_row(line.split("|")))
    return decoded[:-1]


def _row(fields: list[str]) -> CanalRow:
    entry_type, event_type, time, schema, table, is_ddl, sql, _, *columns = fields
    parts = [column.split(",") for column in columns]
    before, after = (
        tuple(
            CanalColumn(
                name=_text(part[1]),
                sql_type=int(part[2]),
                is_key=part[3] == "true",
                updated=part[4] == "true",
                is_null=part[5] == "true",
                mysql_type=_text(part[6]),
                value=_text(part[7]),
            )
            for part in parts
            if part[0] == side
        )
        for side in ("before", "after")
    )
    return CanalRow(
        entry_type=entry_type,
        event_type=event_type,
        execute_time=int(time),
        schema=_text(schema),
        table=_text(table),
        is_ddl=is_ddl == "true",
        sql=_text(sql),
        before=before,
        after=after,
    )


def _text(field: str) -> str:
    return base64.b64decode(field.removeprefix("=")).decode()
