"""Lets MooncakeConnector run on a machine without RDMA and without an accelerator: a folder of links and one line.

Rule of this room: runs under the pods' own interpreter, as a script, standard library only. Mooncake's wheel wants
`libibverbs.so.1` even where it only speaks TCP; NIXL's wheel brings that library along under another name, so links
are enough and nothing of the system is touched. vLLM 0.32's connector asks for the index of the current accelerator
before anything else, which raises where there is none; on CPU the index is used for nothing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

WANTED = "libibverbs"
CHECK = "from mooncake.engine import TransferEngine; print(TransferEngine.__name__)"
CONNECTOR = Path("distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py")
ASKS = "self.device_id = torch.accelerator.current_device_index()\n"
ASKS_FIRST = "self.device_id = torch.accelerator.current_device_index() if torch.accelerator.is_available() else 0\n"


def link(folder: Path, libraries: Path) -> None:
    """Fill `folder` with links to all `libraries`, one of them under the name that Mooncake looks for."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    found = sorted(libraries.glob("*.so*"))
    for library in found:
        (folder / library.name).symlink_to(library)
    verbs = [library for library in found if library.name.startswith(f"{WANTED}-")]
    if len(verbs) != 1:
        raise FileNotFoundError(f"{libraries} holds {len(verbs)} of {WANTED}")
    (folder / f"{WANTED}.so.1").symlink_to(verbs[0])


def do_without_accelerator(source: Path) -> None:
    """Change the one line; raises `ValueError` when the file is not the one this was written for."""
    text = source.read_text(encoding="utf-8")
    if ASKS_FIRST in text:
        return
    if text.count(ASKS) != 1:
        raise ValueError(f"{source} does not contain '{ASKS.strip()}' exactly once")
    source.write_text(text.replace(ASKS, ASKS_FIRST), encoding="utf-8")


def folder_of(package: str) -> Path:
    """Where a package lies."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return Path(spec.origin).parent


if __name__ == "__main__":
    target = Path(sys.argv[1])
    link(target, folder_of("nixl_cu12").parent / "nixl_cu12.libs")
    do_without_accelerator(folder_of("vllm") / CONNECTOR)
    subprocess.run([sys.executable, "-c", CHECK], env=os.environ | {"LD_LIBRARY_PATH": str(target)}, check=True)
