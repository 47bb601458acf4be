"""Which lines of a changefeed's topic go into which files of a storage sink. Pure: no storage and no Kafka in here."""
