"""Reading a changefeed's topics: rows in order, repeats removed, whole up to a watermark. Pure: no Kafka in here."""
