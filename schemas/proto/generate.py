"""Generate the Python modules of the .proto files: ``python -m schemas.proto.generate`` (needs the dev extra).

The modules are committed, so that users need neither protoc nor this script. Run it after each change of a .proto.
protoc gets the repository as its root, so the generated imports read ``from schemas.proto import metapb_pb2``.
"""

import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SERVICES = ("cdcpb", "p2p", "pdpb", "tikvpb")


def main() -> int:
    """Write ``*_pb2.py`` with stubs, and ``*_pb2_grpc.py`` for the services; return protoc's exit status."""
    from grpc_tools import protoc  # a dev dependency: the package itself must import without it

    names = sorted(path.stem for path in HERE.glob("*.proto"))
    roots = ["protoc", f"-I{REPOSITORY}", f"-I{files('grpc_tools') / '_proto'}"]

    def generate(kinds: tuple[str, ...], stems: Sequence[str]) -> int:
        protos = [str((HERE / f"{stem}.proto").relative_to(REPOSITORY)) for stem in stems]
        return int(protoc.main([*roots, *(f"--{kind}_out={REPOSITORY}" for kind in kinds), *protos]))

    return generate(("python", "mypy"), names) or generate(("grpc_python", "mypy_grpc"), SERVICES)


if __name__ == "__main__":
    sys.exit(main())
