"""Files of settings: what stands behind the `=`."""

from pathlib import Path

import pytest

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from schemas.errors import ConfigError


def test_path_that_is_left_empty_is_refused_and_is_not_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("security.protocol=SSL\nssl.ca.location=\n")
    with pytest.raises(ConfigError, match=r"no value.*key=ssl\.ca\.location"):
        KafkaAccess.read("k:1", file)
    file.write_text("url=https://registry\nssl.ca.location=\n")
    with pytest.raises(ConfigError, match=r"no value.*key=ssl\.ca\.location"):
        RegistryAccess.read("", file)
