"""Table images in one process under every fault: owners, captures that scan, and changefeeds that read."""
