"""Tests of the extras; those whose library is missing are not collected (see make test-extras)."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
NEEDS = {"test_vision.py": ("timm", "torchvision", "peft"), "test_text.py": ("transformers",)}
collect_ignore = [
    file for file, names in NEEDS.items() if not all(map(importlib.util.find_spec, names))
]
