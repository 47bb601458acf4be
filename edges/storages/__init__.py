"""Object storages: S3 by fsspec, Azure and Google by their own libraries, which an extra of each installs."""
