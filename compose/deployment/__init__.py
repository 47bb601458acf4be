"""What a deployment needs beside the image: the secrets of ``docker-compose.yml``, its servers' files, Kafka's user."""
