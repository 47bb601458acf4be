"""What carries one cut out, on the driver or in a task: raw records in, records written to the sink."""
