"""Restored DDL: forms beyond the recording, as pingcap/tidb's parser tests and its Restore functions have them."""

# ruff: noqa: E501 - a statement and what becomes of it stand beside each other

import pytest

from sorters.core.sql.restore import restore
from sorters.core.sql.tokens import MODE_ANSI_QUOTES, MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError
from tests.support.recorded.recording import oracle

COLUMNS = [
    ("a INTEGER(11) UNSIGNED ZEROFILL NOT NULL", "`a` INT(11) UNSIGNED ZEROFILL NOT NULL"),
    ("a numeric(10,2) default -1.50", "`a` DECIMAL(10,2) DEFAULT -1.50"),
    ("a double precision", "`a` DOUBLE"),
    ("a bit default b'0'", "`a` BIT(1) DEFAULT b'0'"),
    ("a char varying(3) charset utf8mb4 collate UTF8MB4_BIN", "`a` VARCHAR(3) CHARACTER SET UTF8MB4 COLLATE utf8mb4_bin"),
    ("a varchar(3) default null comment 'it''s'", "`a` VARCHAR(3) DEFAULT NULL COMMENT 'it''s'"),
    ('a varchar(9) default "q\\"q"', "`a` VARCHAR(9) DEFAULT _UTF8MB4'q\"q'"),
    ("a datetime(3) default now(3) on update localtime(3)", "`a` DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"),
    ("a varchar(36) default (uuid())", "`a` VARCHAR(36) DEFAULT (UUID())"),
    ("a datetime default (now())", "`a` DATETIME DEFAULT CURRENT_TIMESTAMP()"),
    ("a int unique", "`a` INT UNIQUE KEY"),
    ("a int key auto_increment", "`a` INT PRIMARY KEY AUTO_INCREMENT"),
    ("a bigint primary key clustered auto_random(5, 54)", "`a` BIGINT PRIMARY KEY /*T![clustered_index] CLUSTERED */ /*T![auto_rand] AUTO_RANDOM(5, 54) */"),
    ("a bigint /*T![auto_rand] auto_random */", "`a` BIGINT /*T![auto_rand] AUTO_RANDOM */"),
    ("a int check (a > 0 and a<>5) not enforced", "`a` INT CHECK(`a`>0 AND `a`!=5) NOT ENFORCED"),
    ("a int generated always as (j->'$.x' + 0x1F) stored", "`a` INT GENERATED ALWAYS AS(JSON_EXTRACT(`j`, _UTF8MB4'$.x')+x'1f') STORED"),
    ("`we``ird` int", "`we``ird` INT"),
    ("a set('x','y') default 'x,y'", "`a` SET('x','y') DEFAULT _UTF8MB4'x,y'"),
    ("a float default 1e3", "`a` FLOAT DEFAULT 1e+03"),
    ("a int as (case when b > 0 then 'x' else lower(c) end)", "`a` INT GENERATED ALWAYS AS(CASE WHEN `b`>0 THEN _UTF8MB4'x' ELSE LOWER(`c`) END) VIRTUAL"),
    ("a int as (cast(b as char(3)) + timestampdiff(day, c, now()))", "`a` INT GENERATED ALWAYS AS(CAST(`b` AS CHAR(3))+TIMESTAMPDIFF(DAY, `c`, NOW())) VIRTUAL"),
    ("a json, key mv ((cast(a->'$.x' as unsigned array)))", "`a` JSON,INDEX `mv`((CAST(JSON_EXTRACT(`a`, _UTF8MB4'$.x') AS UNSIGNED ARRAY)))"),
    ("a bool default true", "`a` TINYINT(1) DEFAULT TRUE"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "restored"), COLUMNS)
def test_restore_column_definition(written: str, restored: str) -> None:
    assert restore(f"create table t ({written})") == f"CREATE TABLE `t` ({restored})"


STATEMENTS = [
    ("create schema if not exists d default character set = utf8mb4", "CREATE DATABASE IF NOT EXISTS `d` CHARACTER SET = utf8mb4"),
    ("drop schema if exists d", "DROP DATABASE IF EXISTS `d`"),
    ("create table if not exists d.t (a int, key (a desc), unique index u using btree (a) comment 'c' invisible)",
     "CREATE TABLE IF NOT EXISTS `d`.`t` (`a` INT,INDEX(`a` DESC),UNIQUE `u`(`a`) USING BTREE COMMENT 'c' INVISIBLE)"),
    ("create table t (a int) engine=InnoDB default charset=utf8mb4 collate utf8mb4_bin comment='x' auto_increment 5",
     "CREATE TABLE `t` (`a` INT) ENGINE = InnoDB DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE = UTF8MB4_BIN COMMENT = 'x' AUTO_INCREMENT = 5"),
    ("create table t (a datetime) ttl = a + interval 3 month ttl_enable = 'ON' ttl_job_interval = '1h'",
     "CREATE TABLE `t` (`a` DATETIME) /*T![ttl] TTL = `a` + INTERVAL 3 MONTH */ /*T![ttl] TTL_ENABLE = 'OFF' */ /*T![ttl] TTL_JOB_INTERVAL = '1h' */"),
    ("create table t (a int, b int) partition by range columns (a, b) (partition p0 values less than (1, 2) comment 'c', partition p1 values less than (maxvalue, maxvalue))",
     "CREATE TABLE `t` (`a` INT,`b` INT) PARTITION BY RANGE COLUMNS (`a`,`b`) (PARTITION `p0` VALUES LESS THAN (1, 2) COMMENT = 'c',PARTITION `p1` VALUES LESS THAN (MAXVALUE, MAXVALUE))"),
    ("create table t (a int) partition by list (a) (partition p0 values in (1, 2), partition p1 values in (null))",
     "CREATE TABLE `t` (`a` INT) PARTITION BY LIST (`a`) (PARTITION `p0` VALUES IN (1, 2),PARTITION `p1` VALUES IN (NULL))"),
    ("create table t (a int primary key) partition by key () partitions 3", "CREATE TABLE `t` (`a` INT PRIMARY KEY) PARTITION BY KEY () PARTITIONS 3"),
    ("create table t (a int, constraint c foreign key f (a) references p (x, y) on update set null on delete no action)",
     "CREATE TABLE `t` (`a` INT,CONSTRAINT `c` FOREIGN KEY (`a`) REFERENCES `p`(`x`, `y`) ON DELETE NO ACTION ON UPDATE SET NULL)"),
    ("create table t (like d.u)", "CREATE TABLE `t` LIKE `d`.`u`"),
    ("create unique index i on d.t (a, (lower(b)))", "CREATE UNIQUE INDEX `i` ON `d`.`t` (`a`, (LOWER(`b`)))"),
    ("drop index i on t", "DROP INDEX `i` ON `t`"),
    ("rename table a to b, c to d.e", "RENAME TABLE `a` TO `b`, `c` TO `d`.`e`"),
    ("truncate d.t", "TRUNCATE TABLE `d`.`t`"),
    ("create or replace view v (x) as select a + 1 from d.t where b = 'x' or b is not null",
     "CREATE OR REPLACE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` (`x`) AS SELECT `a`+1 FROM `d`.`t` WHERE `b`=_UTF8MB4'x' OR `b` IS NOT NULL"),
    # As TiDB keeps the SELECT of its own view of blocked DDL: `FROM ((a) JOIN b) JOIN c` is a list of three.
    ("create view v as select x.a from x, y, z where x.a = y.a",
     "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` AS SELECT `x`.`a` FROM ((`x`) JOIN `y`) JOIN `z` WHERE `x`.`a`=`y`.`a`"),
    ("create view v as select x.a from x join y on x.a = y.a left join z on y.b = z.b",
     "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` AS SELECT `x`.`a` FROM (`x` JOIN `y` ON `x`.`a`=`y`.`a`) LEFT JOIN `z` ON `y`.`b`=`z`.`b`"),
    ("create view d.v as select distinct u.a as x, count(*), sum(distinct b) from t as u left join d.w on u.a = w.a where b > 1 group by u.a having count(*) > 2 order by x desc, b limit 3",
     "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `d`.`v` AS SELECT DISTINCT `u`.`a` AS `x`,COUNT(1),SUM(DISTINCT `b`) FROM `t` AS `u` LEFT JOIN `d`.`w` ON `u`.`a`=`w`.`a` WHERE `b`>1 GROUP BY `u`.`a` HAVING COUNT(1)>2 ORDER BY `x` DESC,`b` LIMIT 3"),
    # TiDB's parser_test.go.
    ("create or replace algorithm = merge definer='root' sql security invoker view a(x, y) as select a, b from t with local check option",
     "CREATE OR REPLACE ALGORITHM = MERGE DEFINER = `root`@`%` SQL SECURITY INVOKER VIEW `a` (`x`,`y`) AS SELECT `a`,`b` FROM `t` WITH LOCAL CHECK OPTION"),
    ("create definer='root'@'localhost' view a as select a from t with cascaded check option",
     "CREATE ALGORITHM = UNDEFINED DEFINER = `root`@`localhost` SQL SECURITY DEFINER VIEW `a` AS SELECT `a` FROM `t`"),
    ("create algorithm = temptable definer=current_user() view a as select a from t with check option",
     "CREATE ALGORITHM = TEMPTABLE DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `a` AS SELECT `a` FROM `t`"),
    ("alter table t add (a int, b int), drop column if exists c, drop index i, drop foreign key f",
     "ALTER TABLE `t` ADD COLUMN (`a` INT, `b` INT), DROP COLUMN /*T! IF EXISTS  */`c`, DROP INDEX `i`, DROP FOREIGN KEY `f`"),
    ("alter table t change a b bigint first, modify c text after b, rename column x to y, rename to d.u",
     "ALTER TABLE `t` CHANGE COLUMN `a` `b` BIGINT FIRST, MODIFY COLUMN `c` TEXT AFTER `b`, RENAME COLUMN `x` TO `y`, RENAME AS `d`.`u`"),
    ("alter table t alter a drop default, alter column b set default 5", "ALTER TABLE `t` ALTER COLUMN `a` DROP DEFAULT, ALTER COLUMN `b` SET DEFAULT 5"),
    ("alter table t convert to character set utf8mb4 collate utf8mb4_bin", "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN"),
    ("alter table t add constraint c unique key (a), add fulltext (b)", "ALTER TABLE `t` ADD UNIQUE `c`(`a`), ADD FULLTEXT(`b`)"),
    ("alter table t partition by hash (a) partitions 4", "ALTER TABLE `t` PARTITION BY HASH (`a`) PARTITIONS 4"),
    ("alter table t add partition partitions 2, algorithm=instant", "ALTER TABLE `t` ADD PARTITION PARTITIONS 2, ALGORITHM = INSTANT"),
    ("alter table t add partition (partition a values less than (1), partition b values less than (2))",
     "ALTER TABLE `t` ADD PARTITION (PARTITION `a` VALUES LESS THAN (1), PARTITION `b` VALUES LESS THAN (2))"),
    ("alter table t remove ttl", "ALTER TABLE `t` /*T![ttl] REMOVE TTL */"),
    ("alter table t ttl_enable='ON' ttl = a + interval 1 day", "ALTER TABLE `t` /*T![ttl] TTL = `a` + INTERVAL 1 DAY */ /*T![ttl] TTL_ENABLE = 'OFF' */"),
    ("/* c */ alter /*!40101 table */ t -- end\n comment 'x' # more", "ALTER TABLE `t` COMMENT = 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "restored"), STATEMENTS)
def test_restore_statement(written: str, restored: str) -> None:
    assert restore(written) == restored


def test_restore_twice_changes_nothing_more() -> None:
    """A restored statement is SQL; restoring it again gives itself."""
    texts = [event["restored_query"] for line in oracle("ddl_events") for event in line.get("events", [])]
    assert [restore(text) for text in texts] == texts


def test_restore_uses_the_connections_charset_and_sql_mode() -> None:
    assert restore("alter table t alter a set default 'x'", charset="latin1").endswith("SET DEFAULT _LATIN1'x'")
    assert restore('truncate table "t"', sql_mode=MODE_ANSI_QUOTES) == "TRUNCATE TABLE `t`"
    assert restore(r"alter table t comment 'a\n'", sql_mode=MODE_NO_BACKSLASH_ESCAPES).endswith(r"'a\n'")


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "select 1",
        "create table t (a geometry)",
        "create table t (a int) as select 1",
        "create table t (a int",
        "alter table t add column a int default 'open",
        "alter table t order by a",
        "create view v as select a from t natural join u",
        "create view v as select a from t where a in (select b from u)",
        "create algorithm = none view v as select a from t",
        "create sql security none view v as select a from t",
        "create definer = 1 view v as select a from t",
        "create view v as select a from t with another check option",
        "drop table a; drop table b",
        "alter table t alter a set default 1e999",
    ],
)
def test_restore_of_what_is_not_known_says_so(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        restore(sql)
