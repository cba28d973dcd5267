"""`python -I PATCHES_FOLDER`: apply the patches to this interpreter's SGLang."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder.parent))
    sys.exit(importlib.import_module(f"{folder.name}.runner").main())
