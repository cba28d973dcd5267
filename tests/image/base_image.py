"""A base image without any registry: this machine's own Python, a shell, and what they link to."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/true")
# What compiled packages that are mounted later (torch) look for.
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1", "librt.so.1", "libdl.so.2")
LIBRARIES += ("libpthread.so.0", "libutil.so.1", "libm.so.6", "libz.so.1")
_SKIPPED = re.compile(
    r"site-packages|test|tests|idlelib|tkinter|ensurepip|lib2to3|pydoc_data|__pycache__|config-.*"
)


def interpreter() -> Path:
    """The interpreter that the running (virtual) environment is built on."""
    return Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"


def packages() -> Path:
    """Where packages lie in the image."""
    return Path(sys.base_prefix) / f"lib/python3.{sys.version_info.minor}/site-packages"


def write_tar(path: Path, site: Path, config: dict[str, str] | None = None) -> None:
    """A root file system with `site` as the interpreter's site-packages."""
    with tarfile.open(path, "w") as archive:
        for folder in ("tmp", "proc", "sys", "dev", "root", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        text = b"root:x:0:0:root:/root:/bin/sh\nserver:x:1000:1000::/tmp:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, str(interpreter())
        archive.addfile(link)
        seen: set[Path] = set()
        for file in _files():
            if file not in seen:
                seen.add(file)
                archive.add(file.resolve(), str(file)[1:], recursive=False)
        for file in sorted(site.rglob("*")):
            archive.add(file, str(packages() / file.relative_to(site))[1:], recursive=False)


def _files() -> list[Path]:
    library = Path(sys.base_prefix) / f"lib/python3.{sys.version_info.minor}"
    own = []
    for folder, inner, names in os.walk(library):
        inner[:] = [name for name in inner if not _SKIPPED.fullmatch(name)]
        own += [Path(folder, name) for name in sorted(names)]
    binaries = [Path(program) for program in PROGRAMS] + [interpreter()]
    binaries += [file for file in own if file.suffix == ".so"]
    return [*binaries, *own, *_linked(binaries), *_named()]


def _linked(binaries: list[Path]) -> list[Path]:
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False)
    return sorted({Path(found) for found in re.findall(r"(/\S+\.so[.\w-]*) \(0x", done.stdout)})


def _named() -> list[Path]:
    done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False)
    table = dict(re.findall(r"^\s+(\S+) .*x86-64.*=> (\S+)$|^$", done.stdout, re.MULTILINE))
    return [Path(table[name]) for name in LIBRARIES if name in table]
