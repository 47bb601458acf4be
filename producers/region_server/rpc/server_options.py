"""What all servers here let their clients do: messages of any size, and pings as TiKV takes them."""

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Clients ping every 10 s, also without a stream; the default calls that abuse and closes the connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
