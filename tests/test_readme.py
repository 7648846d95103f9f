"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["output"].shape == (100, 50, 128)
    assert names["h_n"].shape == (2, 50, 128)
    assert all(u.abs().max() <= 2 ** (1 / 100) for name, u in names["model"].named_parameters() if "weight_hh" in name)
