"""Jobs of a Spark session: few calls into the JVM for each, a watch over their tasks, what all changefeeds share."""
